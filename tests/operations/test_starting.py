"""The state that a release starts with and is left with, by what consumers have followed."""

from __future__ import annotations

import pytest

from orchestration.operations.apply import left_by_consumers, starting_state
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import RegistryState, StateSet, Switch
from tests.operations.builders import release

NAMES = ("a.v1", "a.v2", "a.v3")
NOWHERE = ResultPosition(topics={})


def switch(number: int, old: str | None, new: str) -> Switch:
    return Switch(number=number, old=old, old_generation=1 if old else None, old_end=NOWHERE if old else None,
                  new=new, new_generation=1, new_start=NOWHERE)  # fmt: skip


@pytest.mark.parametrize(("name", "state"), [("a.v1", "standby"), ("a.v2", "live"), ("a.v3", "hydrating")])
def test_a_release_that_failed_is_again_what_consumers_know_it_as(name: str, state: str) -> None:
    releases = {each: release(each, state="failed") for each in NAMES}
    known = RegistryState(releases=releases, chains={"a": (switch(1, None, "a.v1"), switch(2, "a.v1", "a.v2"))})
    assert starting_state(known, releases[name]) == state


def test_a_release_that_failed_says_so_when_consumers_have_left_it() -> None:
    assert left_by_consumers(release("a.v2", state="live")) == [StateSet(release="a.v2", state="standby")]
    assert left_by_consumers(release("a.v2", state="failed")) == []
