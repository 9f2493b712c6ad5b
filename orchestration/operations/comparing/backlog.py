"""What a switch must read first: everything that both results have written since their diff."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.operations.comparing.upkeep import upkeep_of
from orchestration.operations.reading import Reading
from pipelines.kafka.progress import ProgressLost
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.positions import ResultPosition

# records per second: `read_changes` read 160,000 to 260,000 records of 160 bytes, from one partition and from four, with
# the broker and other processes on the same two cores
READ_RATE = 150_000
# two seconds of reading: the drivers need that long to meet anyway, so consumers do not wait for it
MEANWHILE_RECORDS = 2 * READ_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How many result records of both releases come after their evidence, or after its last refresh.

    `kept`: how many keys were touched up to that refresh.
    """

    records: int
    kept: int = 0

    @property
    def seconds(self) -> float:
        return (self.records + self.kept) / READ_RATE

    @property
    def long(self) -> bool:
        """Whether reading it while the drivers meet would make consumers wait at the barrier, which has a deadline."""
        return self.records + self.kept > MEANWHILE_RECORDS

    def __str__(self) -> str:
        when = "before the releases meet" if self.long else "while the releases meet"
        took = f"about {self.seconds:,.0f} s at {READ_RATE:,} records/s" if self.seconds >= 1 else "under 1 s"
        kept = f" and {self.kept:,} keys from the last refresh" if self.kept else ""
        return f"{self.records:,} result records{kept} to read {when}: {took}"


def backlog_of(context: Reading, evidence: EvidenceRecorded) -> Backlog:
    """What both releases have written since `evidence`."""
    kept = upkeep_of(context.settings, evidence)
    records = 0
    for name, since, refreshed in (
        (evidence.live, evidence.live_result, kept.live_result),
        (evidence.new, evidence.new_result, kept.new_result),
    ):
        # a refresh reads tables only
        read = ResultPosition(topics={**since.topics, **refreshed.topics})
        records += _written(context, name, read)
    return Backlog(records=records, kept=kept.keys)


def _written(context: Reading, name: str, since: ResultPosition) -> int:
    """How many result records release `name` has written since a position."""
    try:
        progress = context.progress(name)
    except ProgressLost:
        return ResultPosition(topics=context.cluster.end_offsets(sorted(since.topics))).records_since(since)
    return progress.result.records_since(since) if progress is not None else 0
