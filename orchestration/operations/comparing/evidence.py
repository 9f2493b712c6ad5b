"""Evidence: what a diff of two results found, and where it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.model.entries import EvidenceRecorded
from pipelines.model.names import result_of
from pipelines.model.registry import RegistryState, Release
from pipelines.paths import below
from pipelines.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a diff of two results found: counts of keys (tables) or of records by identity (streams).

    `columns`: value column -> number of changed keys in which it differs. `samples`: keys with both values, as many as
    were asked for and fit into the registry entry. `only_live_columns`, `only_new_columns`: value columns that one
    result lacks; they are not compared. `results`: for an app with several results, the comparison of each, by name.
    Then the counts are sums over all results, and only the comparison of each result has columns and samples.

    `live`, `new`: the releases that the fields with these words in their names are about. `live` is the one that `new`
    was compared with: the standby, if `new` was live then. They are empty until the diff is recorded.
    """

    only_live: int
    only_new: int
    changed: int
    identical: int
    columns: dict[str, int] = field(default_factory=dict)
    samples: tuple[dict[str, Any], ...] = ()
    only_live_columns: tuple[str, ...] = ()
    only_new_columns: tuple[str, ...] = ()
    live_late_dropped: int = 0
    new_late_dropped: int = 0
    live_watermark_ms: int | None = None
    new_watermark_ms: int | None = None
    results: dict[str, Comparison] = field(default_factory=dict)
    live: str = ""
    new: str = ""

    @property
    def total(self) -> int:
        return self.only_live + self.only_new + self.changed + self.identical

    @property
    def ratio(self) -> float:
        """Share of keys that differ; 0 if there is nothing to compare."""
        return (self.total - self.identical) / self.total if self.total else 0.0

    def in_words(self) -> str:
        """Its counts."""
        counts = ("changed", "only_live", "only_new", "identical")
        return ", ".join(f"{getattr(self, name):,} {self.label(name)}" for name in counts)

    def label(self, count: str) -> str:
        """What a reader calls a count."""
        return {"only_live": f"only in {self.live}", "only_new": f"only in {self.new}"}.get(count, count)

    @property
    def late(self) -> tuple[tuple[str, int], ...]:
        """How many rows each release has dropped as late, and what a reader calls that."""
        sides = ((self.live, self.live_late_dropped), (self.new, self.new_late_dropped))
        return tuple((f"dropped as late by {name}", count) for name, count in sides)

    @property
    def left_out(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """A title and the columns that were not compared, for each release that alone has some."""
        sides = ((self.live, self.only_live_columns), (self.new, self.only_new_columns))
        return tuple((f"not compared, only in the result of {name}", columns) for name, columns in sides if columns)

    def as_json(self) -> dict[str, Any]:
        results = {name: each.as_json() for name, each in self.results.items()}
        said = {**asdict(self), "ratio": self.ratio, "results": results}
        return {name: value for name, value in said.items() if value or name not in ("results", "live", "new")}

    def of_releases(self, live: str, new: str) -> Comparison:
        """The same, of two releases with these names."""
        results = {name: each.of_releases(live, new) for name, each in self.results.items()}
        return replace(self, live=live, new=new, results=results)

    @classmethod
    def together(cls, results: Mapping[str, Comparison]) -> Comparison:
        """The comparison of several results, by name."""
        if set(results) == {""}:
            return results[""]
        counts = ("only_live", "only_new", "changed", "identical")
        sums = {name: sum(getattr(each, name) for each in results.values()) for name in counts}
        return cls(**sums, results=dict(results))

    def only(self, names: frozenset[str]) -> Comparison:
        """The comparison of some of several results."""
        if not self.results:
            return self
        return Comparison.together({name: each for name, each in self.results.items() if name in names})

    @classmethod
    def none(cls) -> Comparison:
        """The comparison of two results without any row."""
        return cls(only_live=0, only_new=0, changed=0, identical=0)

    @classmethod
    def of(cls, evidence: EvidenceRecorded) -> Comparison:
        """The diff that evidence holds."""
        return cls.from_json(evidence.summary).of_releases(evidence.live, evidence.new)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        """The comparison that `as_json` wrote."""
        values = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        results = {name: cls.from_json(each) for name, each in values.get("results", {}).items()}
        listed = {name: tuple(values.get(name, ())) for name in ("samples", "only_live_columns", "only_new_columns")}
        return cls(**{**values, **listed, "results": results})


def evidence_path(settings: Settings, evidence: str) -> Path:
    """The path of the fold of evidence. Raises SwitchyardError if a link leads out of the store."""
    return below(settings.store_dir, *evidence_home(evidence), "fold.parquet")


def evidence_home(evidence: str) -> tuple[str, str]:
    """The folder of evidence, as parts of a path under the store."""
    return "evidence", evidence


def narrowed(evidence: EvidenceRecorded, results: frozenset[str]) -> EvidenceRecorded:
    """What evidence says about some of the results of an app."""
    if set(map(result_of, evidence.live_result.topics)) <= results:
        return evidence
    return evidence.model_copy(
        update={
            "live_result": evidence.live_result.only(results),
            "new_result": evidence.new_result.only(results),
            "summary": {**evidence.summary, **Comparison.of(evidence).only(results).as_json()},
        }
    )


def are_compared(one: Release, other: Release) -> bool:
    """Whether consumers may move between two releases only after a diff. Tables always need a diff, because it makes
    their delta. But two releases that read different topics have no position in common, so the switch itself compares
    their tables as they are.
    """
    return one.spec.topics == other.spec.topics and _may_be(one, other)


def _may_be(one: Release, other: Release) -> bool:
    return bool(one.spec.tables) or "no" not in (one.spec.comparable, other.spec.comparable)


def evidence_for(state: RegistryState, one: Release, other: Release, *, apart: bool = False) -> EvidenceRecorded | None:
    """The newest evidence of two releases in their present generations, whichever of them was live then.

    `apart`: also accept evidence for which they did not meet at one boundary; that is enough for a delta.
    """
    wanted = {(one.name, one.generation), (other.name, other.generation)}
    both = [e for e in state.evidence if {(e.live, e.live_generation), (e.new, e.new_generation)} == wanted]
    found = [e for e in both if apart or not e.apart]
    return found[-1] if found else None


def recorded(state: RegistryState, diff_id: str) -> Comparison:
    """What the diff with this id found."""
    return Comparison.of(next(e for e in state.evidence if e.id == diff_id))
