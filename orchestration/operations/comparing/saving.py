"""Saves what two results have written since their diff. Only a refresh does; planners can't."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from orchestration.operations.comparing.upkeep import ABOUT, ROWS, Upkeep, path_of
from pipelines.errors import SwitchyardError
from pipelines.model.entries import EvidenceRecorded
from pipelines.objects import publish
from pipelines.private import temporary_beside
from pipelines.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

# key -> last value; None: deleted
LastValues = Mapping[str, str | None]


def save(settings: Settings, evidence: EvidenceRecorded, upkeep: Upkeep, live: LastValues, new: LastValues) -> None:
    """Replaces what is saved beside the evidence, atomically: Parquet of `new boolean, key string, value string`.

    Raises SwitchyardError if the file can't be written, and as `publish` does.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {
        "live_result": upkeep.live_result.topics,
        "new_result": upkeep.new_result.topics,
        "at_ms": upkeep.at_ms,
        "keys": len(live) + len(new),
    }
    schema = pa.schema(
        [("new", pa.bool_()), ("key", pa.string()), ("value", pa.string())], metadata={ABOUT: json.dumps(about)}
    )
    path = path_of(settings, evidence)
    # the fold may never have been on this host
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = temporary_beside(path)
    try:
        with pq.ParquetWriter(unfinished, schema) as file:
            for side, changes in ((False, live), (True, new)):
                for rows in _batches(side, changes, schema):
                    file.write_batch(rows)
        unfinished.replace(path)
        publish(settings, path)
    except OSError as error:
        raise SwitchyardError(
            f"{path} can't be written: {error}", fix="free some disk space, or fix the permissions of its folder"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _batches(side: bool, changes: LastValues, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    keys = list(changes)
    for first in range(0, len(keys), ROWS):
        some = keys[first : first + ROWS]
        yield pa.record_batch([[side] * len(some), some, [changes[key] for key in some]], schema=schema)
