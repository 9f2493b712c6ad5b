"""The end of a query is known when it has ended, and only then."""

from __future__ import annotations

import threading

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from pipelines.engine.ending import Ending
from tests.shared.waiting import until


class Spark:
    """A query of Spark whose end a test decides. `raises`: what the call that waits raises; `lost`: what others raise."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.raises: Exception | None = None
        self.active = True
        self.lost: Exception | None = None
        self.asked = threading.Event()

    def awaitTermination(self) -> None:
        assert self.end.wait(10)
        if self.raises is not None:
            raise self.raises

    @property
    def isActive(self) -> bool:
        if self.lost is not None:
            raise self.lost
        self.asked.set()
        return self.active


@pytest.mark.parametrize("error", [None, StreamingQueryException("a batch failed")])
def test_it_is_over_when_the_query_has_ended_with_or_without_an_error(error: Exception | None) -> None:
    query = Spark()
    query.raises = error
    ending = Ending(query)
    assert not ending.is_over
    query.end.set()
    ending.wait(10)
    assert ending.is_over


def test_a_call_that_fails_is_no_end() -> None:
    query = Spark()
    query.raises = Py4JNetworkError("no file is left")
    query.end.set()
    ending = Ending(query)
    assert query.asked.wait(10)
    assert not ending.is_over
    query.active = False
    until("it is not over", lambda: ending.is_over, 10)


def test_a_jvm_that_is_gone_is_told() -> None:
    query = Spark()
    query.raises = query.lost = Py4JNetworkError("the JVM is gone")
    query.end.set()
    ending = Ending(query)
    ending.wait(10)
    with pytest.raises(Py4JNetworkError, match="the JVM is gone"):
        _ = ending.is_over
