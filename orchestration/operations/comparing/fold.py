"""Compares two results as of one cut: folds both in a database, and compares them key by key."""

from __future__ import annotations

import json
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.operations.comparing.database import Check, with_database
from orchestration.operations.comparing.evidence import Comparison, evidence_home, evidence_path
from orchestration.operations.comparing.fold_file import differences
from orchestration.operations.comparing.loading import load
from orchestration.operations.comparing.tags import prefix, split
from orchestration.operations.comparing.values import columns_of, differing, parsed
from pipelines.model.entries import ReleaseSpec, ResultSpec
from pipelines.model.positions import ResultPosition
from pipelines.objects import publish, withdraw
from pipelines.paths import move, remove
from pipelines.private import private
from pipelines.settings import Settings

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# Samples are part of a registry entry. Kafka takes no record over 1 MB, so a diff would fail at its very end; and every
# command, driver and follower reads the entry from then on. So a quarter of that. The rest of the entry is much
# smaller.
SAMPLES_BYTES = 256 * 1024
# each core has one in memory
_ROW_GROUP = "16MB"

# the last value of each key of a part, without deleted keys
_TABLE = """
    CREATE OR REPLACE TABLE {side} AS
    SELECT $tag || key AS identity, $tag || key AS key, value
    FROM (FROM {side}_records WHERE hash(key) % $parts = $part)
    JOIN (SELECT key, max(place) AS place FROM {side}_records WHERE hash(key) % $parts = $part GROUP BY key)
    USING (key, place)
    WHERE value IS NOT NULL"""
# each record of a part by its key and source record, or by its key and value if it names no source record
_STREAM = """
    CREATE OR REPLACE TABLE {side} AS
    SELECT identity || CASE WHEN copies > 1 THEN ' x' || copies ELSE '' END AS identity, key, value
    FROM (SELECT identity, key, value, count(*) AS copies
          FROM (SELECT concat_ws('|', tagged, coalesce(source, value)) AS identity, tagged AS key, value
                FROM (SELECT CASE WHEN $tag = '' THEN key ELSE $tag || coalesce(key, '') END AS tagged, source, value
                      FROM {side}_records))
          WHERE hash(identity) % $parts = $part
          GROUP BY identity, key, value)"""
_BOTH = f"""
    COPY (SELECT identity, coalesce(live.key, new.key) AS key, live.value AS live_value, new.value AS new_value
          FROM live FULL JOIN new USING (identity))
    TO $file (FORMAT parquet, ROW_GROUP_SIZE_BYTES '{_ROW_GROUP}')"""

# key, live value, new value
Row = tuple[str | None, str | None, str | None]


def compare_at(
    settings: Settings,
    evidence: str,
    *,
    live: tuple[ReleaseSpec, ResultPosition],
    new: tuple[ReleaseSpec, ResultPosition],
    tolerance: float,
    samples: int,
    check: Check = lambda: None,
) -> Comparison:
    """Compares the results of two releases, each as of a position, and keeps the fold of both with that evidence.

    `check`: called now and then while they are read; what it raises ends the comparison. Raises SwitchyardError if records of
    a result are deleted, or if the memory or the disk is full, and as `publish` does. The fold is there whole, or not at all;
    in a bucket, it is whole once this returns.
    """
    fold = evidence_path(settings, evidence)

    def work(data: DuckDBPyConnection, folder: Path, go_on: Check) -> Comparison:
        def check_both() -> None:
            go_on()
            check()

        found: dict[str, Comparison] = {}
        for name, mine in live[0].outputs.items():
            theirs, long_bytes = new[0].outputs[name], 0
            for side, result, upto in (("live", mine, live[1]), ("new", theirs, new[1])):
                [topic] = upto.only({name}).topics
                long_bytes += load(data, f"{side}_records", settings, topic, upto.of(topic), check_both, result.avro)
            parts = parts_for(long_bytes, settings.diff_memory_mb)
            unfinished = folder / fold.name / name
            write_fold(data, unfinished, name, table=mine.table, parts=parts, check=check_both)
            found[name] = compare(
                unfinished,
                mine,
                theirs,
                tolerance=tolerance,
                samples=samples,
                share=len(live[0].outputs),
                check=check_both,
            )
        check_both()
        # of an attempt that was killed before it was recorded
        remove(settings.store_dir, *evidence_home(evidence), fold.name)
        withdraw(settings, fold)
        private(settings.store_dir)
        fold.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        move(folder / fold.name, fold)
        publish(settings, fold)
        return Comparison.together(found)

    return with_database(settings, work)


