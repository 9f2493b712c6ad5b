"""A release whose input no longer begins where the live one's did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from orchestration.operations.context import Context
from orchestration.operations.release import _same_start
from pipelines.errors import Refused
from pipelines.model.positions import ResultPosition, SourcePosition
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
