"""Compares two results as of one cut: folds both in DuckDB, and compares them key by key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.operations.comparing.evidence import Comparison, evidence_home, evidence_path
from orchestration.operations.comparing.loading import database, load
from orchestration.operations.comparing.tags import prefix, split
from orchestration.operations.comparing.values import columns_of, differing
from pipelines.model.entries import ReleaseSpec, ResultSpec
from pipelines.model.positions import ResultPosition
from pipelines.paths import below, remove
from pipelines.settings import Settings

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


# Samples are part of a registry entry. Kafka takes no record over 1 MB, so a diff would fail at its very end; and every
# command, driver and follower reads the entry from then on. So a quarter of that. The rest of the entry is much
# smaller.
SAMPLES_BYTES = 256 * 1024
# rows that Python has at once
_AT_ONCE = 10_000
# each core has one in memory
_ROW_GROUP = "16MB"

# the last value of each key, without deleted keys
_TABLE = """
    SELECT key AS identity, key, value
    FROM {side}_records JOIN (SELECT key, max(place) AS place FROM {side}_records GROUP BY key) USING (key, place)
    WHERE value IS NOT NULL"""
# each record by its key and source record, or by its key and value if it names no source record
_STREAM = """
    SELECT identity || CASE WHEN copies > 1 THEN ' x' || copies ELSE '' END AS identity, key, value
    FROM (SELECT identity, key, value, count(*) AS copies
          FROM (SELECT concat_ws('|', key, coalesce(source, value)) AS identity, key, value FROM {side}_records)
          GROUP BY ALL)"""
_BOTH = """
    SELECT identity, coalesce(live.key, new.key) AS key, live.value AS live_value, new.value AS new_value
    FROM live FULL JOIN new USING (identity)"""

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
) -> Comparison:
    """Compares the results of two releases, each as of a position, and keeps the fold of both with that evidence.

    Raises SwitchyardError if records of a result are deleted, or if there is no room on the disk.
    """
    home, fold = evidence_home(evidence), evidence_path(settings, evidence)
    # of an attempt that did not end
    remove(settings.state_dir, *home)
    found: dict[str, Comparison] = {}
    for name, mine in live[0].outputs.items():
        theirs = new[0].outputs[name]
        with database(below(settings.state_dir, *home, "spill"), settings.diff_memory_mb) as data:
            for side, spec, upto in (("live", mine, live[1]), ("new", theirs, new[1])):
                [topic] = upto.only({name}).topics
                load(data, f"{side}_records", settings, topic, upto.of(topic), spec.avro)
            path = write_fold(data, fold / name, name, table=mine.table)
            found[name] = compare(
                data, path, mine, theirs, tolerance=tolerance, samples=samples, share=len(live[0].outputs)
            )
    return Comparison.together(found)


def write_fold(data: DuckDBPyConnection, folder: Path, result: str, *, table: bool) -> Path:
    """Writes a Parquet file with both results, loaded as `live_records` and `new_records`: `identity, key, live_value,
    new_value`, null if a side lacks the key. Returns its path.

    A table: one row per key. A stream: one row per record, whose identity is key and source record, or key and value if it
    names no source record; an identity tells how often the same record is there. Key and identity are tagged if the app has
    several results.
    """
    for side in ("live", "new"):
        if tag := prefix(result):
            data.execute(f"UPDATE {side}_records SET key = ? || coalesce(key, '')", [tag])
        # step by step: all at once would take the memory of each step
        data.execute(f"CREATE TABLE {side} AS {(_TABLE if table else _STREAM).format(side=side)}")
        data.execute(f"DROP TABLE {side}_records")
    folder.mkdir(parents=True)
    path = folder / "rows.parquet"
    data.sql(_BOTH).write_parquet(str(path), row_group_size_bytes=_ROW_GROUP)
    return path


def compare(
    data: DuckDBPyConnection,
    path: Path,
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
    data.read_parquet(str(path)).create_view("rows")
    counts = "count(*) FILTER (new_value IS NULL), count(*) FILTER (live_value IS NULL), count(*)"
    [(only_live, only_new, total)] = data.execute(f"SELECT {counts} FROM rows").fetchall()
    both = columns_of(live, new, tolerance)
    changed, columns, picked = 0, dict.fromkeys(both, 0), list[Row]()
    for row in _rows(data, "live_value <> new_value"):
        # without a column that both have, all differ
        where = differing(str(row[1]), str(row[2]), both)
        if where or not both:
            changed += 1
            for name in where:
                columns[name] += 1
            if len(picked) < samples:
                picked.append(row)
    if len(picked) < samples:
        picked += _rows(data, "live_value IS NULL OR new_value IS NULL", limit=samples - len(picked))
    return Comparison(
        only_live=only_live,
        only_new=only_new,
        changed=changed,
        identical=total - only_live - only_new - changed,
        columns={name: count for name, count in columns.items() if count},
        only_live_columns=tuple(name for name in live.value if name not in new.columns),
        only_new_columns=tuple(name for name in new.value if name not in live.columns),
        samples=fitting(
            ({"key": _key(r[0]), "live": _json(r[1]), "new": _json(r[2])} for r in picked), SAMPLES_BYTES // share
        ),
    )


def _rows(data: DuckDBPyConnection, condition: str, limit: int | None = None) -> Iterator[Row]:
    """Rows of the fold, in the order of their keys."""
    most = "" if limit is None else f"LIMIT {limit}"
    found = data.execute(f"SELECT key, live_value, new_value FROM rows WHERE {condition} ORDER BY key, identity {most}")
    while rows := found.fetchmany(_AT_ONCE):
        yield from rows


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
    return None if text is None else json.loads(text)