def parts_for(long_bytes: int, memory_mb: int) -> int:
    """Into how many parts the keys are divided, so that the long values of one fit into the database's memory."""
    return 1 + 4 * long_bytes // (memory_mb * 2**20)


def write_fold(
    data: DuckDBPyConnection,
    folder: Path,
    result: str,
    *,
    table: bool,
    parts: int = 1,
    check: Check = lambda: None,
) -> None:
    """Writes Parquet files with both results, loaded as `live_records` and `new_records`: `identity, key, live_value,
    new_value`, null if a side lacks the key. A file for each of `parts` parts of the keys.

    A table: one row per key. A stream: one row per record, whose identity is key and source record, or key and value if it
    names no source record; an identity tells how often the same record is there. Key and identity are tagged if the app has
    several results.
    """
    folder.mkdir(mode=0o700, parents=True)
    for part in range(parts):
        check()
        # step by step: all at once would take the memory of all steps
        for side in ("live", "new"):
            data.execute(
                (_TABLE if table else _STREAM).format(side=side), {"tag": prefix(result), "parts": parts, "part": part}
            )
        data.execute(_BOTH, {"file": str(folder / f"part-{part}.parquet")})


def compare(
    folder: Path,
    live: ResultSpec,
    new: ResultSpec,
    *,
    tolerance: float,
    samples: int,
    share: int = 1,
    check: Check = lambda: None,
) -> Comparison:
    """Counts by class over a fold that `write_fold` wrote, by the value columns that both results have.

    `tolerance`: relative, for floating-point columns. `share`: how many results share the room for samples in the
    registry entry. Raises SwitchyardError if a value does not fit the columns of its result.
    """
    both, counted = columns_of(live, new, tolerance), Counted(samples)
    for rows in differences(folder):
        check()
        counted.total += rows.total
        for key, here, there in rows.differing:
            if here is None or there is None:
                counted.add_one_sided((key, here, there))
            # without a column that both have, all differ
            elif (where := differing(here, there, both)) or not both:
                counted.add_changed((key, here, there), where)
    return Comparison(
        only_live=counted.only_live,
        only_new=counted.only_new,
        changed=counted.changed,
        identical=counted.total - counted.only_live - counted.only_new - counted.changed,
        columns={name: counted.columns[name] for name in both if name in counted.columns},
        only_live_columns=tuple(name for name in live.value if name not in new.columns),
        only_new_columns=tuple(name for name in new.value if name not in live.columns),
        samples=fitting(
            ({"key": _key(r[0]), "live": _json(r[1]), "new": _json(r[2])} for r in counted.samples),
            SAMPLES_BYTES // share,
        ),
    )


class Counted:
    """The rows of a fold by class, and the first `most` keys that differ: those that have changed come first."""

    def __init__(self, most: int) -> None:
        self.total = self.only_live = self.only_new = self.changed = 0
        # column -> in how many changed rows it differs
        self.columns = Counter[str]()
        self._most = most
        self._changed: list[Row] = []
        self._one_sided: list[Row] = []

    def add_changed(self, row: Row, where: Sequence[str]) -> None:
        self.changed += 1
        self.columns.update(where)
        self._keep(self._changed, row)

    def add_one_sided(self, row: Row) -> None:
        self.only_live += row[2] is None
        self.only_new += row[1] is None
        self._keep(self._one_sided, row)

    def _keep(self, kept: list[Row], row: Row) -> None:
        if kept and len(kept) == self._most and _in_order(kept[-1]) <= _in_order(row):
            return
        insort(kept, row, key=_in_order)
        del kept[self._most :]

    @property
    def samples(self) -> list[Row]:
        """In the order of their keys."""
        return [*self._changed, *self._one_sided][: self._most]


def _in_order(row: Row) -> tuple[str, ...]:
    return tuple(text or "" for text in row)


def fitting(samples: Iterable[dict[str, Any]], limit_bytes: int = SAMPLES_BYTES) -> tuple[dict[str, Any], ...]:
    """The `samples`, in order, that fit into `limit_bytes` together; skips one that is too large for the rest."""
    found, left = [], limit_bytes
    for sample in samples:
        # with escapes and spaces, so never less than the entry takes
        size = len(json.dumps(sample)) + 1
        if size <= left:
            found.append(sample)
            left -= size
    return tuple(found)


def _key(text: str | None) -> Any:
    return _json((split(text)[1] or None) if text is not None else None)


def _json(text: str | None) -> Any:
    return None if text is None else parsed(text, as_number=None)
