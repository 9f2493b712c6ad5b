"""What a promotion needs, gate by gate: with everything it is planned, and without any one of them it is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.operations.context import Context
from orchestration.operations.planning.promote import plan_promote
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.clock import now_ms
from pipelines.model.entries import (
    Entry,
    EvidenceRecorded,
    GenerationStarted,
    InputSpec,
    Opened,
    ReadyRecorded,
    Staged,
    StateSet,
    VerdictRecorded,
)
from pipelines.model.positions import ResultPosition
from tests.operations.builders import (
    NOWHERE,
    POSITION,
    Kafka,
    Log,
    context_of,
    evidence,
    generation,
    spec,
    staged,
    switched,
)

NEW, LIVE = "a.v2", "a.v1"


def verdict(**changes: Any) -> VerdictRecorded:
    said = {"generation": 1, "evidence": "diff-1", "passed": 1, "failed": 0, "errored": 0}
    return VerdictRecorded(release=NEW, upto=NOWHERE, **{**said, **changes})


def compared(**changes: Any) -> EvidenceRecorded:
    return evidence(LIVE, NEW, **changes)


@dataclass(kw_only=True)
class World:
    """All that a promotion of v2, with v1 live, asks for. `name`: what is promoted. `age_ms`: of the evidence."""

    name: str = "a"
    state: Entry = field(default_factory=lambda: StateSet(release=NEW, state="ready"))
    ready: list[Entry] = field(default_factory=lambda: [ReadyRecorded(release=NEW, generation=1)])
    diff: list[EvidenceRecorded] = field(default_factory=lambda: [compared()])
    age_ms: int = 0
    check: list[Entry] = field(default_factory=lambda: [verdict()])
    also: list[Entry] = field(default_factory=list)
    staged: list[Entry] = field(default_factory=lambda: staged(LIVE, NEW))
    running: set[str] = field(default_factory=lambda: {NEW, LIVE})
    lag: int = 0
    max_changed: float | None = 0.6
    gone: str = ""


@pytest.fixture
def promote(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], list[str]]:
    def plan(world: World) -> list[str]:
        def holder(release: Any, *_: Any, **options: Any) -> str | None:
            return "someone" if release.name in world.running else None

        def progress(_: Context, name: str) -> Any:
            return SimpleNamespace(result=ResultPosition(topics={f"{name}.g1": {0: 0}}))

        beat = SimpleNamespace(at_ms=now_ms(), lag_records=world.lag, batch_records=10)
        monkeypatch.setattr("orchestration.operations.reading.held_by", holder)
        monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {NEW: beat, LIVE: beat})
        monkeypatch.setattr("orchestration.operations.context.Context.progress", progress)
        log = Log(*world.staged, *switched(1, None, LIVE), world.state)
        # worlds are made long before their test runs
        diff = [each.model_copy(update={"at_ms": now_ms() - world.age_ms}) for each in world.diff]
        log.entries += [*world.ready, *diff, *world.check, *world.also]
        kafka = Kafka(ids=lambda topics: {topic: "" for topic in topics if topic != world.gone})
        found = plan_promote(context_of(log, kafka), world.name, max_changed=world.max_changed)
        return [type(stage).__name__ for stage in found.stages]

    return plan


def test_with_everything_it_is_planned(promote: Callable[[World], list[str]]) -> None:
    assert promote(World())[-2:] == ["WriteDelta", "AppendSwitch"]


def test_consumers_of_json_are_not_given_avro(promote: Callable[[World], list[str]]) -> None:
    # as an earlier version of Switchyard let it be staged
    avro = '{"type": "record", "name": "trade", "fields": [{"name": "trades", "type": "long"}]}'
    specs = [spec(LIVE, table=False), spec(NEW, table=False, avro=avro)]
    entries: list[Entry] = [e for each in specs for e in (Staged(spec=each), generation(each.release))]
    with pytest.raises(Refused, match=r"the result is JSON in a\.v1 and Avro in a\.v2"):
        promote(World(staged=entries))


def other_input(release: str, topic: str, **changes: Any) -> list[Entry]:
    reads = {"trades": InputSpec(topic=topic, partitions=1, release="up.v1")}
    return [Staged(spec=spec(release, inputs=reads, suite=None, **changes)), generation(release)]


def test_a_live_release_that_reads_another_input_does_not_have_to_run(promote: Callable[[World], list[str]]) -> None:
    """Its input may be deleted, so that it can't. Its end is known: the switch fences it."""
    both = [*other_input(LIVE, "up.v1.g1"), *other_input(NEW, "up.v1.g2")]
    world = World(staged=both, diff=[], running={NEW})
    assert promote(world) == ["Fence", "TakeNewest", "Compare", "WriteDelta", "AppendSwitch"]
    with pytest.raises(Refused, match="it isn't running"):
        promote(replace(world, running=set()))
    streams = [*other_input(LIVE, "up.v1.g1", table=False), *other_input(NEW, "up.v1.g2", table=False)]
    with pytest.raises(Refused, match="would miss records or get them twice"):
        promote(replace(world, staged=streams))


