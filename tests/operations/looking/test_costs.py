"""What a replay costs, in words."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestration.operations.looking import costs
from orchestration.operations.looking.costs import Rate, as_size, free_bytes, time_of
from pipelines.settings import Settings
from tests.operations.builders import release


def test_a_plan_says_whose_rate_it_goes_by() -> None:
    def said(of: str, *, throttled: bool = False) -> str:
        return time_of(Rate(records_per_s=50.0, of=of, throttled=throttled), release().name, 100)

    assert said(release().name) == "about 2 s at 50 records/s"
    assert said("a.v9") == "about 2 s at 50 records/s, measured on a.v9"
    assert said("a.v9", throttled=True) == "about 2 s at 50 records/s, limited by --max-records-per-batch"
    assert time_of(None, "a.v9", 5) == "duration unknown, because its rate was never measured"
    assert [as_size(n) for n in (5, 2048, 3 << 20, 5 << 30)] == ["5 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]


def test_the_smaller_disk_of_the_store_and_the_embedded_broker_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, store = tmp_path / "state", tmp_path / "store"
    state.mkdir()
    store.mkdir()
    free = {state: 5, store: 9}
    monkeypatch.setattr(costs.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[folder]))
    assert free_bytes(Settings(state_dir=state, store_url=str(store))) == 5
    assert free_bytes(Settings(state_dir=store, store_url=str(state))) == 5
    # the results are on the disks of brokers elsewhere
    assert free_bytes(Settings(state_dir=state, store_url=str(store), bootstrap_servers="k:1")) == 9
    assert free_bytes(Settings(state_dir=state / "not-yet" / "made")) == 5
