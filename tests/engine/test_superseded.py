"""What a driver enters in the registry counts only while it has the release: its heir is not stopped by it."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from pipelines.engine.driver import Driver
from pipelines.engine.lease import this_process
from pipelines.engine.orders import Orders
from pipelines.engine.watch import PartLost
from pipelines.engine.writer import Superseded
from pipelines.model.registry import LeaseTaken, RegistryState, StateSet, WantedSet
from tests.operations.builders import Log, context_of, staged

NAME = "a.v1"
LOST = PartLost("topic a.v1.g1 is gone", fix="bring it back")


class Late(Log):
    """A registry of which a process that froze knows only the first entries, until its step reads on."""

    def __init__(self, *entries: Any, known: int) -> None:
        super().__init__(*entries)
        self.seen = known

    @property
    def known(self) -> RegistryState:
        return Log(*self.entries[: self.seen]).state()

    def step(self, decide: Any, **about: Any) -> RegistryState:
        self.seen = len(self.entries)
        return super().step(decide, **about)


def taken(token: int) -> LeaseTaken:
    return LeaseTaken(release=NAME, token=token, holder=this_process(context_of(Log()).settings))


def driver(log: Log, token: int) -> Driver:
    made = Driver.__new__(Driver)
    made._name, made._token, made._registry = NAME, token, cast(Any, log)
    made._orders = Orders(made._registry, NAME, token, settle=False, signalled=threading.Event())
    return made


def test_a_driver_that_has_lost_a_part_says_that_its_release_has_failed() -> None:
    log = Log(*staged(NAME), taken(1))
    driver(log, 1)._tell_lost(LOST)
    assert log.state().releases[NAME].state == "failed"
    assert "is gone; bring it back" in (log.state().releases[NAME].failure or "")


def test_one_that_knows_of_its_heir_enters_nothing() -> None:
    log = Log(*staged(NAME), taken(1), taken(2))
    with pytest.raises(Superseded):
        driver(log, 1)._tell_lost(LOST)
    assert log.state().releases[NAME].state == "staged"


def test_nor_does_one_that_learns_of_it_by_the_step_itself() -> None:
    entries = [*staged(NAME), taken(1), taken(2)]
    log = Late(*entries, known=len(entries) - 1)
    driver(log, 1)._tell_lost(LOST)
    assert log.entries == entries
    assert log.state().releases[NAME].state == "staged"


def test_one_whose_batch_fails_again_and_again_does_not_fail_its_heir() -> None:
    log = Log(*staged(NAME), taken(1), taken(2))
    made = driver(log, 1)
    made._orders.enter(StateSet(release=NAME, state="failed"), "batch 7 fails")
    made._orders.enter(WantedSet(release=NAME, wanted="stopped"), "the replay is at its end")
    assert log.state().releases[NAME].state == "staged"
    assert log.state().releases[NAME].wanted == Log(*staged(NAME)).state().releases[NAME].wanted
