"""What is shown is shown after operations past their deadline have been ended, by whoever looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.commands import overview
from orchestration.launchers.local import LocalLauncher
from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.releases import Want
from orchestration.operations.supervising.overview import audit, open_operations, statuses, statuses_in_outage
from pipelines.errors import Refused, Unavailable
from pipelines.kafka.clock import now_ms
from pipelines.kafka.registry import Decide, Registry
from pipelines.model.entries import Closed, Entry, MarkOrdered, Opened, SwitchAborted
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import RegistryState, fold
from pipelines.settings import Settings
from tests.operations.builders import Log, context_of, evidence, staged, switched

HOUR_MS = 3_600_000
LOOKS: list[Callable[[Context], object]] = [statuses, open_operations, lambda context: list(audit(context))]


class FakeRegistry:
    """A registry of entries in memory. `error`: what a step raises that would write."""

    kept = None
    knows_time = True

    def __init__(self, entries: Sequence[Entry], error: Exception | None = None) -> None:
        self.entries = list(entries)
        self.error = error
        self.written: list[Any] = []

    @property
    def known(self) -> RegistryState:
        return fold(RegistryState(), self.entries)

    def now_ms(self) -> int:
        return now_ms()

    def state(self) -> RegistryState:
        return self.known

    def history(self) -> Iterator[Entry]:
        return iter(self.entries)

    def step(self, decide: Decide, *, op: str | None = None, reason: str | None = None) -> RegistryState:
        entries = list(decide(self.known))
        if self.error is not None:
            raise self.error
        self.entries += entries
        self.written += entries
        return self.known


def context(registry: FakeRegistry, said: list[str]) -> Context:
    settings = Settings()
    return Context(
        settings=settings, registry=cast(Registry, registry), launcher=LocalLauncher(settings), say=said.append
    )


def promotion(deadline_ms: int) -> list[Entry]:
    """A switch under way, of releases that need not be there."""
    opened = Opened(id="promote-1", name="promote", releases=("a.v2",), alias="a", deadline_ms=deadline_ms)
    return [
        opened,
        MarkOrdered(id="promote-1", op="promote-1", release="a.v1", past=SourcePosition(sources={}), switch=2, alias="a",
                    deadline_ms=deadline_ms),
    ]  # fmt: skip


@pytest.mark.parametrize("look", LOOKS, ids=["status", "operations", "log"])
def test_whoever_looks_writes_the_abort_of_a_switch_past_its_deadline(look: Callable[[Context], object]) -> None:
    registry, said = FakeRegistry(promotion(now_ms() - 1)), list[str]()
    look(context(registry, said))
    assert [entry.kind for entry in registry.written] == ["switch-aborted", "closed"]
    assert registry.known.operations["promote-1"].aborted
    look(context(registry, said))
    assert len(registry.written) == 2 and not said


@pytest.mark.parametrize("look", LOOKS, ids=["status", "operations", "log"])
def test_looking_at_what_has_time_left_writes_nothing(look: Callable[[Context], object]) -> None:
    # it would raise if a step were begun at all: that makes a writer, which fences whoever is in a step
    registry = FakeRegistry(promotion(now_ms() + HOUR_MS), error=AssertionError("a step"))
    look(context(registry, []))
    assert not registry.written


def test_the_log_shows_what_it_has_ended() -> None:
    registry = FakeRegistry(promotion(now_ms() - 1))
    assert [type(entry) for entry in audit(context(registry, []), "promote-1")][-2:] == [SwitchAborted, Closed]


@pytest.mark.parametrize("look", LOOKS, ids=["status", "operations", "log"])
def test_a_user_who_may_only_read_is_shown_it_and_told(look: Callable[[Context], object]) -> None:
    refused = Refused("Kafka refuses: not authorized", fix="ask for the ACL")
    registry, said = FakeRegistry(promotion(now_ms() - 1), error=refused), list[str]()
    look(context(registry, said))
    assert len(said) == 1 and "past its deadline" in said[0] and "not authorized" in said[0]


def test_an_outage_is_not_taken_for_that() -> None:
    registry = FakeRegistry(promotion(now_ms() - 1), error=Unavailable("gone"))
    with pytest.raises(Unavailable):
        statuses(context(registry, []))


def test_a_diff_that_is_resumed_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened = Opened(id="diff-1", name="diff", releases=("a.v2", "a.v1"), deadline_ms=2**60)
    log = Log(*staged("a.v1", "a.v2"), opened)

    def carried_out(*_: object, **__: object) -> None:
        log.entries.append(evidence("a.v1", "a.v2"))

    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context_of(log))
    monkeypatch.setattr(overview, "run_plan", carried_out)
    overview.resume("diff-1")
    shown = capsys.readouterr().out
    assert all(f"{name} " in shown for name in ("only in a.v1", "only in a.v2", "changed", "identical"))


def test_the_log_says_what_was_asked_and_of_an_operation_shows_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(id="reset-1", operation=Kind.RESET, releases=("a.v1",), stages=(Want(release="a.v1", wanted="stopped"),),
                facts={"asked": "--to-earliest"}, warnings=("what is cleared is gone",))  # fmt: skip
    opened = Opened(id=plan.id, name="reset", releases=plan.releases, deadline_ms=2**60, plan=plan.for_journal())
    log = Log(*staged("a.v1", "a.v2"), opened, Closed(id=plan.id, outcome="done", op=plan.id))
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context_of(log))
    monkeypatch.setenv("COLUMNS", "200")
    overview.log(limit=50)
    whole = capsys.readouterr().out
    assert "opened reset-1: --to-earliest" in whole and "ask a.v1 to stop" not in whole
    # the entry that has the plan is not among those shown
    overview.log(plan.id, limit=1)
    shown = capsys.readouterr().out
    assert "ask a.v1 to stop" in shown and "note: what is cleared is gone" in shown and "reset-1 ended: done" in shown
    assert "opened" not in shown
    # the trail outlives the version that wrote it
    for stages in ([{"stage": "Teleport"}], [{"stage": "Want", "release": "a.v1", "wanted": "dancing"}]):
        opened = opened.model_copy(update={"plan": {**opened.plan, "stages": stages}})
        log.entries[-2] = opened
        overview.log(plan.id, limit=1)
        shown = capsys.readouterr().out
        assert "another version of Switchyard" in shown and "reset-1 ended: done" in shown


def test_who_abandons_an_operation_is_told_what_it_leaves_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Opened(id="reset-1", name="reset", releases=("a.v1",), deadline_ms=2**60)
    left = [SimpleNamespace(release=SimpleNamespace(name=n), notes=[f"left of {n}"]) for n in ("a.v1", "a.v2")]
    log = Log(*staged("a.v1", "a.v2"), opened)
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context_of(log))
    monkeypatch.setattr("orchestration.operations.execute.abandon", lambda *_, **__: None)
    monkeypatch.setattr("orchestration.operations.supervising.overview.statuses", lambda _: left)
    overview.abandon("reset-1")
    # of its own releases alone
    assert capsys.readouterr().out == "reset-1 is abandoned\n  a.v1: left of a.v1\n"


def test_the_registry_is_shown_though_nothing_is_known_of_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"))
    outage = Unavailable("the leader of the heartbeats is dead", fix="start the brokers")

    def unreached(**_: Any) -> Any:
        raise outage

    found, error = statuses_in_outage(context_of(log))
    assert error is None and [each.health for each in found] == ["stopped", "stopped"]
    monkeypatch.setattr(log.heartbeats, "latest", unreached)
    found, error = statuses_in_outage(context_of(log))
    assert error is outage
    assert [(each.release.name, each.health, each.live) for each in found] == [
        ("a.v1", "unknown", True),
        ("a.v2", "unknown", False),
    ]
