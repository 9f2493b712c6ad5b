"""latest-value: the newest value of each key."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Changelog, Json, Table, app


@app(
    name="latest-value",
    inputs={"values": Changelog(topic="values", key="key string", value=Json("value bigint NOT NULL"))},
    result=Table(key=("key",), partitions=4),
    suite="latest_value",
    shows="aggregate",
    oversized="dead-letter",
)
def latest_value(values: DataFrame, settings: AppSettings) -> DataFrame:
    """The newest value of each key.

    Result: key, value. The newest record of a key is the one with the highest offset, whatever its event time, as in a table
    of Kafka Streams. A record without a value deletes its key.

    The result's topic is the table as a stream of updates: read it as a `Stream` to get them one by one. A batch gives
    one update for each key that it has records for, also if the value is the same as before. Kafka Streams, without a
    cache, gives one for each record.

    State: a value for each key that ever came, also for deleted keys.
    """
    # all records of a key are in one partition, so their offsets order them
    newest = F.max_by("value", F.struct("partition", "offset"))
    # without a value the row is a tombstone
    return values.groupBy("key").agg(newest.alias("value"))
