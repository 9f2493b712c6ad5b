"""Two `switchyard supervise` processes at once: a release that nobody runs, and a driver that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.ledger import check_result
from orchestration.local.process import ProcessRef
from orchestration.operations.context import Context
from orchestration.sources import Options, sources_for
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.topics import partition_count
from pipelines.model.entries import WantedSet
from pipelines.model.names import result_topic
from pipelines.model.registry import Release
from pipelines.settings import Settings
from tests.e2e.harness import SMALL, Drivers, at_rest, code_without_suite, operator, producing, stage
from tests.shared.threads import trials_in
from tests.shared.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

NAME = "word-count.v1"
BOOT_S = 300.0


@pytest.fixture(scope="module")
def settings(broker: Settings) -> Settings:
    return broker.model_copy(update={**SMALL, "trigger_s": 1.0, "lease_timeout_s": 5.0})


def switchyard(settings: Settings, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "orchestration.cli", *arguments]
    return subprocess.Popen(command, env=settings.child_environment(), stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    """Its output, after SIGTERM ended it without an error."""
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in said, said
    return said


def release(context: Context) -> Release:
    return context.registry.state().releases[NAME]


def commits(settings: Settings, context: Context, above: int) -> Release:
    """The release, once a driver with a newer token has committed."""

    def there() -> bool:
        progress = newest_progress(settings, NAME)
        return progress is not None and progress.token > above

    until(f"no driver after token {above} commits", there, BOOT_S)
    return release(context)


def process_of(found: Release) -> ProcessRef:
    assert found.lease is not None and not found.lease_ended
    return ProcessRef.of_holder(found.lease.holder)


def test_two_supervisors_start_and_replace_a_driver_once(
    settings: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    drivers = Drivers(settings)
    code = code_without_suite(tmp_path / "code", "word_count")
    with (
        trials_in(spark),
        operator(settings, drivers) as context,
        producing(settings, sources_for("word-count", Options()), 50) as end_input,
    ):
        supervisors: list[subprocess.Popen[str]] = []
        started: list[ProcessRef] = []
        try:
            until("no input", lambda: partition_count(settings, "lines") is not None, 60)
            stage(context, "word-count", 1, code)
            supervisors += [switchyard(settings, "supervise", "--every", "500ms") for _ in range(2)]
            until("no two supervisors are there", lambda: len(_present(settings)) == 2, 60)

            # wanted, but nobody runs it: both would start it
            context.registry.step(lambda _: [WantedSet(release=NAME, wanted="running")])
            found = commits(settings, context, 0)
            assert found.token == 1
            started.append(process_of(found))

            # it hangs: it lives and sends nothing
            os.killpg(started[-1].pid, signal.SIGSTOP)
            found = commits(settings, context, found.token)
            # one token for the fence, one for the next driver
            assert found.token == 3 and found.state != "failed"
            until("the driver that hung is still there", lambda: not started[0].alive(), 30)
            started.append(process_of(found))

            said = [ended(each) for each in supervisors]
            supervisors.clear()
            assert sum("hangs: process" in each for each in said) == 1, said
            assert started[-1].alive()
            end_input()
            until(f"{NAME} has not read everything", lambda: at_rest(settings, NAME, {"lines": "lines"}), 120)
        finally:
            for supervisor in supervisors:
                supervisor.kill()
                supervisor.communicate()
            for each in {*started, *_holder(context)}:
                each.kill()
            drivers.end()
    ledger = check_result("word-count", settings.bootstrap, result_topic(NAME, 1))
    assert ledger.clean and ledger.records > 0, ledger.as_json()


def _present(settings: Settings) -> list[Path]:
    return list((settings.state_dir / "run" / "supervisors").glob("*.json"))


def _holder(context: Context) -> list[ProcessRef]:
    """The process that has the lease, which a supervisor may have started."""
    known = context.registry.state().releases.get(NAME)
    return [] if known is None or known.lease is None or known.lease_ended else [process_of(known)]
