"""What the gate is asked and what it answers: frozen values, no Spark, no Great Expectations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pipelines.engine.guard import Code
from pipelines.settings import Settings

# a larger difference from the live release's number of rows is a failure, unless the operator allows it
VOLUME_TOLERANCE = 0.1

Outcome = Literal["passed", "failed", "errored", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """The range of a result, and what to compare it with.

    `result`: its name, empty for the only one. `end`: partition -> next offset, exclusive; `start`: the same, 0 for a
    partition that it lacks. `schema_ddl`: the result's columns, Spark DDL. `avro`: the Avro schema of its values, None:
    they are JSON. `code`: the app's frozen code, which may have the suite. `app_settings`: the release's own settings.
    `live_rows`: rows of the live release as of the same cut, None without one. `late_dropped`: rows that the release
    itself dropped as late. `volume_tolerance`: the ratio by which the number of rows may differ from `live_rows`.
    """

    suite: str
    release: str
    generation: int
    topic: str
    end: Mapping[int, int]
    start: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    key: tuple[str, ...]
    schema_ddl: str
    table: bool
    avro: str | None = None
    live_rows: int | None
    result: str = ""
    late_dropped: int = 0
    volume_tolerance: float = VOLUME_TOLERANCE
    app_settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    docs_dir: Path
    settings: Settings
    code: Code | None = None


def check_of(result: str, check: str) -> str:
    """The name of a result's check among those of all of an app's results."""
    return f"{result}: {check}" if result else check


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The outcome of one check. `detail`: what was expected, or why it was skipped or could not be evaluated.

    `unexpected`: the number of rows that violate it, None if that has no meaning; `sample`: a few of them.
    """

    name: str
    outcome: Outcome
    detail: str
    observed: str | None = None
    unexpected: int | None = None
    sample: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate found. `rows`: number of final rows checked; `docs`: the page of this validation, a local file."""

    suite: str
    release: str
    generation: int
    rows: int
    results: tuple[CheckResult, ...]
    docs: Path | None = None

    @classmethod
    def together(cls, verdicts: Mapping[str, Verdict]) -> Verdict:
        """The verdict on several results, by name: their checks, each with its result's name. `docs`: of one that is not
        ok, if there is one.
        """
        if set(verdicts) == {""}:
            return verdicts[""]
        first = next(iter(verdicts.values()))
        return cls(
            suite=", ".join(each.suite for each in verdicts.values()),
            release=first.release,
            generation=first.generation,
            rows=sum(each.rows for each in verdicts.values()),
            results=tuple(
                replace(check, name=check_of(name, check.name))
                for name, each in verdicts.items()
                for check in each.results
            ),
            docs=next((each.docs for each in verdicts.values() if not each.ok), first.docs),
        )

    def _count(self, outcome: Outcome) -> int:
        return sum(result.outcome == outcome for result in self.results)

    @property
    def passed(self) -> int:
        return self._count("passed")

    @property
    def failed(self) -> int:
        return self._count("failed")

    @property
    def errored(self) -> int:
        return self._count("errored")

    @property
    def skipped(self) -> int:
        return self._count("skipped")

    @property
    def ok(self) -> bool:
        """Whether this may be promoted: at least one check passed, and none failed or could not be evaluated."""
        return self.passed > 0 and not self.failed and not self.errored

    @property
    def failures(self) -> tuple[str, ...]:
        """A line for each check that prevents a promotion."""
        return tuple(_line(result) for result in self.results if result.outcome in ("failed", "errored"))


def _line(result: CheckResult) -> str:
    """`count in range: expected count is 1 or more; found 3 rows against it, such as {...}`"""
    if result.outcome == "errored":
        return f"{result.name}: could not be evaluated: {result.detail}"
    return f"{result.name}: expected {result.detail}; found {result.observed}"
