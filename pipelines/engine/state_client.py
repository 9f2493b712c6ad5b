"""The state of an app in Python: Spark's client, except that it waits for the JVM only when it needs to know something.

Spark's worker waits for an answer to each request, five to nine times for a key. Most of these answers only say that
it was done. This client reads them with the next one that says more. The JVM carries out the requests in their order, so
each of them sees what was done before.

It first sends a secret, without which the JVM refuses it (`jvm/LocalStateServer.scala`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from struct import Struct
from typing import Any

from pyspark import worker
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor_api_client
from pyspark.sql.streaming.list_state_client import ListStateClient
from pyspark.sql.streaming.map_state_client import MapStateClient
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.streaming.value_state_client import ValueStateClient

from pipelines.engine.guard import STATE_SECRET

# what comes before a message: the version of the format, and the number of its bytes
_HEAD = Struct(">ii")
# answers, and bytes of the requests that they are for. So few that both sockets can hold them: otherwise each side could
# wait for the other to read, or this one for a server that has stopped at an error
_UNREAD, _UNREAD_BYTES = 1_000, 64 * 1024
# of each client, the requests whose answer says nothing but that it was done
_DONE: dict[type, tuple[str, ...]] = {
    ValueStateClient: ("update", "clear"),
    ListStateClient: ("append_value", "clear"),
    MapStateClient: ("update_value", "remove_key", "clear"),
}


def _unread(method: Callable[..., None]) -> Callable[..., None]:
    """The request `method`, whose answer is left unread."""

    @wraps(method)
    def call(self: Any, *arguments: Any) -> None:
        client = getattr(self, "_stateful_processor_api_client", self)
        client.leaves_unread = True
        try:
            method(self, *arguments)
        finally:
            client.leaves_unread = False

    return call


class StateClient(StatefulProcessorApiClient):
    """Spark's client, except for what the module says. It is for one task.

    An error of a request is raised by a later one, and by each after that, at the latest by the one at the end of the
    task. So the task fails, even if the app ignores the error.
    """

    def __init__(self, state_server_port: int, key_schema: Any, is_driver: bool = False) -> None:
        super().__init__(state_server_port, key_schema, is_driver)
        self._client_socket.sendall(os.environ[STATE_SECRET].encode("ascii"))
        self.leaves_unread = False
        self._unread = self._unread_bytes = 0
        self._error: PySparkRuntimeError | None = None

    set_implicit_key = _unread(StatefulProcessorApiClient.set_implicit_key)
    remove_implicit_key = _unread(StatefulProcessorApiClient.remove_implicit_key)
    register_timer = _unread(StatefulProcessorApiClient.register_timer)
    delete_timer = _unread(StatefulProcessorApiClient.delete_timer)

    def _send_proto_message(self, message: bytes) -> None:
        # as Spark's, but what is sent may wait until an answer is read
        if self._unread_bytes + len(message) > _UNREAD_BYTES or self._error is not None:
            self._catch_up()
        self.sockfile.write(_HEAD.pack(0, len(message)) + message)
        self._unread_bytes += len(message)

    def _receive_proto_message(self) -> tuple[int, str, bytes]:
        if self.leaves_unread and self._unread < _UNREAD:
            self._unread += 1
            return 0, "", b""
        self._catch_up()
        return super()._receive_proto_message()

    def _receive_proto_message_with_long_value(self) -> tuple[int, str, int]:
        self._catch_up()
        return super()._receive_proto_message_with_long_value()

    def _receive_proto_message_with_string_value(self) -> tuple[int, str, str]:
        self._catch_up()
        return super()._receive_proto_message_with_string_value()

    def _send_arrow_state(self, schema: Any, state: list[tuple[Any, ...]]) -> None:
        # of any size
        self._catch_up()
        super()._send_arrow_state(schema, state)

    def _catch_up(self) -> None:
        """Sends what is not sent yet, and reads the answers that were left. Raises PySparkRuntimeError for an error."""
        if self._error is not None:
            raise self._error
        self.sockfile.flush()
        while self._unread:
            self._unread -= 1
            status, error, _ = super()._receive_proto_message()
            if status:
                # the server may have stopped, so nothing more is read
                self._error = PySparkRuntimeError(f"Error in the state of an app: {error}")
                raise self._error
        self._unread_bytes = 0


def install() -> None:
    """Changes this process and the workers that it forks."""
    for module in (stateful_processor_api_client, worker):
        module.StatefulProcessorApiClient = StateClient  # type: ignore[attr-defined]
    for client, names in _DONE.items():
        for name in names:
            setattr(client, name, _unread(getattr(client, name)))
