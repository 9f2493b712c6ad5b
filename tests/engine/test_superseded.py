"""A driver's entries in the registry count only while it has the release: they don't stop the driver that took over."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from pipelines.engine import boot as engine_boot
from pipelines.engine import goal as engine_goal
from pipelines.engine import tries as engine_tries
from pipelines.engine.boot import Boot
from pipelines.engine.driver import Driver
from pipelines.engine.goal import Goal
from pipelines.engine.lease import this_process
from pipelines.engine.orders import Orders, StopWanted
from pipelines.engine.telemetry import DriverStatus
from pipelines.engine.tries import Tries
from pipelines.engine.watch import PartLost
from pipelines.engine.writer import Superseded
from pipelines.errors import SwitchyardError
from pipelines.model.entries import LeaseTaken, TopicsKnown, WantedSet
from pipelines.model.progress import Boundary, Mark
from pipelines.model.registry import RegistryState
from pipelines.settings import Settings
from pipelines.signals import StopSignal
from tests.operations.builders import NOWHERE, POSITION, Log, context_of, generation, staged

NAME = "a.v1"
WANTED = WantedSet(release=NAME, wanted="running")
LOST = PartLost("topic a.v1.g1 is gone", fix="bring it back")


class Late(Log):
    """A registry as a frozen process knows it: only the first entries, until its step reads the rest."""

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
    made._settings = Settings()
    made._orders = Orders(made._registry, NAME, token, settle=False, signalled=StopSignal())
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


def test_one_whose_batch_fails_for_the_last_time_does_not_fail_its_heir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tries, "checked", lambda *_: None)
    for token, failed in ((2, True), (1, False)):
        log = Log(*staged(NAME), WANTED, taken(1), taken(2))
        made = driver(log, token)
        made._tries = Tries(context_of(log).settings, NAME, made._orders, DriverStatus())
        made._tries._failed = {7: 2}
        error = ValueError("a price below zero")
        query = MagicMock(error=lambda error=error: error, describe_range=lambda _: "trades[0] 0-2")
        query.sink.failure = (7, error)
        with pytest.raises(SwitchyardError, match="a price below zero"):
            made._recover(query)
        assert (log.state().releases[NAME].state == "failed") is failed


def asked_at_the_mark(query: MagicMock, log: Log) -> list[str]:
    """What the release was to do when `query` set its mark; filled when it does."""
    found: list[str] = []
    query.sink.announce.side_effect = lambda **_: found.append(log.state().releases[NAME].wanted)
    return found


def test_one_at_the_end_of_a_bounded_replay_does_not_stop_its_heir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_goal, "steps_to", lambda *_: [])
    second = generation(NAME, 2, until=POSITION, op="reset-1")
    for token, wanted in ((2, "stopped"), (1, "running")):
        log = Log(*staged(NAME), WANTED, second, taken(1), taken(2))
        orders = driver(log, token)._orders
        query = MagicMock()
        query.sink.position = POSITION
        # a driver that dies right after the mark must not run on when it is started again
        at_the_mark = asked_at_the_mark(query, log)
        at_end = Goal(NAME, query, orders, DriverStatus(), started=log.state().releases[NAME].under, batch_records=10)
        mark = Mark(op="reset-1", boundary=Boundary(batch_id=3, position=POSITION), result=NOWHERE)
        with pytest.raises(StopWanted):
            at_end.reach(mark)
        query.sink.announce.assert_called_once_with(reached="reset-1")
        assert at_the_mark == [log.state().releases[NAME].wanted] == [wanted]


def test_one_that_finds_a_topic_made_anew_does_not_tell_its_heir_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for token, told in ((2, True), (1, False)):
        log = Log(*staged(NAME), taken(1), taken(2))
        monkeypatch.setattr(engine_boot, "Registry", lambda *_, log=log, **__: nullcontext(log))
        made = Boot.__new__(Boot)
        made._settings, made._registry = context_of(log).settings, cast(Any, log)
        made._orders, cast(Any, log).actor = driver(log, token)._orders, "a driver"
        found = TopicsKnown(release=NAME, generation=1, own={"a.v1.dead": "id-2"})
        made._topics_made(found)
        assert any(isinstance(entry, TopicsKnown) for entry in log.entries) is told


def test_a_driver_creates_nothing_any_more_when_it_says_that_its_lease_has_ended() -> None:
    log = Log(*staged(NAME), taken(1))
    made, closed = driver(log, 1), list[bool]()
    made._orders.watch = MagicMock(close=lambda: closed.append(log.state().releases[NAME].lease_ended))
    made._end_lease()
    assert closed == [False] and log.state().releases[NAME].lease_ended
