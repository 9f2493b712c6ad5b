"""Static tables: which records of a topic are the rows of one, and the DataFrame that an app's function gets of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyarrow.parquet import ParquetFile
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pipelines.engine.frames import MALFORMED, input_columns, key_schema, nothing, parse
from pipelines.engine.metrics import reason_of
from pipelines.engine.raw import RAW, Record, as_arrow
from pipelines.engine.table_file import Row, TableChanged, checked, rows_in
from pipelines.errors import Refused
from pipelines.model.app import App, StaticTable
from pipelines.model.entries import ReleaseSpec
from pipelines.model.names import quoted
from pipelines.model.parts import reading_table_again
from pipelines.settings import Settings

# of rows whose place in the topic means nothing any more
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """The records of a topic that are the rows of its table: `places`, each a partition and an offset.

    `malformed`: how many records can't be read. `first`: where the first of them is, and why, for a person.
    """

    places: frozenset[tuple[int, int]] = frozenset()
    malformed: int = 0
    first: str = ""

    @property
    def in_words(self) -> str:
        """`2 malformed records, the first at rates[0] offset 5: field rate is missing`."""
        records = "1 malformed record" if self.malformed == 1 else f"{self.malformed:,} malformed records"
        return f"{records}, the first at {self.first}"


def newest(raw: DataFrame, source: StaticTable) -> Newest:
    """The newest record of each key in `raw`, Kafka's columns, without the keys that it deletes.

    All records of a key are in one partition of a topic, so their offsets order them. A malformed record does not count:
    its key keeps the value before.
    """
    seen = Observation()
    parsed = parse(raw, source.as_changelog).observe(
        seen, F.count(MALFORMED).alias("malformed"), F.to_json(F.min(MALFORMED)).alias("first")
    )
    place = F.struct("partition", "offset")
    last = (
        parsed.where(F.col(MALFORMED).isNull())
        .groupBy(*map(quoted, key_schema(source).names))
        .agg(F.max_by(F.struct("partition", "offset", "deleted"), place).alias("last"))
        .select("last.*")
        .where("NOT deleted")
        .toArrow()
    )
    places = frozenset(zip(last["partition"].to_pylist(), last["offset"].to_pylist(), strict=True))
    found = seen.get
    if not found["malformed"]:
        return Newest(places=places)
    letter = json.loads(found["first"])
    reason = reason_of(letter, source.as_changelog)
    first = f"{letter['topic']}[{letter['partition']}] offset {letter['offset']}: {reason}"
    return Newest(places=places, malformed=found["malformed"], first=first)


def rows_of(spark: SparkSession, records: Sequence[Record], source: StaticTable) -> tuple[list[Row], Newest]:
    """The rows of a static table whose topic has these records, and what `newest` says of them."""
    found = newest(spark.createDataFrame(as_arrow(records)), source) if records else Newest()
    rows = [(r.key or b"", r.value or b"") for r in records if (r.partition, r.offset) in found.places]
    return rows, found


def rows_in_topic(
    spark: SparkSession, records: str, source: StaticTable, what: str, max_bytes: int
) -> tuple[list[Row], Newest]:
    """The same, of a Parquet file of records. `what`: the table, for messages. Raises as `refuse_large` does."""
    found = newest(spark.read.parquet(records), source)
    rows: list[Row] = []
    size = 0
    for batch in ParquetFile(records).iter_batches():
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value"))
        for partition, offset, key, value in zip(*columns, strict=True):
            if (partition, offset) in found.places:
                rows.append((key, value))
                size += len(key) + len(value)
        refuse_large(what, size, max_bytes)
    return rows, found


def refuse_large(what: str, size: int, max_bytes: int) -> None:
    """Raises Refused if a static table of `size` bytes is larger than it may be."""
    if size > max_bytes:
        raise Refused(
            f"{what} has more than {max_bytes:,} bytes: each core holds it, and each batch sends it there",
            fix="make it a Changelog and join it with as_of; or, if drivers have the memory, raise "
            "SWITCHYARD_STATIC_TABLE_MAX_BYTES and `switchyard stage` again",
        )


def frame_of(spark: SparkSession, name: str, source: StaticTable, rows: Sequence[Row]) -> DataFrame:
    """The DataFrame of static table `name`, parsed again each time it is read. Raises BadUsage as `input_columns` does."""
    return F.broadcast(_parsed(spark, name, source, rows))


def _parsed(spark: SparkSession, name: str, source: StaticTable, rows: Sequence[Row]) -> DataFrame:
    columns = input_columns(name, source).names
    raw = _raw(spark, source, rows)
    return parse(raw, source.as_changelog).where(F.col(MALFORMED).isNull()).select(*map(quoted, columns))


def _raw(spark: SparkSession, source: StaticTable, rows: Sequence[Row]) -> DataFrame:
    if not rows:
        # a frame that Spark doesn't know to be empty: it would leave a join with that out of the plan
        return nothing(spark, spark.createDataFrame(RAW.empty_table()).schema)
    records = [
        Record(topic=source.topic, partition=0, offset=number, key=key, value=value, time=_NO_TIME)
        for number, (key, value) in enumerate(rows)
    ]
    # one partition: each batch sends the table to all cores anyway
    return spark.createDataFrame(as_arrow(records)).coalesce(1)


@dataclass(frozen=True, slots=True)
class StaticTables:
    """The rows of a release's static tables by name, read once, as they were staged."""

    rows: Mapping[str, Sequence[Row]]
    release: str

    @classmethod
    def of(cls, settings: Settings, spec: ReleaseSpec) -> StaticTables:
        """Those of a release, from its files. Raises TableChanged as `checked` does."""
        rows = {
            name: rows_in(checked(settings, given.digest, name, spec.release).data)
            for name, given in spec.static_tables.items()
        }
        return cls(rows, spec.release)

    def frames(self, spark: SparkSession, app: App) -> dict[str, DataFrame]:
        """The DataFrames that the app's function gets of them. They are parsed once, and kept in memory.

        Raises TableChanged if a row can't be read any more, so that no row goes missing.
        """
        found = {}
        for name, source in app.static_tables.items():
            kept = _parsed(spark, name, source, self.rows[name]).persist()
            if (count := kept.count()) != len(self.rows[name]):
                raise TableChanged(
                    f"of the {len(self.rows[name]):,} rows of static table {name} of {self.release}, this version of Switchyard "
                    f"reads only {count:,}",
                    fix=f"run the version that staged it, {reading_table_again(self.release)}",
                )
            found[name] = F.broadcast(kept)
        return found
