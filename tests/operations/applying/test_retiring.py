"""A retirement asks again, in the very steps that end the release, whether anyone needs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from orchestration.local.process import ProcessRef
from orchestration.operations.applying import releases
from orchestration.operations.applying.applier import Applier
from orchestration.operations.lifecycle import owned_topics
from orchestration.operations.looking import in_use
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import DeleteCheckpoint, Tombstone
from orchestration.operations.plans.stages.releases import (
    AwaitStopped,
    DeleteFiles,
    DeleteGroup,
    DeleteTopic,
    SetState,
    Want,
)
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.clock import now_ms
from pipelines.kafka.offsets import GroupInUse
from pipelines.model.entries import (
    Entry,
    FollowerRegistered,
    Holder,
    InputSpec,
    LeaseEnded,
    LeaseTaken,
    Staged,
    StateSet,
    WantedSet,
)
from pipelines.model.registry import RegistryState, fold
from tests.operations.builders import Kafka, Log, context_of, evidence, generation, spec, staged, switched

STOP = Want(release="a.v1", wanted="stopped")
RETIRE = SetState(release="a.v1", state="retired")
READY: list[Entry] = [*staged("a.v1", "a.v2"), WantedSet(release="a.v1", wanted="running")]
RETIRED: list[Entry] = [*READY, StateSet(release="a.v1", state="retired")]


def applied(stage: Stage, *entries: Entry, operation: Kind = Kind.RETIRE) -> list[Entry]:
    """What the stage enters where the registry says `entries`."""
    log = Log(*entries)
    Applier(context_of(log), Plan(id="op-1", operation=operation, releases=("a.v1",), stages=(stage,))).apply(stage)
    return log.entries[len(entries) :]


@pytest.mark.parametrize("stage", [STOP, RETIRE])
def test_a_release_that_went_live_since_the_plan_is_neither_stopped_nor_retired(stage: Stage) -> None:
    with pytest.raises(Refused, match=r"a\.v1 is live") as error:
        applied(stage, *READY, *switched(1, None, "a.v1"))
    assert "`switchyard promote a.v2 --execute`" in error.value.fix


@pytest.mark.parametrize("stage", [STOP, RETIRE])
def test_nor_is_one_that_a_follower_came_to_need(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "committed_number", lambda *_: 1)
    left = [*READY, *switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2")]
    with pytest.raises(Refused, match=r"a\.v1 is still needed by follower late\n.*forget-follower a GROUP"):
        applied(stage, *left, FollowerRegistered(alias="a", group="late"))


def test_a_follower_that_has_committed_nothing_yet_needs_the_way_to_the_live_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_use, "committed_number", lambda *_: None)
    left = [*READY, *switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2")]
    with pytest.raises(Refused, match=r"a\.v1 is still needed by follower new"):
        applied(RETIRE, *left, FollowerRegistered(alias="a", group="new"))


@pytest.mark.parametrize(("at", "needed"), [(1, True), (2, True), (3, True), (4, False)])
def test_of_a_release_that_was_left_twice_the_last_time_counts(
    monkeypatch: pytest.MonkeyPatch, at: int, needed: bool
) -> None:
    monkeypatch.setattr(in_use, "committed_number", lambda *_: at)
    there_and_back = [*switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2"), *switched(3, "a.v2", "a.v1")]
    log = Log(*READY, *there_and_back, *switched(4, "a.v1", "a.v2"), FollowerRegistered(alias="a", group="late"))
    with pytest.raises(Refused, match=r"a\.v1 is still needed by follower late") if needed else nullcontext():
        in_use.refuse_needed(context_of(log), log.known, log.known.releases["a.v1"])


@pytest.mark.parametrize("topic", ["a.v1.g1", "a.v1.g2"])
def test_a_reader_of_any_generation_still_needs_the_release(topic: str) -> None:
    reader = spec("b.v1", inputs={"counts": InputSpec(topic=topic, partitions=1)})
    with pytest.raises(Refused, match=r"a\.v1 is still needed by b\.v1\n.*`switchyard retire b\.v1 --execute`"):
        applied(RETIRE, *READY, generation("a.v1", 2), Staged(spec=reader))


def test_one_that_nobody_needs_is_stopped_and_retired() -> None:
    left = [*READY, *switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2")]
    assert [type(entry) for entry in applied(STOP, *left)] == [WantedSet]
    assert [type(entry) for entry in applied(RETIRE, *left)] == [StateSet]


def test_the_rest_of_a_retired_one_goes_whoever_came_since() -> None:
    gone = [*READY, *switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2"), StateSet(release="a.v1", state="retired")]
    late = FollowerRegistered(alias="a", group="late")
    assert [type(entry) for entry in applied(STOP, *gone, late)] == [WantedSet]
    assert applied(RETIRE, *gone, late) == []


def test_the_live_release_may_be_stopped_all_the_same() -> None:
    assert [type(entry) for entry in applied(STOP, *READY, *switched(1, None, "a.v1"), operation=Kind.STOP)] == [
        WantedSet
    ]


STOPPED = AwaitStopped(release="a.v1", timeout_s=9)


def stopping(
    monkeypatch: pytest.MonkeyPatch, processes: Callable[[], list[int]], operation: Kind = Kind.RETIRE
) -> list[float]:
    """Waits for the end of `a.v1`, whose driver is not heard. `processes`: what still runs. Returns how long it waited."""
    waited: list[float] = []
    monkeypatch.setattr(releases, "processes_of", lambda *_: [ProcessRef(pid=p, started="1") for p in processes()])
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    context = context_of(Log(*READY), sleep=waited.append, monotonic=lambda: sum(waited))
    Applier(context, Plan(id="op-1", operation=operation, releases=("a.v1",), stages=(STOPPED,))).apply(STOPPED)
    return waited


def test_a_release_is_retired_when_all_its_processes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that froze has stopped to others; one that was killed leaves its JVM behind for a moment."""
    left = [[7, 8], [8], []]
    assert len(stopping(monkeypatch, lambda: left.pop(0))) == 2 and left == []
    with pytest.raises(SwitchyardError) as error:
        stopping(monkeypatch, lambda: [7, 8])
    assert error.value.what == "a.v1 has stopped, but its processes have not ended within 9 s: 7, 8"
    assert error.value.fix == "end them with `kill -9 7 8`; for a new plan, run the same `switchyard retire a.v1` again"
    # what is only stopped keeps its files
    assert stopping(monkeypatch, lambda: [7, 8], Kind.STOP) == []


