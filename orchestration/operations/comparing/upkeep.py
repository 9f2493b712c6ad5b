"""What two results have written since their diff, saved beside the evidence, so that a switch days later has little to
read."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestration.operations.comparing.evidence import evidence_home
from pipelines.errors import SwitchyardError
from pipelines.kafka.topics import COMPACTION_LAG_MS, DAY_MS
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.positions import ResultPosition
from pipelines.objects import fetch
from pipelines.paths import below
from pipelines.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

# rows per batch of reading and writing
ROWS = 100_000
ABOUT = b"switchyard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How far both results were read since their evidence. `at_ms`: when, in milliseconds since the epoch. `keys`: how
    many keys were touched by then; a key that both results touched counts twice.
    """

    live_result: ResultPosition
    new_result: ResultPosition
    at_ms: int
    keys: int = 0


def upkeep_of(settings: Settings, evidence: EvidenceRecorded) -> Upkeep:
    """How far evidence is refreshed; without a refresh, to its own cut."""
    path = path_of(settings, evidence)
    if not _is_here(settings, path):
        return _none(evidence)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return _about(pq.read_metadata(path))
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        _warn(path, error)
        return _none(evidence)


def too_old(evidence: EvidenceRecorded, at_ms: int, *, kept_ms: int | None = None) -> str | None:
    """Why evidence can't be brought up to date any more: compaction may have removed tombstones. None: it can.

    `kept_ms`: when it was last refreshed. Times in milliseconds since the epoch.
    """
    read_ms = max(evidence.at_ms, kept_ms or 0)
    days = (at_ms - read_ms) / DAY_MS
    if at_ms - read_ms <= COMPACTION_LAG_MS:
        return None
    age = f"is {days:.1f} days old" if read_ms == evidence.at_ms else f"was refreshed {days:.1f} days ago"
    return (
        f"the diff {evidence.id} {age}: after {COMPACTION_LAG_MS // DAY_MS} days, compaction may have removed the record of "
        "a deletion, and a switch would bring the deleted key back"
    )


def load(settings: Settings, evidence: EvidenceRecorded) -> tuple[Upkeep, dict[str, str | None], dict[str, str | None]]:
    """How far evidence is refreshed, and what its live and its new result wrote up to there: key -> last value (None:
    deleted). A file that can't be read is ignored, with a warning.
    """
    path = path_of(settings, evidence)
    if not _is_here(settings, path):
        return _none(evidence), {}, {}
    import pyarrow as pa
    import pyarrow.parquet as pq

    changes: tuple[dict[str, str | None], dict[str, str | None]] = {}, {}
    try:
        # opened once, because it may be replaced while it is read
        with pq.ParquetFile(path) as file:
            about = _about(file.metadata)
            for batch in file.iter_batches(ROWS):
                for new, key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    changes[new][key] = value
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        _warn(path, error)
        return _none(evidence), {}, {}
    return about, *changes


def path_of(settings: Settings, evidence: EvidenceRecorded) -> Path:
    """The file in which a refresh saves; it exists only after the first refresh."""
    return below(settings.store_dir, *evidence_home(evidence.id), "since.parquet")


def _is_here(settings: Settings, path: Path) -> bool:
    """Whether there is a refresh. In a bucket, another host may have saved a newer one; without an answer, that of this
    host is used, which only leaves more to read.
    """
    try:
        return fetch(settings, path, newest=True)
    except SwitchyardError as error:
        log.warning("can't ask the store for the newest refresh of a diff: %s", error.in_one_line)
        return path.exists()


def _none(evidence: EvidenceRecorded) -> Upkeep:
    return Upkeep(live_result=evidence.live_result, new_result=evidence.new_result, at_ms=evidence.at_ms)


def _about(metadata: pa.parquet.FileMetaData) -> Upkeep:
    known = json.loads(metadata.metadata[ABOUT])
    return Upkeep(
        live_result=ResultPosition(topics=known["live_result"]),
        new_result=ResultPosition(topics=known["new_result"]),
        at_ms=known["at_ms"],
        keys=known["keys"],
    )


def _warn(path: Path, error: Exception) -> None:
    log.warning("the saved refresh of a diff can't be read and is ignored: %s: %s", path, error)
