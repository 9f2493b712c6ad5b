"""A driver's JVM gives memory back while there is no input, and only then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.engine import driver
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.jvm_heap import AT_REST, AT_WORK, JvmHeap
from pipelines.settings import Settings
from tests.e2e.cluster import LARGE, Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def free(spark: SparkSession) -> Iterator[Callable[[], tuple[int, int]]]:
    """The least and the most that the JVM keeps free, in percent."""
    heap = java_class("io.switchyard.Heap")
    yield lambda: (int(heap.least()), int(heap.most()))
    heap.keepFree(*AT_WORK)


@pytest.mark.spark
def test_java_keeps_as_much_free_as_it_is_told(free: Callable[[], tuple[int, int]]) -> None:
    assert free() == AT_WORK
    heap = JvmHeap()
    for rests in (False, True, True, False):
        heap.rest(rests)
        assert free() == (AT_REST if rests else AT_WORK)


@pytest.mark.e2e
@pytest.mark.broker
@pytest.mark.spark
def test_a_driver_without_input_tells_java_to_give_memory_back(
    running_broker: Settings,
    spark: SparkSession,
    free: Callable[[], tuple[int, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "REST_S", 1.0)
    cluster = Cluster(running_broker, tmp_path, lambda: spark)
    try:
        cluster.load("word-count", 200, per_second=100)
        cluster.hydrate("word-count", 1, batch=LARGE)
        cluster.until("it does not rest", lambda: free() == AT_REST)
        with cluster.producing("word-count", 100, per_second=100):
            cluster.until("it does not work", lambda: free() == AT_WORK)
        cluster.until("it does not rest again", lambda: free() == AT_REST)
        cluster.stop("word-count.v1")
    finally:
        cluster.close()
