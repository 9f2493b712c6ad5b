"""With executors on other hosts, a batch that has failed runs again as it was planned: tasks of the first try may be left."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.query import PlanStands, Query
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings
from tests.engine.test_checkpoint import INPUTS, RELEASE, commit, plan

PLANNED = {"trades": {0: 15, 1: 16}, "quotes": {0: 17}}
ELSEWHERE = {"bootstrap_servers": "k:1", "spark_master": "spark://k:7077", "store_url": "/store", "store_shared": True}


def position(first: int) -> SourcePosition:
    return SourcePosition(sources={**PLANNED, "trades": {0: first, 1: 16}})


def query(folder: Path, tried: int, **settings: Any) -> Query:
    """A query that has committed batch 0. Spark has planned batch 1, and this driver has tried all up to `tried`."""
    checkpoint = Checkpoint(folder, INPUTS, RELEASE)
    plan(checkpoint, 0, {"trades": {0: 5, 1: 6}}, {"quotes": {0: 7}}, watermark_ms=0)
    commit(checkpoint, 0, next_watermark_ms=1_000)
    plan(checkpoint, 1, {"trades": {0: 15, 1: 16}}, {"quotes": {0: 17}}, watermark_ms=1_000)
    spec = MagicMock()
    spec.release = RELEASE
    found = Query(Settings(**settings), MagicMock(), spec, MagicMock(), checkpoint, MagicMock(), lambda: None)
    found.sink.tried = tried
    found.sink.look_again = MagicMock()  # type: ignore[method-assign]
    found._first = MagicMock()
    found._portion = lambda *_: position(9)
    return found


def end_of_first_portion(made: Query) -> SourcePosition:
    made._plan_first_portion()
    return made._checkpoint.position(made._checkpoint.planned(1))


@pytest.mark.parametrize("tried", [-1, 0])
def test_a_batch_that_did_not_run_gets_another_end(tmp_path: Path, tried: int) -> None:
    assert end_of_first_portion(query(tmp_path, tried, **ELSEWHERE)) == position(9)
    assert query(tmp_path, tried, **ELSEWHERE)._plan_to(position(12)) == 1


def test_one_that_has_failed_keeps_its_plan_if_executors_are_elsewhere(tmp_path: Path) -> None:
    assert end_of_first_portion(query(tmp_path / "there", 1, **ELSEWHERE)) == position(15)
    # all tasks of a local driver have ended with the batch
    assert end_of_first_portion(query(tmp_path / "here", 1)) == position(9)


def test_one_that_has_failed_can_be_run_to_no_other_end_by_this_driver(tmp_path: Path) -> None:
    made = query(tmp_path, 1, **ELSEWHERE)
    assert made._plan_to(position(15)) == 1
    # a partition that a target does not name stays where it is: behind the plan
    for other in (position(12), position(20), SourcePosition(sources={"trades": {0: 15, 1: 16}})):
        with pytest.raises(
            PlanStands, match=f"batch 1 of {RELEASE} has failed, and executors may still run it"
        ) as caught:
            made._plan_to(other)
        assert f"switchyard start {RELEASE} --execute" in str(caught.value.fix)
    assert made._checkpoint.position(made._checkpoint.planned(1)) == position(15)
