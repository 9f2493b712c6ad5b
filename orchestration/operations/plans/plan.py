"""Plans: an operation as data. The same list of stages is shown and applied, so a dry run leaves nothing out."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestration.operations.plans import requests
from orchestration.operations.plans.kind import Kind, kind_named
from orchestration.operations.plans.older_requests import in_words
from orchestration.operations.plans.requests import PlanRequest, UndoRequest
from orchestration.operations.plans.stages.base import Stage, StageId, from_journal, stage_ids, to_journal
from pipelines.errors import SwitchyardError
from pipelines.model.entries import Opened, Proposed
from pipelines.model.names import app_of
from pipelines.model.text import markdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of a plan or report."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown. Its contents, which may come from records, are escaped."""
        lines = [f"**{markdown(self.title)}**", "", _row(self.columns), "|" + " --- |" * len(self.columns)]
        return "\n".join([*lines, *map(_row, self.rows)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an operation would do. `facts`: name -> value, in the order to show. `undo`: how to go back, and until when.
    Facts, undo, tables and warnings are for people; no decision reads them.

    `request`: what was asked for, so that the same command finds its operation again. `figures`: the numbers of the
    facts and tables, for scripts and the audit trail, by names with units. `deadline_s`: how many seconds the operation
    may block its releases before anyone may end it.
    """

    id: str
    operation: Kind
    releases: tuple[str, ...]
    stages: tuple[Stage, ...]
    alias: str | None = None
    request: PlanRequest | None = None
    facts: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()
    undo: str = ""
    reason: str | None = None
    deadline_s: float = 3600.0

    def steps(self) -> list[str]:
        """What each stage would do, in order."""
        return [stage.describe() for stage in self.stages]

    @property
    def again(self) -> str:
        """How to get a new plan for the same thing: for the errors of a plan that is no longer valid."""
        release = self.releases[0] if self.releases else ""
        match self.operation:
            case Kind.STAGE:
                subject = app_of(release)
            case Kind.ROLLBACK | Kind.ABORT:
                subject = self.alias or release
            case Kind.UNDO if isinstance(self.request, UndoRequest):
                subject = self.request.reset
            case Kind.REPAIR:
                return "for a new plan, run the same `switchyard registry repair` again"
            case _:
                subject = release
        return f"for a new plan, run the same `switchyard {self.operation} {subject}` again"

    @property
    def stage_ids(self) -> tuple[StageId, ...]:
        """The ids of the stages, in order. They do not depend on any text."""
        return stage_ids(self.stages)

    def as_json(self) -> dict[str, Any]:
        """The plan for a script. `stages` describes in words what `stage_ids` names."""
        return {
            "id": self.id,
            "operation": self.operation,
            "releases": list(self.releases),
            "alias": self.alias,
            "request": requests.to_journal(self.request) if self.request is not None else None,
            "facts": self.facts,
            "figures": self.figures,
            "tables": [asdict(table) for table in self.tables],
            "stages": self.steps(),
            "stage_ids": list(map(str, self.stage_ids)),
            "warnings": list(self.warnings),
            "undo": self.undo,
        }

    def for_journal(self) -> dict[str, Any]:
        """What the journal keeps, so that anyone can resume the operation."""
        request = {"request": requests.to_journal(self.request)} if self.request is not None else {}
        return {
            **request,
            "facts": self.facts,
            "figures": self.figures,
            "tables": [asdict(table) for table in self.tables],
            "stages": [to_journal(stage) for stage in self.stages],
            "warnings": list(self.warnings),
            "undo": self.undo,
        }

    @classmethod
    def from_journal(cls, opened: Opened | Proposed) -> Plan:
        """The plan of an operation in the journal, opened or proposed.

        Raises SwitchyardError for a kind of operation or a stage that this version does not know, and for a plan that is
        not shaped like one.
        """
        try:
            return cls._from_journal(opened)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SwitchyardError(
                f"the plan of {opened.id} in the journal can't be read: {type(error).__name__}: {error}",
                fix=f"resume it with the version that started it, or end it: `switchyard abandon {opened.id}`",
            ) from error

    @classmethod
    def _from_journal(cls, opened: Opened | Proposed) -> Plan:
        return cls(
            id=opened.id,
            operation=kind_named(opened.name),
            releases=opened.releases,
            alias=opened.alias,
            request=request_of(opened),
            stages=tuple(from_journal(stage) for stage in opened.plan.get("stages", [])),
            # words are for people, so another version's, or a forged plan's, are shown as they are
            facts={name: str(text) for name, text in opened.plan.get("facts", {}).items() if text is not None},
            figures=opened.plan.get("figures", {}),
            tables=tuple(
                Table(title=str(t["title"]), columns=_texts(t["columns"]), rows=tuple(map(_texts, t["rows"])))
                for t in opened.plan.get("tables", [])
            ),
            warnings=_texts(opened.plan.get("warnings", [])),
            undo=str(opened.plan.get("undo", "")),
            reason=opened.reason,
        )

    def markdown(self) -> str:
        """The plan as Markdown, for a Dagster run. Its texts are escaped, so that none is taken for Markdown or HTML."""
        parts = [f"### {markdown(self.operation)} {markdown(', '.join(self.releases))} ({markdown(self.id)})"]
        if self.facts:
            parts.append("\n".join(["| | |", "| --- | --- |", *map(_row, self.facts.items())]))
        parts += [table.markdown() for table in self.tables]
        steps = [f"{n}. {markdown(text)}" for n, text in enumerate(self.steps(), 1)]
        parts.append("\n".join(steps) or "nothing is left to do")
        parts += [f"> {markdown(text)}" for text in self.warnings]
        if self.undo:
            parts.append(f"To undo: {markdown(self.undo)}")
        return "\n\n".join(parts)


def _texts(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown, cells)) + " |"


def request_of(opened: Opened | Proposed) -> PlanRequest | None:
    """The request of an operation in the journal; None: it has none, or one that this version can't read."""
    if "request" in opened.plan:
        return requests.from_journal(opened.name, opened.plan["request"])
    return in_words(opened.name, opened.plan)


def new_id(operation: str, *, now: datetime | None = None) -> str:
    """An operation's id. Sorts by time and can be read aloud: `promote-20261121-110532-4f1c`."""
    return f"{operation}-{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def join(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