@pytest.mark.parametrize("part", ["g1", "progress"])
def test_nor_do_consumers_leave_it_if_its_end_is_not_known(promote: Callable[[World], list[str]], part: str) -> None:
    both = [*other_input(LIVE, "up.v1.g1"), *other_input(NEW, "up.v1.g2")]
    world = World(staged=both, diff=[], running={NEW}, gone=f"{LIVE}.{part}")
    with pytest.raises(Refused, match=rf"{LIVE}.{part} of {LIVE} is gone"):
        promote(world)


def test_a_release_that_failed_is_refused_with_its_cause_and_what_finds_the_record(
    promote: Callable[[World], list[str]],
) -> None:
    with pytest.raises(Refused) as error:
        promote(
            World(state=StateSet(release=NEW, state="failed", reason="batch 3: ValueError"), ready=[], running={LIVE})
        )
    assert error.value.what == "a.v2 can't be promoted: it failed: batch 3: ValueError"
    assert error.value.fix.startswith("`switchyard bisect a.v2`")
    assert "`switchyard start a.v2 --execute`" in error.value.fix


def test_a_release_is_not_promoted_as_another_version() -> None:
    with pytest.raises(BadUsage, match=r"a\.v2 is version 2, not 1"):
        plan_promote(context_of(Log(*staged(LIVE, NEW))), NEW, version=1)


def under_way(release: str) -> list[Entry]:
    return [Opened(id="reset-9", name="reset", releases=(release,), deadline_ms=2**60)]


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (World(ready=[]), "it hasn't caught up"),
        (World(ready=[ReadyRecorded(release=NEW, generation=2)]), "it hasn't caught up"),
        (World(state=StateSet(release=NEW, state="hydrating")), "its state is hydrating"),
        (World(running={LIVE}), "it isn't running"),
        (World(lag=10_000_000), "behind"),
        (World(check=[]), "its result is not checked"),
        (World(check=[verdict(generation=2)]), "its result is not checked"),
        (World(check=[verdict(failed=1, failures=("volume",))]), "the checks failed: volume"),
        (World(check=[verdict(errored=1, failures=("volume",))]), "the checks failed: volume"),
        (World(check=[verdict(passed=0)]), "none of its checks passed"),
        (World(check=[verdict(evidence="diff-0")]), "it was checked before the last diff"),
        (World(diff=[]), r"it is not compared with a\.v1"),
        (World(diff=[compared(apart=True)]), r"it is not compared with a\.v1"),
        (World(diff=[compared(new_generation=2)]), r"it is not compared with a\.v1"),
        (World(age_ms=700_000), "more than --max-evidence-age"),
        (World(max_changed=0.5), "more than --max-changed"),
        (World(running={NEW}), r"the live release a\.v1 isn't running"),
        (World(also=under_way(NEW)), r"reset-9, .*is under way on a\.v2"),
        (World(also=under_way(LIVE)), r"reset-9, .*is under way on a\.v1"),
        (
            World(
                also=[GenerationStarted(release=LIVE, generation=2, start=POSITION, op="reset-8")],
                diff=[compared(live_generation=2)],
            ),
            "reset-8 has not moved the consumers of a",
        ),
    ],
)
def test_without_one_thing_it_is_refused(promote: Callable[[World], list[str]], world: World, why: str) -> None:
    with pytest.raises(Refused, match=why):
        promote(world)


@pytest.mark.parametrize(
    ("world", "fix"),
    [
        (World(check=[]), "`switchyard reprocess a --version 2 --execute` does what is missing"),
        (
            World(check=[verdict(failed=1, failures=("volume",))]),
            "fix the app, then `switchyard reprocess a [--from FOLDER] --execute`",
        ),
        (World(running={NEW}), "`switchyard start a.v1 --execute`, then promote again"),
        (
            World(running=set(), ready=[], check=[], diff=[]),
            "`switchyard start a.v1 --execute`, then `switchyard reprocess a --version 2 --execute` does what is missing",
        ),
        (
            World(running={NEW}, check=[verdict(failed=1, failures=("volume",))]),
            "`switchyard start a.v1 --execute`, then fix the app, then `switchyard reprocess a [--from FOLDER] --execute`",
        ),
        (
            World(running=set(), max_changed=0.5),
            "`switchyard start a.v1 --execute`, then `switchyard reprocess a --version 2 --execute` does what is missing: "
            "it waits, compares and checks; then look at the differences with `switchyard diff a.v2`",
        ),
        (
            World(running={NEW}, max_changed=0.5),
            "`switchyard start a.v1 --execute`, then look at the differences with `switchyard diff a.v2`; to allow them",
        ),
        (
            World(name=NEW, state=StateSet(release=NEW, state="retired")),
            "`switchyard stage a [--from FOLDER] --execute` makes a new version",
        ),
        (
            World(max_changed=0.5),
            "look at the differences with `switchyard diff a.v2`; to allow them, raise --max-changed",
        ),
    ],
)
def test_a_refusal_names_the_command_that_helps_with_what_is_lacking(
    promote: Callable[[World], list[str]], world: World, fix: str
) -> None:
    with pytest.raises(Refused) as error:
        promote(world)
    assert error.value.fix.startswith(fix)
