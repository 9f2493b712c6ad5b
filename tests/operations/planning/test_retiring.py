"""What a retirement deletes: all that is the release's own, and nothing that another one needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.plans.stages.releases import DeleteFiles, DeleteGroup, DeleteTopic
from pipelines.errors import Refused
from pipelines.model.entries import DeltaSegment, Entry, FollowerRegistered, InputSpec, Opened, Staged, StateSet
from pipelines.settings import Settings
from tests.operations.builders import Kafka, Log, context_of, evidence, generation, spec, staged, switched

DIGEST = spec("a.v1").code_digest


def files(*entries: Entry) -> DeleteFiles:
    """Of the plan to retire a.v1, the stage that deletes files."""
    [found] = [s for s in plan_retire(context_of(Log(*entries)), "a.v1").stages if isinstance(s, DeleteFiles)]
    return found


@pytest.mark.parametrize("other", ["a.v2", "b.v1"])
def test_code_that_another_release_runs_stays(other: str) -> None:
    assert files(*staged("a.v1", other)).code_digest is None


def test_code_that_no_other_release_runs_goes() -> None:
    assert files(*staged("a.v1"), Staged(spec=spec("a.v2", code_digest="1" * 64))).code_digest == DIGEST
    assert files(*staged("a.v1", "a.v2"), StateSet(release="a.v2", state="retired")).code_digest == DIGEST


BACK = [*switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2"), *switched(3, "a.v2", "a.v1")]


@pytest.mark.parametrize(
    ("entries", "way"),
    [
        (
            [*staged("a.v1"), *switched(1, None, "a.v1")],
            "move its consumers first: change the app, then `switchyard reprocess a [--from FOLDER] --execute`",
        ),
        (
            [*staged("a.v1", "a.v2"), *switched(1, None, "a.v1")],
            "move its consumers first: `switchyard promote a.v2 --execute`",
        ),
        ([*staged("a.v1", "a.v2"), *BACK], "move its consumers first: `switchyard rollback a --execute`"),
        (
            [*staged("a.v1", "a.v2", "a.v3"), *BACK],
            "move its consumers first: `switchyard promote a.v3 --execute` or `switchyard rollback a --execute`",
        ),
        (
            [*staged("a.v1", "a.v2"), *BACK, StateSet(release="a.v2", state="retired")],
            "move its consumers first: change the app, then `switchyard reprocess a [--from FOLDER] --execute`",
        ),
    ],
)
def test_a_live_release_stays_and_the_way_off_it_is_one_that_exists(entries: list[Entry], way: str) -> None:
    with pytest.raises(Refused, match=r"a\.v1 is live") as refused:
        plan_retire(context_of(Log(*entries)), "a.v1")
    assert refused.value.fix.partition(" stages it")[0] == way


def reader(release: str | None = "a.v1", **changes: Any) -> list[Entry]:
    """b.v1, which reads a.v1's result and is live; its code names the app, or only the topic."""
    inputs = {"counts": InputSpec(topic="a.v1.g1", partitions=1, release=release)}
    return [Staged(spec=spec("b.v1", inputs=inputs, **changes)), generation("b.v1"), *switched(1, None, "b.v1")]


