"""Who can reach the UI, and what can be done there: as `make ui` starts it, and with READ_ONLY=1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.defs.names import partitions_name
from pipelines.settings import Settings
from tests.defs.dev import _ADD_PARTITION, _SELECTOR, DagsterDev
from tests.shared.sockets import is_local, listening

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

DEV, READ_ONLY = (), ("--read-only",)


@pytest.fixture(params=[DEV, READ_ONLY], ids=["dev", "read-only"])
def ui(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DagsterDev]:
    """Without a broker: there is nothing to run, and a UI all the same."""
    settings = Settings(state_dir=tmp_path / "state", broker_port=1, request_timeout_s=1)
    found = DagsterDev(tmp_path / "dagster", settings.environment(), request.param)
    found.start()
    yield found
    found.kill()


def test_dagster_listens_on_this_machine_only_and_read_only_changes_nothing(
    ui: DagsterDev, request: pytest.FixtureRequest
) -> None:
    sockets = {pid: listening(pid) for pid in ui.processes()}
    reached = {each for found in sockets.values() for each in found}
    assert int(ui.url.rpartition(":")[2]) in {port for _, port in reached}
    assert all(is_local(address) for address, _ in reached), sockets

    read_only = request.node.callspec.id == "read-only"
    may = {each["permission"]: each["value"] for each in ui.ask("{ permissions { permission value } }")["permissions"]}
    assert len(may) > 10 and any(may.values()) is not read_only
    # not the buttons alone: the server refuses
    add = {"selector": _SELECTOR, "name": partitions_name("stock-stats"), "key": "stock-stats.v1"}
    answer = ui.ask(_ADD_PARTITION, **add)["addDynamicPartition"]["__typename"]
    assert (answer == "UnauthorizedError") is read_only, answer
