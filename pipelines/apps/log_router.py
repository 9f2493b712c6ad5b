"""log-router: application logs, the errors apart from the rest, as Avro."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app

LOG = Json(
    "level string NOT NULL, logger_name string NOT NULL, message string NOT NULL, appName string, thread string, "
    "timestamp timestamp, context map<string,string>"
)
# a new field goes to the end, with a default, so that consumers with this schema can still read
EVENT = """
{
  "type": "record",
  "name": "LogEvent",
  "namespace": "switchyard.logs",
  "fields": [
    {"name": "level", "type": "string"},
    {"name": "logger_name", "type": "string"},
    {"name": "message", "type": "string"},
    {"name": "app_name", "type": ["null", "string"], "default": null},
    {"name": "thread", "type": ["null", "string"], "default": null},
    {"name": "timestamp", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": null},
    {"name": "context", "type": ["null", {"type": "map", "values": ["null", "string"]}], "default": null}
  ]
}
"""


@app(
    name="log-router",
    inputs={"logs": Stream(topic="logs", value=LOG)},
    results={
        "high-priority": AppendStream(partitions=4, avro=EVENT, suite="log_router_high"),
        "low-priority": AppendStream(partitions=4, avro=EVENT, suite="log_router_low"),
    },
    shows="single event",
    oversized="dead-letter",
)
def log_router(logs: DataFrame, settings: AppSettings) -> DataFrame:
    """Routes each log: one whose level is exactly `ERROR` to `high-priority`, any other to `low-priority`.

    Results, both with topic, partition and offset of the log: level, logger_name, message, app_name, thread, timestamp,
    context. Their values are Avro, by the schema `EVENT` of this module.
    """
    event = F.struct(
        "level", "logger_name", "message", F.col("appName").alias("app_name"), "thread", "timestamp", "context",
        "topic", "partition", "offset",
    )  # fmt: skip
    high = F.col("level") == "ERROR"
    return logs.select(F.when(high, event).alias("high-priority"), F.when(~high, event).alias("low-priority"))