def test_one_whose_lease_was_taken_since_it_had_stopped_is_not_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver had been launched, and had not asked for the lease yet."""
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    lease = LeaseTaken(release="a.v1", token=1, holder=Holder(host="h", boot_id="b", pid=7, started=1), at_ms=now_ms())
    left = [*READY, *switched(1, None, "a.v1"), *switched(2, "a.v1", "a.v2"), lease]
    with pytest.raises(Refused, match=r"a driver has started a\.v1 again \(process 7 on h .*\); it stops on its own"):
        applied(RETIRE, *left)
    assert [type(entry) for entry in applied(RETIRE, *left, LeaseEnded(release="a.v1", token=1))] == [StateSet]


FOREIGN: list[Stage] = [
    DeleteTopic(name="payments"),
    DeleteTopic(name="switchyard.registry"),
    DeleteTopic(name="a.v2.g1"),
    DeleteTopic(name="b.delta.diff-1"),
    DeleteTopic(name="a.delta."),
    DeleteGroup(group="a.v2"),
    DeleteFiles(release="a.v2", code_digest=None),
    DeleteFiles(release="a.v1", code_digest="1" * 64),
    DeleteFiles(release="a.v1", code_digest=None, tables=("0" * 64, "1" * 64)),
    DeleteFiles(release="a.v1", code_digest=None, evidence=("diff-1",)),
    DeleteCheckpoint(release="a.v2", generation=1),
    Tombstone(release="a.v2", generation=1),
]


@pytest.mark.parametrize("stage", FOREIGN, ids=lambda stage: f"{stage.kind} {stage.subject}")
def test_a_plan_deletes_only_parts_of_its_own_releases(stage: Stage) -> None:
    """A plan in the journal is input: whoever resumes it did not make it."""
    with pytest.raises(Refused, match=r"op-1 would delete .*, which does not belong to a\.v1") as error:
        applied(stage, *READY, evidence("b.v1", "b.v2"))
    assert "`switchyard abandon op-1`" in error.value.fix


@pytest.mark.parametrize("other", [StateSet(release="a.v2", state="retired"), None])
def test_code_that_another_release_was_staged_with_since_the_plan_stays(
    other: Entry | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path))
    code = tmp_path / "code" / f"{'0' * 64}.zip"
    code.parent.mkdir()
    code.touch()
    applied(DeleteFiles(release="a.v1", code_digest="0" * 64), *RETIRED, *([other] if other else []))
    assert code.exists() is (other is None)


@pytest.mark.parametrize("topic", ["a.v1.g1", "a.v1.progress", "a.v1.dead-letters", "a.delta.diff-1"])
def test_its_own_topics_are_deleted(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []
    monkeypatch.setattr(Kafka, "delete_topics", lambda _, names: gone.extend(names), raising=False)
    applied(DeleteTopic(name=topic), *RETIRED)
    assert gone == [topic]


@pytest.mark.parametrize(
    "stage",
    [
        DeleteTopic(name="a.v1.g1"),
        DeleteTopic(name="a.v1.progress"),
        DeleteTopic(name="a.delta.diff-1"),
        DeleteGroup(group="a.v1"),
        DeleteFiles(release="a.v1", code_digest="0" * 64),
    ],
    ids=lambda stage: f"{stage.kind} {stage.subject}",
)
def test_of_a_release_that_is_not_retired_nothing_is_deleted(stage: Stage) -> None:
    """A plan in the journal may lack the stage that retires it."""
    with pytest.raises(Refused, match=r"op-1 would delete .*, but that is in use by a\.v1") as error:
        applied(stage, *READY)
    assert "run the same `switchyard retire a.v1` again" in error.value.fix


def test_the_results_of_all_generations_are_its_own() -> None:
    # the third goes on in the second's result
    resets = [generation("a.v1", 2), generation("a.v1", 3, result=2)]
    state = fold(RegistryState(), [*staged("a.v1", "a.v11"), *resets])
    assert owned_topics(state, "a.v1") == ["a.v1.g1", "a.v1.g2", "a.v1.progress", "a.v1.dead-letters"]


def deleting_group(left: list[bool]) -> list[float]:
    """Deletes the group of `a.v1`. `left`: whether it has members, each time that Kafka is asked. Returns the waits."""

    class Cluster(Kafka):
        def delete_group(self, group: str) -> None:
            if left.pop(0):
                raise GroupInUse(
                    f"group {group} can't be deleted: it has members", fix="stop its members, then try again"
                )

    waited: list[float] = []
    context = context_of(Log(*RETIRED), Cluster(), sleep=waited.append, monotonic=lambda: sum(waited))
    stage = DeleteGroup(group="a.v1")
    Applier(context, Plan(id="op-1", operation=Kind.RETIRE, releases=("a.v1",), stages=(stage,))).apply(stage)
    return waited


def test_the_group_of_a_killed_driver_is_deleted_once_kafka_has_dropped_its_member() -> None:
    assert sum(deleting_group([True] * 20 + [False])) == 10


def test_a_group_that_keeps_its_members_is_not_deleted() -> None:
    with pytest.raises(GroupInUse, match=r"a\.v1 can't be deleted: it has members") as error:
        deleting_group([True] * 100)
    assert error.value.fix == "stop its members, then try again"
