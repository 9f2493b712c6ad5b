"""What a stage is: data that says what it would do, is kept in the journal, and is known again by its id.

Applying a stage again does only what is left of it, so a killed operation is resumed by applying its plan again. What a
stage does is in `applying`, a function for each.
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

    # by the name that the journal keeps, so that a class is never renamed
    kinds: ClassVar[dict[str, type[Stage]]] = {}
    # False: it holds what comes from the operator's folder alone
    journaled: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        known = Stage.kinds.get(cls.__name__, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"there are two kinds of stages called {cls.__name__}: a journal couldn't tell them apart")
        # with slots, a dataclass is made twice: the second one counts
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
        """Its kind as the journal keeps it, so that it never changes."""
        return type(self).__name__


def to_journal(stage: Stage) -> dict[str, Any]:
    """A stage as the journal keeps it."""
    return {"stage": stage.kind, **asdict(stage)}  # type: ignore[call-overload]


def from_journal(data: Mapping[str, Any]) -> Stage:
    """The stage that `to_journal` wrote. Raises SwitchyardError for one that this version doesn't know, or a name in it that
    can't be one; and for one with code, which comes from the operator's folder alone: no journal is written with it.
    """
    kind = Stage.kinds.get(data.get("stage", ""))
    if kind is not None and not kind.journaled:
        raise SwitchyardError("the journal has a stage that stores code: no version writes such a journal",
                              fix="abandon that operation: `switchyard abandon`; `switchyard log` says who entered it")  # fmt: skip
    if kind is None:
        raise SwitchyardError(f"the journal has a stage {data.get('stage')} that this version doesn't know",
                              fix="resume with the version that began it, or abandon it")  # fmt: skip
    try:
        stage: Stage = TypeAdapter(kind).validate_python(
            {name: value for name, value in data.items() if name != "stage"}
        )
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise SwitchyardError(f"the journal has a stage {data['stage']} that can't be read: {where}: {wrong['msg']}",
                              fix="abandon that operation: `switchyard abandon`") from error  # fmt: skip
    return stage


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
        named = stage.kind, stage.subject
        seen[named] += 1
        found.append(StageId(kind=named[0], subject=named[1], number=seen[named]))
    return tuple(found)
