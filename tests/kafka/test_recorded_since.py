"""How far back the records of progress are read for a checkpoint that is older than the result."""

from __future__ import annotations

import pytest

from pipelines.kafka import progress
from pipelines.settings import Settings
from tests.model.test_recorded import record

BATCHES = [record(number, 10 * number, rows_in=10) for number in range(50)]


@pytest.mark.parametrize(("since", "read"), [(48, [4]), (45, [4, 40]), (2, [4, 40, 45])])
def test_only_as_many_are_read_as_it_takes(monkeypatch: pytest.MonkeyPatch, since: int, read: list[int]) -> None:
    asked = []

    def tail(_: Settings, release: str, records: int) -> list[bytes]:
        asked.append(records)
        return [each.model_dump_json().encode() for each in BATCHES[-records:]]

    monkeypatch.setattr(progress, "_tail", tail)
    monkeypatch.setattr(progress, "read_progress", progress.Progress.model_validate_json)
    monkeypatch.setattr(progress, "_FEW", 4)
    monkeypatch.setattr(progress, "_MOST", 45)
    found = progress.recorded_since(Settings(), "sums.v1", 1, since)
    assert list(found) == list(range(max(since, 5), 50)) and asked == read


def test_a_release_without_progress_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_tail", lambda *_: [])
    assert progress.recorded_since(Settings(), "sums.v1", 1, 0) == {}
