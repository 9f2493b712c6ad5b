"""Every stage of a plan, journaled and read back."""

from __future__ import annotations

import json

import pytest

from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, Table, new_id
from orchestration.operations.plans.stages.base import Stage, from_journal, stage_ids, to_journal
from orchestration.operations.plans.stages.generations import (
    AppendGeneration,
    AwaitFollowers,
    BeginGeneration,
    CompareGenerations,
    DeleteCheckpoint,
    FinishBatch,
    GiveBack,
    InheritState,
    Reach,
    Seize,
    Tombstone,
    WriteClearing,
)
from orchestration.operations.plans.stages.releases import (
    AcceptHistory,
    AwaitStopped,
    CreateTopic,
    DeleteFiles,
    DeleteGroup,
    DeleteTopic,
    Launch,
    RecordRelease,
    Repair,
    SetState,
    StoreCode,
    StoreTable,
    Want,
)
from orchestration.operations.plans.stages.switching import (
    AbortSwitch,
    Align,
    AppendSwitch,
    ChooseStart,
    Compare,
    Fence,
    FlagBoundary,
    Meet,
    PrepareDelta,
    TakeNewest,
    VerifyStream,
    WriteDelta,
)
from pipelines.errors import SwitchyardError
from pipelines.model.entries import GenerationStarted, Opened, Staged, decode, encode
from pipelines.model.missing import Gap
from pipelines.model.positions import SourcePosition
from pipelines.model.text import markdown
from tests.engine.test_lease import SPEC

NAME, OP = "sums.v1", "promote-1"
AT = SourcePosition(sources={"lines": {0: 5, 11: 7}})
GAP = Gap(topic="lines", partition=0, start=0, end=5, why="deleted")

STAGES: list[Stage] = [
    StoreCode(digest="0" * 64, data=b"\x00\xffPK"),
    StoreTable(digest="1" * 64, data=b"{}"),
    CreateTopic(name="sums.v1.g1", partitions=4, config={"cleanup.policy": "compact"}),
    RecordRelease(release=NAME, entries=(Staged(spec=SPEC), GenerationStarted(release=NAME, generation=1, start=AT))),
    BeginGeneration(release=NAME, generation=2, start=AT),
    Want(release=NAME, wanted="running"),
    Launch(release=NAME, force=True),
    AwaitStopped(release=NAME, timeout_s=1.5),
    SetState(release=NAME, state="retired"),
    Align(release=NAME, other="sums.v0", switch=None, timeout_s=60.0),
    FlagBoundary(release=NAME, other="sums.v0", switch=2, alias="sums", deadline_s=60.0),
    Meet(release=NAME, other="sums.v0", switch=2, timeout_s=60.0),
    Compare(live="sums.v0", new=NAME, tolerance=0.1, samples=3),
    PrepareDelta(evidence="diff-1", old="sums.v0", new=NAME),
    WriteDelta(evidence="diff-1", old="sums.v0", new=NAME, max_changed=None),
    VerifyStream(evidence="diff-1", old="sums.v0", new=NAME, max_changed=0.1),
    AppendSwitch(alias="sums", number=2, old="sums.v0", new=NAME, evidence="diff-1", allowed="gap"),
    AbortSwitch(alias="sums", operation=OP),
    Fence(release="sums.v0"),
    TakeNewest(release="sums.v1"),
    ChooseStart(release=NAME, other="sums.v0", allowed="duplicates"),
    DeleteTopic(name="sums.v1.g1"),
    DeleteGroup(group=NAME),
    DeleteFiles(release=NAME, code_digest=None, evidence=("diff-1",), tables=("1" * 64,)),
    BeginGeneration(release=NAME, generation=1, start=AT, again=True, keeps=True, result=1, meet=True, until=AT, then=AT, state="live"),
    FinishBatch(release=NAME, timeout_s=1.0),
    Seize(release=NAME),
    GiveBack(release=NAME),
    InheritState(release=NAME, old=1, generation=2, at=AT, position=AT),
    Tombstone(release=NAME, generation=2),
    Reach(release=NAME, timeout_s=1.0),
    CompareGenerations(release=NAME, old=1, new=2),
    WriteClearing(release=NAME, old=1),
    AppendGeneration(alias="sums", number=3, release=NAME, old=1, new=2, met=True),
    AwaitFollowers(alias="sums", number=3, timeout_s=1.0),
    DeleteCheckpoint(release=NAME, generation=1),
    Repair(offsets=(3, 5)),
    AcceptHistory(release=NAME, missing=(GAP,)),
]  # fmt: skip


