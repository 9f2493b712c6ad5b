"""Compares two results as of one cut: folds both in a database, and compares them key by key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.operations.comparing.database import Check, with_database
from orchestration.operations.comparing.evidence import Comparison, evidence_home, evidence_path
from orchestration.operations.comparing.loading import Loaded, load
from orchestration.operations.comparing.tags import prefix, split
from orchestration.operations.comparing.values import columns_of, differing
from pipelines.model.entries import ReleaseSpec, ResultSpec
from pipelines.model.positions import ResultPosition
from pipelines.paths import remove
from pipelines.settings import Settings

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# Samples are part of a registry entry. Kafka takes no record over 1 MB, so a diff would fail at its very end; and every
# command, driver and follower reads the entry from then on. So a quarter of that. The rest of the entry is much
# smaller.
SAMPLES_BYTES = 256 * 1024
# rows that Python has at once
_AT_ONCE = 256
# each core has one in memory
_ROW_GROUP = "16MB"
# the database keeps short values on disk as it needs to; of long ones, it has 2,048 in memory at once
_LONG_BYTES = 1_024

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
    a result are deleted, or if the memory or the disk is full. Then it leaves no files.
    """
    fold = evidence_path(settings, evidence)

    def work(data: DuckDBPyConnection, go_on: Check) -> Comparison:
        def check_both() -> None:
            go_on()
            check()

        found: dict[str, Comparison] = {}
        for name, mine in live[0].outputs.items():
            theirs, loaded = new[0].outputs[name], list[Loaded]()
            for side, result, upto in (("live", mine, live[1]), ("new", theirs, new[1])):
                [topic] = upto.only({name}).topics
                loaded.append(load(data, f"{side}_records", settings, topic, upto.of(topic), check_both, result.avro))
            parts = _parts(loaded, settings.diff_memory_mb)
            write_fold(data, fold / name, name, table=mine.table, parts=parts)
            found[name] = compare(
                data, fold / name, mine, theirs, tolerance=tolerance, samples=samples, share=len(live[0].outputs)
            )
        return Comparison.together(found)

    # of an attempt that was killed
    remove(settings.state_dir, *evidence_home(evidence))
    try:
        return with_database(settings, work)
    except BaseException:
        remove(settings.state_dir, *evidence_home(evidence))
        raise


def _parts(loaded: Sequence[Loaded], memory_mb: int) -> int:
    """Into how many parts the keys are divided, so that the long values of one fit into the database's memory."""
    records, value_bytes = sum(each.records for each in loaded), sum(each.value_bytes for each in loaded)
    if value_bytes <= records * _LONG_BYTES:
        return 1
    return 1 + 4 * value_bytes // (memory_mb * 2**20)


def write_fold(data: DuckDBPyConnection, folder: Path, result: str, *, table: bool, parts: int = 1) -> None:
    """Writes Parquet files with both results, loaded as `live_records` and `new_records`: `identity, key, live_value,
    new_value`, null if a side lacks the key. A file for each of `parts` parts of the keys.

    A table: one row per key. A stream: one row per record, whose identity is key and source record, or key and value if it
    names no source record; an identity tells how often the same record is there. Key and identity are tagged if the app has
    several results.
    """
    folder.mkdir(mode=0o700, parents=True)
    for part in range(parts):
        # step by step: all at once would take the memory of all steps
        for side in ("live", "new"):
            data.execute(
                (_TABLE if table else _STREAM).format(side=side), {"tag": prefix(result), "parts": parts, "part": part}
            )
        data.execute(_BOTH, {"file": str(folder / f"part-{part}.parquet")})


def compare(
    data: DuckDBPyConnection,
    folder: Path,
    live: ResultSpec,
    new: ResultSpec,
    *,
    tolerance: float,
    samples: int,
    share: int = 1,
) -> Comparison:
    """Counts by class over a fold that `write_fold` wrote, by the value columns that both results have.

    `tolerance`: relative, for floating-point columns. `share`: how many results share the room for samples in the
    registry entry.
    """
    data.read_parquet([str(path) for path in sorted(folder.glob("*.parquet"))]).create_view("rows", replace=True)
    counts = "count(*) FILTER (new_value IS NULL), count(*) FILTER (live_value IS NULL), count(*)"
    [(only_live, only_new, total)] = data.execute(f"SELECT {counts} FROM rows").fetchall()
    both, columns, changed = columns_of(live, new, tolerance), dict[str, int](), 0

    def changed_rows() -> Iterator[Row]:
        nonlocal changed
        for row in _rows(data, "live_value <> new_value"):
            where = differing(str(row[1]), str(row[2]), both)
            # without a column that both have, all differ
            if where or not both:
                changed += 1
                for name in where:
                    columns[name] = columns.get(name, 0) + 1
                yield row

    picked = _first(samples, changed_rows())
    if len(picked) < samples:
        picked += _first(samples - len(picked), _rows(data, "live_value IS NULL OR new_value IS NULL"))
    return Comparison(
        only_live=only_live,
        only_new=only_new,
        changed=changed,
        identical=total - only_live - only_new - changed,
        columns={name: columns[name] for name in both if name in columns},
        only_live_columns=tuple(name for name in live.value if name not in new.columns),
        only_new_columns=tuple(name for name in new.value if name not in live.columns),
        samples=fitting(
            ({"key": _key(r[0]), "live": _json(r[1]), "new": _json(r[2])} for r in picked), SAMPLES_BYTES // share
        ),
    )


def _rows(data: DuckDBPyConnection, condition: str) -> Iterator[Row]:
    """Rows of the fold."""
    found = data.execute(f"SELECT key, live_value, new_value FROM rows WHERE {condition}")
    while rows := found.fetchmany(_AT_ONCE):
        yield from rows


def _first(count: int, rows: Iterable[Row]) -> list[Row]:
    """The first `count` rows in the order of their keys. Takes all of them in any case."""
    found = nsmallest(count, rows, key=lambda row: tuple(text or "" for text in row))
    for _ in rows:
        pass
    return found


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
    # JSON has no NaN, and the registry would make null of it
    return None if text is None else json.loads(text, parse_constant=str)
