"""Limits how far the sources of a running query read, so that a batch ends where it should without a stop of the query.

Spark's Kafka source has such an end for `Trigger.AvailableNow`: once it has prepared for that trigger, it plans no batch
past the offsets that it stored then. Offsets and trigger are private fields of it (`KafkaMicroBatchStream`, Spark 4.0.2).
They are set here, between two batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pipelines.engine.jvm.classes import java_class
from pipelines.model.positions import SourcePosition

_SUBSCRIBED = re.compile(r"Subscribe\[(?P<topic>[^\]]+)\]")


class SourceEnds:
    """The ends of the sources of one running query. Change them only while the query waits in its sink."""

    def __init__(self, query: Any, inputs: Mapping[str, str]) -> None:
        """`query`: a StreamingQuery that has run a batch. `inputs`: source name -> topic, in the definition's order.

        Raises LookupError or an error of Py4J if Spark's sources are not the ones that this code knows.
        """
        self._streams: list[tuple[str, str, Any]] = []
        free = dict(inputs)
        sources = query._jsq.streamingQuery().sources()
        for number in range(sources.size()):
            stream = sources.apply(number)
            match = _SUBSCRIBED.search(str(stream.toString()))
            topic = match["topic"] if match else ""
            # Spark lists two sources on one topic in the order of the definition
            name = next((n for n, t in free.items() if t == topic), None)
            if name is None:
                raise LookupError(f"{stream.toString()} is no input")
            del free[name]
            self._streams.append((name, topic, stream))
        if free:
            raise LookupError(f"Spark has no source for {', '.join(free)}")
        kind = self._streams[0][2].getClass()
        self._end = kind.getDeclaredField("allDataForTriggerAvailableNow")
        self._closed = kind.getDeclaredField("isTriggerAvailableNow")
        for field in (self._end, self._closed):
            field.setAccessible(True)
        # converts JSON to the Scala map that a source stores
        self._offsets = java_class("org.apache.spark.sql.kafka010.JsonUtils")

    def limit_to(self, end: SourcePosition) -> None:
        """Makes Spark plan no batch past `end`, which must name every partition of every source."""
        for name, topic, stream in self._streams:
            offsets = {str(p): o for p, o in end.sources[name].items()}
            self._end.set(stream, self._offsets.partitionOffsets(json.dumps({topic: offsets})))
            self._closed.setBoolean(stream, True)

    def lift(self) -> None:
        """Removes the limit."""
        for _, _, stream in self._streams:
            self._closed.setBoolean(stream, False)
            self._end.set(stream, None)
