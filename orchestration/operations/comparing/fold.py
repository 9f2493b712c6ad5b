"""Compares two results as of one cut, with Spark: folds both, and compares them key by key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.operations.comparing.evidence import Comparison, evidence_path
from orchestration.operations.comparing.tags import prefix, split
from pipelines.model.entries import ReleaseSpec, ResultSpec
from pipelines.model.names import result_of
from pipelines.model.positions import ResultPosition
from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


# Samples are part of a registry entry. Kafka takes no record over 1 MB, so a diff would fail at its very end; and every
# command, driver and follower reads the entry from then on. So a quarter of that. The rest of the entry is much
# smaller.
SAMPLES_BYTES = 256 * 1024


def compare_at(
    spark: SparkSession,
    settings: Settings,
    evidence: str,
    *,
    live: tuple[ReleaseSpec, ResultPosition],
    new: tuple[ReleaseSpec, ResultPosition],
    tolerance: float,
    samples: int,
) -> Comparison:
    """Compares the results of two releases, each as of a position, and keeps the fold of both with that evidence."""
    found: dict[str, Comparison] = {}
    for name, mine in live[0].outputs.items():
        theirs = new[0].outputs[name]
        path = evidence_path(settings, evidence)
        path = path / name if name else path
        here, there = live[1].only({name}), new[1].only({name})
        write_fold(folded(spark, settings, mine, here), folded(spark, settings, theirs, there), path)
        found[name] = compare(
            spark, path, mine, theirs, tolerance=tolerance, samples=samples, share=len(live[0].outputs)
        )
    return Comparison.together(found)


def folded(spark: SparkSession, settings: Settings, result: ResultSpec, upto: ResultPosition) -> DataFrame:
    """A result as of a position of its topic: `identity string, key string, value string`; key and identity are tagged if
    the app has several results.

    A table: one row per key with its last value, without deleted keys. A stream: one row per record; its identity is
    key and source record, or key and value if it names no source record; `copies` counts repetitions.
    """
    from pyspark.sql import functions as F

    from pipelines.engine import avro
    from pipelines.engine.frames import read_range

    [topic] = upto.topics
    raw = read_range(spark, settings, topic, {}, upto.of(topic))
    key, value = F.col("key").cast("string"), F.col("value").cast("string")
    if result.avro is not None:
        value = avro.as_json(F.col("value"), result.avro)
    if tag := prefix(result_of(topic)):
        key = F.concat(F.lit(tag), F.coalesce(key, F.lit("")))
    if result.table:
        last = raw.groupBy(key.alias("key")).agg(
            F.max_by(F.struct(value.alias("value")), F.col("offset")).alias("last")
        )
        rows = last.select(F.col("key").alias("identity"), "key", F.col("last.value").alias("value"))
        return rows.where(F.col("value").isNotNull())
    source = F.expr("get(filter(headers, h -> h.key = 'source'), 0).value").cast("string")
    rows = raw.select(
        key.alias("key"), value.alias("value"), F.concat_ws("|", key, F.coalesce(source, value)).alias("identity")
    )
    return rows.groupBy("identity", "key", "value").agg(F.count(F.lit(1)).alias("copies")).select(
        F.when(F.col("copies") > 1, F.concat_ws(" x", "identity", "copies")).otherwise(F.col("identity")).alias("identity"),
        "key",
        "value",
    )  # fmt: skip


def write_fold(live: DataFrame, new: DataFrame, path: Path) -> None:
    """Writes both folds joined, as Parquet: `identity, key, live_value, new_value`, null if a side lacks the key."""
    left = live.select("identity", live["key"].alias("live_key"), live["value"].alias("live_value"))
    right = new.select("identity", new["key"].alias("new_key"), new["value"].alias("new_value"))
    from pyspark.sql import functions as F

    joined = left.join(right, "identity", "full_outer")
    rows = joined.select("identity", F.coalesce("live_key", "new_key").alias("key"), "live_value", "new_value")
    rows.write.mode("overwrite").parquet(str(path))


def compare(
    spark: SparkSession,
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
    from pyspark.sql import functions as F

    rows = spark.read.parquet(str(path))
    # each query is a Spark job of its own; if this one finds no difference, the others are not needed
    sides = rows.agg(
        F.count_if(F.col("new_value").isNull()).alias("only_live"),
        F.count_if(F.col("live_value").isNull()).alias("only_new"),
        F.count_if(F.col("live_value") != F.col("new_value")).alias("differing"),
        F.count(F.lit(1)).alias("total"),
    ).collect()[0]
    changed, columns = 0, dict[str, int]()
    picked: list[Row] = []
    if sides["differing"]:
        changed, columns, picked = _changed(rows, live, new, tolerance, samples)
    if sides["only_live"] + sides["only_new"] and len(picked) < samples:
        one = rows.where("live_value is null or new_value is null").orderBy("key").limit(samples - len(picked))
        picked += one.select("key", "live_value", "new_value").collect()
    return Comparison(
        only_live=sides["only_live"],
        only_new=sides["only_new"],
        changed=changed,
        identical=sides["total"] - sides["only_live"] - sides["only_new"] - changed,
        columns=columns,
        only_live_columns=tuple(name for name in live.value if name not in new.columns),
        only_new_columns=tuple(name for name in new.value if name not in live.columns),
        samples=fitting(
            ({"key": _key(r[0]), "live": _json(r[1]), "new": _json(r[2])} for r in picked), SAMPLES_BYTES // share
        ),
    )


def _changed(
    rows: DataFrame, live: ResultSpec, new: ResultSpec, tolerance: float, samples: int
) -> tuple[int, dict[str, int], list[Row]]:
    """How many keys that both have differ by more than `tolerance` in a column that both have, in how many each column
    differs, and the first keys. Without a column that both have, all differ.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import DoubleType, FloatType

    from pipelines.engine.frames import ddl_columns

    live_ddl, new_ddl = live.schema_ddl, new.schema_ddl
    live_fields = {f.name: f for f in ddl_columns(live_ddl).fields}
    both = [f for f in ddl_columns(new_ddl).fields if f.name in live.value and f.name in new.value]

    def side(name: str, ddl: str) -> Any:
        return F.from_json(F.col(f"{name}_value"), ddl_columns(ddl)).alias(name)

    differing = rows.where("live_value <> new_value")
    parsed = differing.select("key", "live_value", "new_value", side("live", live_ddl), side("new", new_ddl))
    flags = []
    for f in both:
        mine, theirs = F.col(f"live.`{f.name}`"), F.col(f"new.`{f.name}`")
        if live_fields[f.name].dataType != f.dataType:
            mine, theirs = mine.cast("string"), theirs.cast("string")
        differs = ~mine.eqNullSafe(theirs)
        if tolerance and isinstance(f.dataType, DoubleType | FloatType):
            close = F.abs(mine - theirs) <= tolerance * F.greatest(F.abs(mine), F.abs(theirs))
            differs = differs & ~F.coalesce(close, F.lit(False))
        flags.append(differs.alias(f"d_{f.name}"))
    any_flag = F.lit(not both)
    for f in both:
        any_flag = any_flag | F.col(f"`d_{f.name}`")
    changed = parsed.select("key", "live_value", "new_value", *flags).where(any_flag)
    counts = changed.agg(
        F.count(F.lit(1)), *(F.count_if(F.col(f"`d_{f.name}`")).alias(f.name) for f in both)
    ).collect()[0]
    columns = {f.name: int(count) for f, count in zip(both, counts[1:], strict=True) if count}
    picked = changed.select("key", "live_value", "new_value").orderBy("key").limit(samples).collect()
    return int(counts[0]), columns, picked


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