# code is stored when a release is planned, and staging is not journaled
JOURNALED = [stage for stage in STAGES if stage.journaled]


def test_every_kind_of_stage_is_tried_here() -> None:
    assert {type(each) for each in STAGES} >= set(Stage.kinds.values())


@pytest.mark.parametrize("stage", JOURNALED, ids=lambda s: type(s).__name__)
def test_a_stage_is_journaled_and_read_back(stage: Stage) -> None:
    data = json.loads(json.dumps(to_journal(stage), default=lambda value: value.model_dump(mode="json")))
    assert from_journal(data) == stage
    assert from_journal(data).describe() == stage.describe()


def test_a_stage_is_named_by_what_it_is_and_what_it_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals and followers of a plan hold these names, so they never change, whatever a stage's text says."""
    for kind in Stage.kinds.values():
        monkeypatch.setattr(kind, "describe", lambda stage: "something else")
    assert [str(each) for each in stage_ids(STAGES)] == [
        f"StoreCode {'0' * 64}", f"StoreTable {'1' * 64}", "CreateTopic sums.v1.g1", "RecordRelease sums.v1", "BeginGeneration sums.v1.g2", "Want sums.v1",
        "Launch sums.v1", "AwaitStopped sums.v1", "SetState sums.v1", "Align sums.v1", "FlagBoundary sums.v1", "Meet sums.v1",
        "Compare sums.v1", "PrepareDelta sums.v1", "WriteDelta sums.v1", "VerifyStream sums.v1", "AppendSwitch sums", "AbortSwitch sums",
        "Fence sums.v0", "TakeNewest sums.v1", "ChooseStart sums.v1", "DeleteTopic sums.v1.g1", "DeleteGroup sums.v1", "DeleteFiles sums.v1",
        "BeginGeneration sums.v1.g1", "FinishBatch sums.v1", "Seize sums.v1", "GiveBack sums.v1", "InheritState sums.v1.g2",
        "Tombstone sums.v1.g2", "Reach sums.v1", "CompareGenerations sums.v1.g2", "WriteClearing sums.v1.g1", "AppendGeneration sums",
        "AwaitFollowers sums", "DeleteCheckpoint sums.v1.g1", "Repair switchyard.registry", "AcceptHistory sums.v1",
    ]  # fmt: skip


def test_no_two_stages_of_a_plan_have_one_id_and_one_that_is_read_back_has_the_same() -> None:
    stages = [*JOURNALED, *JOURNALED]
    found = stage_ids(stages)
    assert len(set(found)) == len(stages)
    assert str(found[-1]) == "AcceptHistory sums.v1 (2)"
    data = json.loads(json.dumps([to_journal(s) for s in stages], default=lambda value: value.model_dump(mode="json")))
    assert stage_ids([from_journal(each) for each in data]) == found


@pytest.mark.parametrize("stage", JOURNALED, ids=lambda s: type(s).__name__)
def test_a_plan_with_that_stage_goes_through_the_registry(stage: Stage) -> None:
    plan = Plan(id=OP, operation=Kind.PROMOTE, releases=(NAME,), alias="sums", stages=(stage,), facts={"a": "b"},
                undo="go back")  # fmt: skip
    opened = Opened(id=OP, name=plan.operation, releases=plan.releases, alias=plan.alias, deadline_ms=1,
                    plan=plan.for_journal())  # fmt: skip
    read = decode(encode(opened))
    assert isinstance(read, Opened)
    again = Plan.from_journal(read)
    assert again.stages == plan.stages
    assert (again.id, again.operation, again.releases, again.facts) == (OP, "promote", (NAME,), {"a": "b"})


def test_a_stage_of_another_version_of_the_platform_is_named() -> None:
    with pytest.raises(SwitchyardError, match="a stage Teleport that this version does not know"):
        from_journal({"stage": "Teleport"})


def test_a_plan_is_shown_with_all_that_it_would_do() -> None:
    table = Table(title="what", columns=("a", "b"), rows=(("1", "x|y"),))
    plan = Plan(id=new_id("retire"), operation=Kind.RETIRE, releases=(NAME,), stages=tuple(STAGES), tables=(table,),
                facts={"state": "standby"}, warnings=("careful",), undo="")  # fmt: skip
    text = plan.markdown()
    for step in plan.steps():
        assert markdown(step) in text
    assert "x\\|y" in text and "> careful" in text and "| state | standby |" in text
    assert json.loads(json.dumps(plan.as_json()))["stages"] == plan.steps()
