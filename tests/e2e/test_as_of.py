"""A stream joined with a table by real drivers that are killed: each row sees the table as of its time."""

from __future__ import annotations

import json
import os
import signal
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.ledger.reader import read
from orchestration.operations.context import Context
from orchestration.sources import Options, produce, sources_for
from pipelines.kafka.progress import newest_progress
from pipelines.settings import Settings
from tests.e2e.harness import (
    BOOT_TIMEOUT_S,
    SMALL,
    Drivers,
    at_rest,
    code_without_suite,
    committed,
    operator,
    stage,
    start,
    stop,
    until,
)
from tests.shared.threads import trials_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# what restarts do to one is also tried without a broker, in tests/model/test_as_of.py
pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

RECORDS = 16_000
INPUTS = {"tick": "tick", "open": "open"}


@pytest.fixture(scope="module")
def settings(broker: Settings) -> Settings:
    return broker.model_copy(update={**SMALL, "max_records_per_batch": 2_000, "lease_timeout_s": 5.0})


@pytest.fixture(scope="module")
def drivers(settings: Settings) -> Iterator[Drivers]:
    found = Drivers(settings)
    yield found
    found.end()


@pytest.fixture(scope="module")
def context(settings: Settings, drivers: Drivers) -> Iterator[Context]:
    with operator(settings, drivers) as found:
        yield found


def expected(settings: Settings, watermark_ms: int) -> list[str]:
    """The ticks of users whose last state is Close, as topic:partition:offset. Worked out from the topics alone."""
    states = defaultdict(list)
    for record in read(settings.bootstrap, "open"):
        if record.key is not None and (record.value is None or is_text(record.value)):
            place = record.time_ms, record.partition, record.offset
            states[record.key].append((place, record.value))
    found = []
    for each in states.values():
        each.sort(key=lambda state: state[0])
    for record in read(settings.bootstrap, "tick"):
        if record.key is None or record.value is None or not is_text(record.value):
            continue
        known = states[record.key]
        last = bisect_right([place[0] for place, _ in known], record.time_ms)
        if record.time_ms <= watermark_ms and last and known[last - 1][1] == b"Close":
            found.append(f"tick:{record.partition}:{record.offset}")
    return sorted(found)


def is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_each_tick_is_joined_once_as_of_its_time_although_drivers_are_killed(
    settings: Settings, drivers: Drivers, context: Context, spark: SparkSession, tmp_path: Path
) -> None:
    produce(settings, sources_for("not-viewing", Options(per_second=200)), history=RECORDS)
    with trials_in(spark):
        release = stage(context, "not-viewing", 1, code_without_suite(tmp_path / "code", "not_viewing"))
    start(context, release)
    for batches in (2, 5):
        until(
            f"batch {batches}",
            lambda batches=batches: (p := newest_progress(settings, release)) and p.boundary.batch_id >= batches,
            BOOT_TIMEOUT_S,
        )
        os.killpg(drivers.of(release).pid, signal.SIGKILL)
        assert drivers.of(release).wait(20) == -signal.SIGKILL, "it had ended before"
        assert not at_rest(settings, release, INPUTS), "it was done before it was killed"
        drivers.spawn(release)
    until("it has read all", lambda: at_rest(settings, release, INPUTS), BOOT_TIMEOUT_S)
    stop(context, release)
    last = committed(settings, release)
    assert (last.total.rows_in, last.total.late_dropped) == (RECORDS, 0)
    assert last.boundary.watermark_ms is not None
    topic = context.registry.state().releases[release].result_topics[""]
    told = sorted(record.source or "" for record in read(settings.bootstrap, topic))
    wanted = expected(settings, last.boundary.watermark_ms)
    assert len(wanted) > RECORDS // 10
    assert told == wanted
    values = [json.loads(record.value or b"") for record in read(settings.bootstrap, topic)]
    assert {value["message"] for value in values} == {"You are not currently viewing Facebook."}
