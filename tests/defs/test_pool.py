"""The pools of a running Dagster: who waits for it, and who does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.settings import Settings
from tests.defs.dev import DagsterDev

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]

_LIMITS = "{ instance { poolConfig { poolGranularity } concurrencyLimits { concurrencyKey slotCount } } }"
_SET = "mutation ($key: String!, $limit: Int!) { setConcurrencyLimit(concurrencyKey: $key, limit: $limit) }"
_ENDED = {"SUCCESS", "FAILURE", "CANCELED"}
_RUN_S = 300.0


@pytest.fixture
def ui(tmp_path: Path) -> Iterator[DagsterDev]:
    """With no room in the pool, and no broker: each run that starts, fails soon."""
    settings = Settings(state_dir=tmp_path / "state", broker_port=1, request_timeout_s=1)
    found = DagsterDev(tmp_path / "dagster", settings.environment(), ("--spark-runs", "0"))
    found.start()
    yield found
    found.kill()


def limits(ui: DagsterDev) -> dict[str, int]:
    return {each["concurrencyKey"]: each["slotCount"] for each in ui.ask(_LIMITS)["instance"]["concurrencyLimits"]}


def test_a_spark_run_waits_for_room_and_a_rollback_does_not(ui: DagsterDev) -> None:
    assert ui.ask(_LIMITS)["instance"]["poolConfig"]["poolGranularity"] == "run"
    assert limits(ui) == {"spark": 0, "hydration": 3}
    waits = ui.queue("quality_checks")
    passes = ui.queue("rollback", config={"app": "stock-stats"})
    # the queue is first in, first out: what came later and has run, has overtaken
    ui.until("the rollback has not run", lambda: ui.status(passes) in _ENDED, timeout_s=_RUN_S)
    assert ui.status(passes) == "FAILURE" and ui.status(waits) == "QUEUED"
    assert ui.ask(_SET, key="spark", limit=1)["setConcurrencyLimit"]
    ui.until("the check has not run", lambda: ui.status(waits) in _ENDED, timeout_s=_RUN_S)


def test_a_limit_that_is_not_named_follows_from_the_memory(tmp_path: Path) -> None:
    from orchestration.local.memory import machine_mib, spark_runs

    settings = Settings(state_dir=tmp_path / "state", broker_port=1, request_timeout_s=1)
    found = DagsterDev(tmp_path / "dagster", settings.environment())
    try:
        found.start()
        assert limits(found) == {"spark": spark_runs(machine_mib(), settings), "hydration": 3}
    finally:
        found.kill()