LEFT = [*switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2")]
LIVE = "b.v1 is live, so move its consumers first: "


@pytest.mark.parametrize(
    ("entries", "way"),
    [
        (
            [*LEFT, *reader()],
            f"{LIVE}`switchyard reprocess b --same-as b.v1 --execute` reads a.v2; then `switchyard retire b.v1 --execute`",
        ),
        # another version of b would read it again
        (
            [*LEFT, *reader(release=None)],
            f"{LIVE}change b so that it does not read a.v1, then `switchyard reprocess b --execute`; "
            "then `switchyard retire b.v1 --execute`",
        ),
        (
            reader(),
            f"{LIVE}change b so that it does not read a.v1, then `switchyard reprocess b --execute`; "
            "then `switchyard retire b.v1 --execute`",
        ),
        (
            [*LEFT, *reader(table=False)],
            "keep it: b.v1 is live, and the consumers of its stream can't move to another input",
        ),
        (
            [
                *LEFT,
                *reader(),
                StateSet(release="b.v1", state="standby"),
                *staged("b.v2"),
                *switched(2, "b.v1", "b.v2"),
            ],
            "retire each release that reads it first: `switchyard retire b.v1 --execute`",
        ),
    ],
)
def test_a_reader_that_is_live_is_not_said_to_be_retired(entries: list[Entry], way: str) -> None:
    with pytest.raises(Refused, match=r"a\.v1 is still needed by b\.v1") as refused:
        plan_retire(context_of(Log(*staged("a.v1", "a.v2"), *entries)), "a.v1")
    assert refused.value.fix == way


def test_what_is_gone_is_not_said_to_come_back_under_its_name() -> None:
    [warning] = plan_retire(context_of(Log(*staged("a.v1"))), "a.v1").warnings
    assert warning == (
        "this can't be undone; `switchyard stage a --from FOLDER --execute` stages its code as a new version"
    )


def test_a_retire_deletes_only_what_the_release_owns() -> None:
    segment = DeltaSegment(topic="a.delta.diff-1", start=0, end=1)
    foreign = DeltaSegment(topic="a.delta.diff-2", start=0, end=1)
    log = Log(*staged("a.v1", "a.v2", "a.v11"), generation("a.v1", 2), evidence("a.v1", "a.v2", forward=segment),
              evidence("a.v2", "a.v11", id="diff-2", forward=foreign))  # fmt: skip
    plan = plan_retire(context_of(log), "a.v1")
    topics = {s.name for s in plan.stages if isinstance(s, DeleteTopic)}
    assert topics == {"a.v1.g1", "a.v1.g2", "a.v1.progress", "a.v1.dead-letters", "a.delta.diff-1"}
    forged = evidence("a.v1", "a.v2", id="diff-3", forward=DeltaSegment(topic="switchyard.registry", start=0, end=1))
    log.entries.append(forged)
    assert {s.name for s in plan_retire(context_of(log), "a.v1").stages if isinstance(s, DeleteTopic)} == topics
    assert [s.group for s in plan.stages if isinstance(s, DeleteGroup)] == ["a.v1"]
    assert files(*log.entries).evidence == ("diff-1", "diff-3")


# -- what an interrupted retirement left

RETIRED = [
    *staged("a.v1"), Staged(spec=spec("a.v2", code_digest="1" * 64)),
    evidence("a.v1", "a.v2", forward=DeltaSegment(topic="a.delta.diff-1", start=0, end=1)),
    StateSet(release="a.v1", state="retired"),
]  # fmt: skip


def retired_again(state_dir: Path, *also: Entry, topic: str | None = None) -> DeleteFiles:
    """What is left to delete of the files of a.v1, which is retired. `topic`: one that is there."""
    context = context_of(Log(*RETIRED, *also), Kafka(names={topic} if topic else frozenset()))
    plan = plan_retire(replace(context, settings=Settings(state_dir=state_dir)), "a.v1")
    [found] = [s for s in plan.stages if isinstance(s, DeleteFiles)]
    return found


@pytest.mark.parametrize(
    "left", ["checkpoints/a.v1", "run/a.v1", "evidence/diff-1", f"code/{DIGEST}.zip", "checkpoints/a.v1/g1.t1/state"]
)
def test_what_a_killed_retirement_left_is_deleted_by_the_next(tmp_path: Path, left: str) -> None:
    (tmp_path / left).mkdir(parents=True)
    found = retired_again(tmp_path, FollowerRegistered(alias="a", group="new"))
    assert (found.code_digest, found.evidence) == (DIGEST, ("diff-1",))


@pytest.mark.parametrize("topic", ["a.v1.g1", "a.v1.progress", "a.delta.diff-1"])
def test_so_is_a_topic_that_it_left(tmp_path: Path, topic: str) -> None:
    assert retired_again(tmp_path, topic=topic).release == "a.v1"


def test_when_nothing_is_left_it_says_so(tmp_path: Path) -> None:
    for other in ("code", "checkpoints/a.v2", "run/a.v2", "evidence/diff-2"):
        (tmp_path / other).mkdir(parents=True)
    with pytest.raises(Refused, match=r"a\.v1 is already retired") as refused:
        retired_again(tmp_path, topic="a.v2.g1")
    assert refused.value.fix == "nothing is left to do; see `switchyard log a.v1`"


def test_while_it_can_be_resumed_it_is_not_said_to_be_over(tmp_path: Path) -> None:
    opened = Opened(id="retire-1", name="retire", releases=("a.v1",), deadline_ms=2**60)
    with pytest.raises(Refused, match=r"retire-1, .* is under way on a\.v1") as refused:
        retired_again(tmp_path, opened)
    assert "`switchyard resume retire-1`" in refused.value.fix
