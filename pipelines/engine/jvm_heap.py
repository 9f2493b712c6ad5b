"""How much of its heap the JVM of a driver keeps free; see Heap in jvm/."""

from __future__ import annotations

from pipelines.engine.jvm.classes import java_class

# without a batch for so long, a driver gives memory back. G1 looks each half minute
REST_S = 15.0
# The least and the most that is free after a collection, in percent of the heap. Java's defaults: `java -XX:+PrintFlagsFinal`.
# With little room, G1 collects without end while batches run, and history is read at two thirds of the rate
AT_WORK, AT_REST = (40, 70), (10, 20)


class JvmHeap:
    """The heap of the JVM in this process. A JVM begins with Java's defaults, as if at work."""

    def __init__(self) -> None:
        self._rests = False

    def rest(self, rests: bool) -> None:
        """Says whether the driver rests. Calls the JVM only if that has changed."""
        if rests != self._rests:
            java_class("io.switchyard.Heap").keepFree(*(AT_REST if rests else AT_WORK))
            self._rests = rests
