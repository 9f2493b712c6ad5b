"""What a switch has to read first: all that both results have written since they were compared."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.operations.comparing.upkeep import upkeep_of
from orchestration.operations.reading import Reading
from pipelines.model.registry import EvidenceRecorded

# records per second: `read_changes` took 160,000 to 260,000 of 160 bytes each, of one partition and of four, from a broker
# on the same two cores, which others used, too
READ_RATE = 150_000
# two seconds' worth: the drivers take as long to meet in any case, so that nobody waits for it
MEANWHILE_RECORDS = 2 * READ_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How many result records, of both releases, lie behind their evidence, or behind what was kept of it.

    `kept`: how many were touched until then.
    """

    records: int
    kept: int = 0

    @property
    def seconds(self) -> float:
        return (self.records + self.kept) / READ_RATE

    @property
    def long(self) -> bool:
        """Whether reading it while the drivers meet would keep consumers at the barrier, whose mark has a deadline."""
        return self.records + self.kept > MEANWHILE_RECORDS

    def __str__(self) -> str:
        when = "before the drivers meet" if self.long else "while they meet"
        took = f"about {self.seconds:,.0f} s at {READ_RATE:,} records/s" if self.seconds >= 1 else "under 1 s"
        kept = f" and {self.kept:,} keys kept since" if self.kept else ""
        return f"{self.records:,} result records{kept}, read {when}: {took}"


def backlog_of(context: Reading, evidence: EvidenceRecorded) -> Backlog:
    """What lies behind `evidence` now."""
    kept = upkeep_of(context.settings, evidence)
    records = 0
    for name, since in ((evidence.live, kept.live_result), (evidence.new, kept.new_result)):
        progress = context.progress(name)
        records += progress.result.records_since(since) if progress is not None else 0
    return Backlog(records=records, kept=kept.keys)
