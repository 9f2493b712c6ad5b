"""A query in plain Spark, with Spark's own source and its sink, which writes at least once: `python -m
benchmarks.race.plain_spark QUERY BOOTSTRAP RESULT FOLDER HEAP_MB`. It runs until it is ended.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.race.queries import QUERIES, Query
from orchestration.catalog import find_apps
from pipelines.engine.jvm.jars import jar_set
from pipelines.model.app import App, AppSettings, Input, Json, Stream

# as many as a batch of ours grows to
RECORDS_PER_BATCH = 2_000_000


def app_of(query: Query) -> App:
    """The app whose function the query is."""
    if query.code_dir is None:
        return next(app for app in find_apps() if app.name == query.app)
    module = importlib.import_module(f"benchmarks.race.apps.{query.app.replace('-', '_')}")
    return next(value for value in vars(module).values() if isinstance(value, App))


def committed(checkpoint: Path) -> Mapping[int, int]:
    """Partition -> offset up to which the query has committed; {} before the first batch."""
    batches = [int(path.name) for path in checkpoint.glob("commits/*") if path.name.isdigit()]
    if not batches:
        return {}
    [offsets] = json.loads((checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[-1]).values()
    return {int(partition): offset for partition, offset in offsets.items()}


def _session(folder: Path, heap_mb: int) -> SparkSession:
    state = "spark.sql.streaming.stateStore"
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", f"{heap_mb}m")
        .config("spark.driver.extraClassPath", ":".join(map(str, jar_set("spark"))))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.local.dir", str(folder))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config(f"{state}.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        .config(f"{state}.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )


def _read(spark: SparkSession, bootstrap: str, source: Input) -> DataFrame:
    if not isinstance(source, Stream) or not isinstance(source.value, Json) or not isinstance(source.key, str):
        raise TypeError(f"{source.topic} is not read as a key of text and a JSON value")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", str(source.topic))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_BATCH)
        .load()
    )
    value = F.from_json(F.col("value").cast("string"), source.value.schema).alias("value")
    key = F.col("key").cast("string").alias(source.key.split()[0])
    return records.select(F.col("timestamp").alias("event_time"), key, value).select("*", "value.*").drop("value")


def main() -> None:
    name, bootstrap, result, folder, heap_mb = sys.argv[1:]
    query = QUERIES[name]
    app = app_of(query)
    spark = _session(Path(folder), int(heap_mb))
    [source] = app.inputs.values()
    frame = _read(spark, bootstrap, source)
    if app.watermark is not None:
        frame = frame.withWatermark("event_time", app.watermark)
    rows = app.function(frame, AppSettings(app.settings))
    rest = [column for column in rows.columns if column not in query.key]
    records = rows.select(F.to_json(F.struct(*query.key)).alias("key"), F.to_json(F.struct(*rest)).alias("value"))
    (
        records.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.compression.type", "lz4")
        .option("kafka.batch.size", 262_144)
        .option("topic", result)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .outputMode(app.output_mode)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
