"""Which stage of a plan is meant, whatever is said of it: for whoever follows a plan, or stops at one of its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from orchestration.operations.stages import (
    AbortSwitch,
    AcceptHistory,
    Align,
    AppendGeneration,
    AppendSwitch,
    AwaitFollowers,
    AwaitStopped,
    BeginGeneration,
    ChooseStart,
    Compare,
    CompareGenerations,
    CreateTopic,
    DeleteCheckpoint,
    DeleteFiles,
    DeleteGroup,
    DeleteTopic,
    Fence,
    FinishBatch,
    FlagBoundary,
    GiveBack,
    InheritState,
    Launch,
    Meet,
    PrepareDelta,
    Reach,
    RecordRelease,
    Repair,
    Seize,
    SetState,
    Stage,
    StoreCode,
    Tombstone,
    VerifyStream,
    Want,
    WriteClearing,
    WriteDelta,
    kind_of,
)
from pipelines.model.names import REGISTRY_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class StageId:
    """A stage of a plan. `kind`: as the journal has it. `subject`: what it works on, by its name in the registry.

    `number`: which one it is of the plan's stages of that kind on that subject, from 1 on: a release may be stopped twice.
    """

    kind: str
    subject: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}" + (f" ({self.number})" if self.number > 1 else "")


def stage_ids(stages: Sequence[Stage]) -> tuple[StageId, ...]:
    """The ids of a plan's stages, in their order: no two are equal, and a plan that is read back has the same."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for stage in stages:
        named = kind_of(stage), _subject(stage)
        seen[named] += 1
        found.append(StageId(kind=named[0], subject=named[1], number=seen[named]))
    return tuple(found)


def _subject(stage: Stage) -> str:
    match stage:
        case StoreCode():
            return stage.digest
        case CreateTopic() | DeleteTopic():
            return stage.name
        case DeleteGroup():
            return stage.group
        case BeginGeneration() | InheritState() | Tombstone() | DeleteCheckpoint():
            return f"{stage.release}.g{stage.generation}"
        case CompareGenerations():
            return f"{stage.release}.g{stage.new}"
        case WriteClearing():
            return f"{stage.release}.g{stage.old}"
        case Compare() | PrepareDelta() | WriteDelta() | VerifyStream():
            return stage.new
        case AppendSwitch() | AppendGeneration() | AwaitFollowers() | AbortSwitch():
            return stage.alias
        case Repair():
            return REGISTRY_TOPIC
        case (
            RecordRelease() | AcceptHistory() | Want() | Launch() | AwaitStopped() | SetState() | Align() | FlagBoundary()
            | Meet() | Fence() | ChooseStart() | FinishBatch() | Seize() | GiveBack() | Reach() | DeleteFiles()
        ):  # fmt: skip
            return stage.release
        case _:
            assert_never(stage)
