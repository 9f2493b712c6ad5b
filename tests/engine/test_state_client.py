"""The client of an app's state in Python waits only for what it needs to know, and tells each error."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from pyspark import worker
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import list_state_client, stateful_processor_api_client, value_state_client
from pyspark.sql.streaming.proto import StateMessage_pb2
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorHandleState
from pyspark.sql.types import LongType, StringType, StructType

from pipelines.engine import state_client
from pipelines.engine.guard import STATE_SECRET
from pipelines.engine.state_client import StateClient

# generated code, which has no types
proto: Any = StateMessage_pb2
KEY = StructType().add("name", StringType())
TEXT = StructType().add("text", StringType())
VALUE = StructType().add("seen", LongType())
SECRET = "let me in"
ENDED = StatefulProcessorHandleState.CLOSED


class Server:
    """Spark's side: it reads `at_once` requests before it answers the first one. `wrong`: the numbers of those that fail.

    As Spark's does, it reads nothing more after an error, and leaves the connection open.
    """

    def __init__(self, at_once: int, wrong: dict[int, str]) -> None:
        self.at_once, self.wrong = at_once, wrong
        self.requests: list[Any] = []
        self.closed = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        connection, _ = self._socket.accept()
        with connection, connection.makefile("rwb") as stream:
            assert stream.read(len(SECRET)) == SECRET.encode()
            unanswered: list[int] = []
            while head := stream.read(8):
                version, length = struct.unpack(">ii", head)
                assert version == 0
                unanswered.append(len(self.requests))
                self.requests.append(proto.StateRequest.FromString(stream.read(length)))
                if len(unanswered) == self.at_once:
                    for number in unanswered:
                        error = self.wrong.get(number, "")
                        answer = proto.StateResponse(statusCode=int(bool(error)), errorMessage=error, value=b"")
                        sent = answer.SerializeToString()
                        stream.write(struct.pack(">i", len(sent)) + sent)
                    stream.flush()
                    if any(number in self.wrong for number in unanswered):
                        self.closed.wait(60)
                        return
                    unanswered = []

    def close(self) -> None:
        self._thread.join(10)
        self._socket.close()
        assert not self._thread.is_alive()


@contextmanager
def connected(at_once: int, wrong: dict[int, str] | None = None) -> Iterator[tuple[StateClient, Any, Server]]:
    """A client in a worker of ours, the state of a value, and the server. A wait that never ends fails after 10 s."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, names in state_client._DONE.items():
            for name in names:
                patch.setattr(kind, name, getattr(kind, name))
        for module in (worker, stateful_processor_api_client):
            patch.setattr(module, "StatefulProcessorApiClient", module.StatefulProcessorApiClient)  # type: ignore[attr-defined]
        patch.setenv(STATE_SECRET, SECRET)
        state_client.install()
        server = Server(at_once, wrong or {})
        client: Any = StateClient(server.port, KEY)
        client._client_socket.settimeout(10)
        try:
            yield client, value_state_client.ValueStateClient(client, VALUE), server
        finally:
            server.closed.set()
            # what was not sent can't be sent any more
            with suppress(OSError):
                client.sockfile.close()
            client._client_socket.close()
            server.close()


def test_only_what_is_read_is_waited_for() -> None:
    # the server answers nothing before it has all five: to wait for one of the first four would take for ever
    with connected(at_once=5) as (client, state, server):
        client.set_implicit_key(("a",))
        state.update("seen", (1,))
        client.register_timer(1_000)
        client.delete_timer(1_000)
        assert state.get("seen") is None
        assert len(server.requests) == 5


def test_the_end_of_a_task_waits_for_what_was_not_read() -> None:
    with connected(at_once=3) as (client, state, server):
        state.update("seen", (1,))
        client.remove_implicit_key()
        client.set_handle_state(ENDED)
        assert client.handle_state == ENDED
        assert len(server.requests) == 3


def test_an_error_is_raised_by_the_next_request_that_waits() -> None:
    with connected(at_once=3, wrong={1: "no such column: tally"}) as (client, state, _):
        client.set_implicit_key(("a",))
        state.update("seen", (1,))
        with pytest.raises(PySparkRuntimeError, match="no such column: tally"):
            state.get("seen")


def test_the_end_of_a_task_raises_an_error() -> None:
    with connected(at_once=2, wrong={0: "the disk is full"}) as (client, state, _):
        state.clear("seen")
        with pytest.raises(PySparkRuntimeError, match="the disk is full"):
            client.set_handle_state(ENDED)
        assert client.handle_state != ENDED


def test_an_error_that_the_app_ignores_still_fails_the_task() -> None:
    with connected(at_once=2, wrong={0: "the disk is full"}) as (client, state, _):
        state.update("seen", (1,))
        with suppress(PySparkRuntimeError):
            state.get("seen")
        with pytest.raises(PySparkRuntimeError, match="the disk is full"):
            state.update("seen", (2,))
        with pytest.raises(PySparkRuntimeError, match="the disk is full"):
            client.set_handle_state(ENDED)


def test_a_server_that_stopped_at_an_error_is_not_sent_more_than_its_socket_can_hold() -> None:
    with connected(at_once=1, wrong={0: "null value in a column that is not nullable"}) as (_, state, server):
        state.schema = TEXT
        with pytest.raises(PySparkRuntimeError, match="not nullable"):
            for _ in range(1_000):
                state.update("seen", ("x" * 20_000,))
        assert len(server.requests) == 1


def test_a_list_is_sent_when_the_server_has_answered_what_came_before() -> None:
    with connected(at_once=1, wrong={0: "the disk is full"}) as (client, state, _):
        order = list_state_client.ListStateClient(client, VALUE)
        state.update("seen", (1,))
        with pytest.raises(PySparkRuntimeError, match="the disk is full"):
            order.put("order", [(n,) for n in range(1_000_000)])


def test_no_more_answers_are_left_unread_than_sockets_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_client, "_UNREAD", 3)
    # the fourth waits for all
    with connected(at_once=4) as (_, state, server):
        for seen in range(8):
            state.update("seen", (seen,))
        assert len(server.requests) == 8
