"""Evidence: what a diff of two results found, and where it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipelines.model.entries import EvidenceRecorded
from pipelines.model.registry import RegistryState, Release
from pipelines.paths import below
from pipelines.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a diff of two results found: counts of keys (tables) or of records by identity (streams).

    `columns`: value column -> number of changed keys in which it differs. `samples`: keys with both values, as many as
    were asked for and fit into the registry entry.
    """

    only_live: int
    only_new: int
    changed: int
    identical: int
    columns: dict[str, int] = field(default_factory=dict)
    samples: tuple[dict[str, Any], ...] = ()
    live_late_dropped: int = 0
    new_late_dropped: int = 0
    live_watermark_ms: int | None = None
    new_watermark_ms: int | None = None

    @property
    def total(self) -> int:
        return self.only_live + self.only_new + self.changed + self.identical

    @property
    def ratio(self) -> float:
        """Share of keys that differ; 0 if there is nothing to compare."""
        return (self.total - self.identical) / self.total if self.total else 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}

    @classmethod
    def of(cls, evidence: EvidenceRecorded) -> Comparison:
        """The diff that an evidence holds."""
        return cls.from_json(evidence.summary)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        """The comparison that `as_json` wrote."""
        values = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**{**values, "samples": tuple(values.get("samples", ()))})


def evidence_path(settings: Settings, evidence: str) -> Path:
    """The path of an evidence's fold. Raises SwitchyardError if a link leads out of the state folder."""
    return below(settings.state_dir, *evidence_home(evidence), "fold.parquet")


def evidence_home(evidence: str) -> tuple[str, str]:
    """The folder of an evidence, as parts of a path under the state folder."""
    return "evidence", evidence


def are_compared(one: Release, other: Release) -> bool:
    """Whether consumers may move between two releases only after a diff. For tables always: the diff makes their delta."""
    return one.spec.table or "no" not in (one.spec.comparable, other.spec.comparable)


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
