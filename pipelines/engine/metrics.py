"""What Spark knows about the batch that it just ran, read from the running query. Spark's listeners report too late."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.engine.frames import json_schema
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.misfit import misfit
from pipelines.model.app import Json, Source
from pipelines.model.as_of import LATE

_EXECUTED = "org.apache.spark.sql.switchyard.Executed"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that can't be parsed: its original bytes, where it was, and why it can't be parsed."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        return [
            ("topic", self.topic.encode()),
            ("partition", str(self.partition).encode()),
            ("offset", str(self.offset).encode()),
            ("reason", self.reason.encode()),
        ]


@dataclass(frozen=True, slots=True)
class BatchMetrics:
    """Rows read, rows that were late, and the malformed records, each once, sorted by topic, partition and offset."""

    rows_in: int
    late_dropped: int
    malformed: list[DeadLetter]


def batch_metrics(query: Any, inputs: Mapping[str, Source]) -> BatchMetrics:
    """Metrics of the last execution of `query` (a StreamingQuery), by the observations named as its `inputs`, the app's
    sources.

    Spark reports them only after the batch is committed; the sink needs them within the batch's transaction.
    """
    found = json.loads(java_class(_EXECUTED).metrics(query._jsq.streamingQuery().lastExecution()))
    observed: dict[str, dict[str, Any]] = found["observed"]
    rows_in = 0
    malformed: dict[tuple[str, int, int], DeadLetter] = {}
    for name, source in inputs.items():
        metric = observed.get(name, {"rows": 0, "malformed": []})
        rows_in += metric["rows"]
        for letter in metric["malformed"]:
            at = letter["topic"], letter["partition"], letter["offset"]
            key, value = _bytes(letter.get("key")), _bytes(letter.get("value"))
            malformed[at] = DeadLetter(*at, key, value, reason_of(letter, source))
    # `as_of` observes the records of its table whose time the watermark had passed
    late_of_tables = sum(metric.get("late") or 0 for name, metric in observed.items() if name.startswith(LATE))
    return BatchMetrics(rows_in, found["late"] + late_of_tables, [malformed[at] for at in sorted(malformed)])


def reason_of(letter: Mapping[str, Any], source: Source) -> str:
    """Why a record of `source` is malformed. `letter`: what `parse` gives of it, as JSON."""
    part = letter["reason"]
    if part not in ("key", "value"):
        return str(part)
    as_ = source.key if part == "key" else source.value
    assert isinstance(as_, Json)
    return misfit(_bytes(letter.get(part)) or b"", json_schema(as_), part)


def _bytes(base64_text: str | None) -> bytes | None:
    return None if base64_text is None else base64.b64decode(base64_text)
