"""What a stage is: data that describes what it would do, is kept in the journal, and has an id.

Applying a stage again does only what is left of it, so applying its plan again resumes a killed operation. `applying`
has a function for each kind of stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from pipelines.errors import SwitchyardError


class Stage:
    """One step of a plan; each kind is a frozen dataclass. `release`: what it works on, if nothing else is its subject."""

    __slots__ = ()

    # by the name that the journal keeps, so a class must never be renamed
    kinds: ClassVar[dict[str, type[Stage]]] = {}
    # False: its content may only come from the operator's folder or from a topic, never from a journal
    journaled: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        known = Stage.kinds.get(cls.__name__, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"two kinds of stages are called {cls.__name__}: a journal could not tell them apart")
        # with slots, a dataclass is created twice: the second class counts
        Stage.kinds[cls.__name__] = cls

    def describe(self) -> str:
        """What it would do, in one line."""
        raise NotImplementedError

    @property
    def subject(self) -> str:
        """What it works on, by its name in the registry."""
        return self.release  # type: ignore[attr-defined, no-any-return]

    @property
    def kind(self) -> str:
        """Its kind as the journal keeps it, so it must never change."""
        return type(self).__name__


def to_journal(stage: Stage) -> dict[str, Any]:
    """A stage as the journal keeps it."""
    return {"stage": stage.kind, **asdict(stage)}  # type: ignore[call-overload]


def from_journal(data: Mapping[str, Any]) -> Stage:
    """The stage that `to_journal` wrote.

    Raises SwitchyardError for a kind that this version does not know, and for an invalid name in it. Also for a stage
    with a file: that comes only from the operator's folder or from a topic, so no version writes such a journal.
    """
    kind = Stage.kinds.get(data.get("stage", ""))
    if kind is not None and not kind.journaled:
        raise SwitchyardError("the journal has a stage that stores a file, but no version of Switchyard writes such a journal",
                              fix="`switchyard abandon ID` ends that operation; `switchyard operations` shows its id, `switchyard log ID` who wrote it")  # fmt: skip
    if kind is None:
        raise SwitchyardError(f"the journal has a stage {data.get('stage')} that this version does not know",
                              fix="resume the operation with the version that started it, or end it: `switchyard abandon ID`; `switchyard operations` shows its id")  # fmt: skip
    try:
        stage: Stage = TypeAdapter(kind).validate_python(
            {name: value for name, value in data.items() if name != "stage"}
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise SwitchyardError(f"the journal has a stage {data['stage']} that can't be read: {where}: {wrong['msg']}",
                              fix="`switchyard abandon ID` ends that operation; `switchyard operations` shows its id") from error  # fmt: skip
    return stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageId:
    """The id of a stage of a plan. `kind`: as in the journal. `subject`: what it works on, by its name in the registry.

    `number`: counts the plan's stages of that kind on that subject from 1, because a plan may stop a release twice.
    """

    kind: str
    subject: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}" + (f" ({self.number})" if self.number > 1 else "")


def stage_ids(stages: Sequence[Stage]) -> tuple[StageId, ...]:
    """The ids of a plan's stages, in order. No two are equal, and a plan read back from the journal has the same ids."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for stage in stages:
        named = stage.kind, stage.subject
        seen[named] += 1
        found.append(StageId(kind=named[0], subject=named[1], number=seen[named]))
    return tuple(found)
