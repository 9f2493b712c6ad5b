"""What keeps a release from being ready: an input that begins later than the live one's did, more late rows dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from orchestration.operations.context import Context
from orchestration.operations.release import _hydration, _late_drops, _same_start
from pipelines.engine.driver import _behind
from pipelines.errors import Refused, SwitchyardError
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Counts, Heartbeat
from pipelines.model.registry import RegistryState, Release, Switch
from tests.operations.builders import release

NOWHERE = ResultPosition(topics={})


def at(offset: int) -> SourcePosition:
    return SourcePosition(sources={"trades": {0: offset}})


def said_of(candidate: Release) -> list[str]:
    first = Switch(
        number=1, old=None, old_generation=None, old_end=None, new="a.v1", new_generation=1, new_start=NOWHERE
    )
    live = release("a.v1", state="live", start=at(0))
    state = RegistryState(releases={"a.v1": live, candidate.name: candidate}, chains={"a": (first,)})
    said: list[str] = []
    _same_start(cast(Context, SimpleNamespace(say=said.append)), state, candidate)
    return said


def test_the_same_history_is_nothing_to_speak_of() -> None:
    assert said_of(release("a.v2", start=at(0))) == []


def test_a_history_that_retention_has_cut_is_refused_with_the_way_out() -> None:
    with pytest.raises(Refused, match=r"cut the history of a\.v2: trades\[0\] begins at 7, .* from 0") as error:
        said_of(release("a.v2", start=at(7)))
    assert "--correction REASON" in error.value.fix


def test_a_correction_accepts_it_and_says_so() -> None:
    [said] = said_of(release("a.v2", start=at(7), correction="only this year counts"))
    assert "begins at 7" in said and "only this year counts" in said


def dropped(mine: int, lives: int) -> None:
    first = Switch(
        number=1, old=None, old_generation=None, old_end=None, new="a.v1", new_generation=1, new_start=NOWHERE
    )
    live, candidate = release("a.v1", state="live"), release("a.v2")
    state = RegistryState(releases={"a.v1": live, "a.v2": candidate}, chains={"a": (first,)})
    known = {name: SimpleNamespace(total=Counts(late_dropped=n)) for name, n in (("a.v1", lives), ("a.v2", mine))}
    _late_drops(cast(Context, SimpleNamespace(progress=known.get)), state, candidate)


def test_a_release_that_dropped_more_than_the_live_one_is_not_ready() -> None:
    dropped(mine=0, lives=0)
    dropped(mine=3, lives=3)
    with pytest.raises(SwitchyardError, match=r"a\.v2 dropped 4 late rows, a\.v1 dropped 3") as error:
        dropped(mine=4, lives=3)
    assert "SWITCHYARD_MAX_RECORDS_PER_BATCH" in error.value.fix


def test_what_a_batch_from_before_a_restart_left_behind_is_the_distance_to_the_end() -> None:
    source = {"latestOffset": {"trades": {"0": 90, "1": 40}}, "endOffset": {"trades": {"0": 50, "1": 40}}}
    assert _behind({"sources": [source]}) == 40
    assert _behind({"sources": [source, {**source, "latestOffset": None}]}) is None
    assert _behind({}) is None

    def beat(behind: int | None) -> Heartbeat:
        return Heartbeat(release="a.v1", generation=1, token=1, host="h", pid=1, at_ms=1, state="running",
                         batch_id=3, lag_records=66_000, behind_records=behind)  # fmt: skip

    assert _hydration(release("a.v1"), beat(0)).behind_records == 0
    assert _hydration(release("a.v1"), beat(None)).behind_records == 66_000
