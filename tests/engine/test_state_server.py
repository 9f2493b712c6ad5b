"""The port on which Spark gives an app in Python its state, and what an app gets over it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StringType, StructType

from pipelines.engine.jvm.classes import java_class
from pipelines.model import App, AppendStream, Json, Stream, app
from pipelines.testing import AppTest
from tests.shared.sockets import is_local, listening
from tests.shared.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SOCKET = "org.apache.spark.sql.execution.python.streaming.LocalStateSocket"


class Listener(StatefulProcessor):
    """Gives for each record where the process `pid` listens."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", StructType().add("name", StringType()))

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for _ in rows:
            # over the port in question
            self._seen.update((key[0],))
            for address, port in sorted(listening(self._pid)):
                yield pd.DataFrame({"name": [key[0]], "address": [address], "port": [port]})

    def close(self) -> None:
        pass


def listener(pid: int) -> App:
    def listen(settings: Any, given: DataFrame) -> DataFrame:
        schema = "name string, address string, port long"
        return given.groupBy("name").transformWithStateInPandas(Listener(pid), schema, "append", "none")

    inputs = {"given": Stream(topic="given", key="name string", value=Json("n int NOT NULL"))}
    return app(name="listener", inputs=inputs, result=AppendStream(key=("name",)))(listen)


def test_only_this_machine_can_connect_to_the_state_of_an_app(spark: SparkSession) -> None:
    pid = int(java_class("java.lang.ProcessHandle").current().pid())
    with AppTest(spark, listener(pid)) as test:
        test.send("given", {"n": 1}, key="a", time=0)
        before = listening(pid)
        found = {(row["address"], row["port"]) for row in test.run().rows}
    assert found - before, "the port of the state was not there"
    assert all(is_local(address) for address, _ in found), found


def test_a_message_that_comes_in_two_parts_is_read_whole(spark: SparkSession) -> None:
    server = java_class(SOCKET)()
    with ThreadPoolExecutor(1) as pool, socket.create_connection(("127.0.0.1", server.getLocalPort())) as client:
        client.sendall(secret())
        given = server.accept()
        arrived = given.getInputStream().available
        # as Spark's server reads it
        stream = java_class("java.io.BufferedInputStream")(given.getInputStream())
        message = spark.sparkContext._gateway.new_array(java_class("byte"), 20)  # type: ignore[union-attr]
        client.sendall(b"0123456789")
        until("the first part has not come", lambda: arrived() == 10, 10, poll_s=0.01)
        found = pool.submit(stream.read, message)
        until("the first part is not read", lambda: arrived() < 10, 10, poll_s=0.01)
        client.sendall(b"abcdefghij")
        assert found.result(10) == 20
    given.close()
    server.close()


def test_a_stranger_does_not_take_the_place_of_the_worker(spark: SparkSession) -> None:
    server = java_class(SOCKET)(1_000)

    def connect() -> socket.socket:
        return stack.enter_context(socket.create_connection(("127.0.0.1", server.getLocalPort()), timeout=10))

    with ExitStack() as stack:
        stack.callback(server.close)
        kafka, closed, silent, right, wrong, second = (connect() for _ in range(6))
        # a Kafka client asks for versions: 43 bytes follow
        kafka.sendall(b"\0\0\0\x2b" + b"\0" * 43)
        closed.close()
        wrong.sendall(secret()[:-1] + b"x")
        right.sendall(secret() + b"first")
        second.sendall(secret() + b"second")
        for worker, sent in ((right, b"first"), (second, b"second")):
            given = server.accept()
            stack.callback(given.close)
            assert given.getPort() == worker.getsockname()[1]
            assert bytes(given.getInputStream().readNBytes(len(sent))) == sent
            # a slow function is no reason to close it
            assert given.getSoTimeout() == 0
        for stranger in (kafka, silent, wrong):
            assert refused(stranger)


def refused(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def secret() -> bytes:
    return str(java_class(SOCKET).secret()).encode()


# larger than what a socket takes at once
LONG = 3_000_000


class Keeper(StatefulProcessor):
    """Keeps what it is told in state of each kind, and gives it when a minute is over."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._text = handle.getValueState("text", "text string")
        self._order = handle.getListState("order", "n int")
        self._count = handle.getMapState("count", "n int", "times int")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for n, minute in zip(frame["n"].tolist(), frame["minute"].tolist(), strict=True):
                [before] = self._text.get() or ("",)
                if not before:
                    self._handle.registerTimer((minute + 1) * 60_000)
                    self._handle.registerTimer((minute + 2) * 60_000)
                    self._handle.deleteTimer((minute + 2) * 60_000)
                self._text.update((before + str(n) * LONG,))
                self._order.appendValue((n,))
                [times] = self._count.getValue((n,)) or (0,)
                self._count.updateValue((n,), (times + 1,))
                if n == 9:
                    self._order.clear()
                    self._order.appendList([(7,), (8,)])
                    self._count.removeKey((1,))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        [text] = self._text.get() or ("",)
        parts = [text[at : at + LONG] for at in range(0, len(text), LONG)]
        assert all(part == part[0] * LONG for part in parts)
        found = {
            "text": "".join(part[0] for part in parts),
            "order": "".join(str(n) for (n,) in self._order.get()),
            "count": " ".join(f"{n}:{times}" for (n,), (times,) in sorted(self._count.iterator())),
            "timers": len(list(self._handle.listTimers())),
        }
        self._text.clear()
        self._order.clear()
        self._count.clear()
        yield pd.DataFrame({"name": [key[0]], **{name: [value] for name, value in found.items()}})

    def close(self) -> None:
        pass


def keep(settings: Any, given: DataFrame) -> DataFrame:
    schema = "name string, text string, order string, count string, timers int"
    minute = F.floor(F.unix_millis("event_time") / 60_000).alias("minute")
    rows = given.select("name", "n", "event_time", minute)
    return rows.groupBy("name").transformWithStateInPandas(Keeper(), schema, "append", "eventTime")


def test_an_app_finds_in_each_kind_of_state_what_it_has_written(spark: SparkSession) -> None:
    inputs = {"given": Stream(topic="given", key="name string", value=Json("n int NOT NULL"))}
    keeper = app(name="keeper", inputs=inputs, result=AppendStream(key=("name",)), watermark="1 second")(keep)
    with AppTest(spark, keeper) as test:
        test.send("given", {"n": 1}, key="a", time=0)
        test.send("given", {"n": 1}, key="a", time=1)
        test.send("given", {"n": 2}, key="b", time=2)
        assert test.run().rows == []
        test.send("given", {"n": 2}, key="a", time=3)
        test.send("given", {"n": 9}, key="b", time=4)
        assert test.run().rows == []
        test.send("given", {"n": 3}, key="c", time=100)
        a, b = sorted(test.run().rows, key=lambda row: row["name"])
        # the timer that has ended is deleted after the call
        assert a == {"name": "a", "text": "112", "order": "112", "count": "1:2 2:1", "timers": 1}
        assert b == {"name": "b", "text": "29", "order": "78", "count": "2:1 9:1", "timers": 1}
        # nothing of them is left
        test.send("given", {"n": 1}, key="a", time=101)
        test.send("given", {"n": 5}, key="d", time=300)
        rows = {row["name"]: row["text"] for row in test.run().rows}
        assert rows == {"a": "1", "c": "3"}
