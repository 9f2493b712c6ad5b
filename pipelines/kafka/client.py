"""Kafka clients: confluent-kafka's own, configured once from the settings."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from pipelines.errors import BadUsage, LoginRefused, SwitchyardError
from pipelines.kafka import login
from pipelines.kafka.failures import LOGIN_TABLE, NO_GROUP, NOT_REACHED, failure, is_login
from pipelines.settings import Settings

# errors reach us as exceptions; librdkafka would also print each fencing, which is normal here, to the terminal
_UNHEARD = logging.Logger("librdkafka", logging.CRITICAL + 1)
Answer = TypeVar("Answer")
# Kafka's default message.max.bytes (1 MiB and 12 bytes), less the 61 bytes of a batch header, which librdkafka doesn't
# count when it measures a record, and less what LZ4 adds to what it can't compress: a block of 64 KiB gets 4 bytes, and
# the whole gets 11. So a broker accepts whatever is queued. librdkafka's own default, 1,000,000, would refuse records that
# a Java producer (max.request.size: 1 MiB) has written
MAX_RECORD_BYTES = 1_048_588 - 61 - 79
# how long the first request waits before we look at the client's errors: a refused login shows up only there, and the
# client would retry it until the timeout
_LOOK_S = 0.5
# the partition's leader has just changed, can't tell yet where the partition ends, or was dropped by the client, as it died
MOVED = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH,
         KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError._DESTROY_BROKER)  # fmt: skip
# no leader can be asked: a new client's metadata doesn't know it yet, or it has just changed
UNLED = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, *MOVED)
# how long a broker may be silent before a client looks whether it is dead
_SILENT_S = 2.0
# a group's coordinator moves to another broker
UNCOORDINATED = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE,
                 KafkaError.NOT_COORDINATOR)  # fmt: skip
# shortest wait for an answer, even after the deadline
_PAUSE_S = 0.05


def _base(settings: Settings) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.bootstrap,
        "log_level": 0,
        "socket.connection.setup.timeout.ms": 5_000,
        # a new client connects to a second broker, or to the first one by its id, after half of this time, but after
        # 11 ms at least (librdkafka's `sparse_connect_intvl`). With the default, 100 ms, it does nothing for 50 ms
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 30_000,
        # with a broker's default settings, a producer or an admin client that asks for a deleted topic creates it again
        "allow.auto.create.topics": False,
        **login.properties(settings),
    }


class _Errors:
    """Keeps a client's last connection error: librdkafka passes it to a callback and retries forever."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # "all brokers down" is only a consequence; an earlier error gives the cause
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = error


def producer_config(settings: Settings, **conf: Any) -> dict[str, Any]:
    """The configuration of a producer: idempotent, with Java's partitioner for keys."""
    return {
        **_base(settings),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": "lz4",
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 131_072,
        "message.max.bytes": MAX_RECORD_BYTES,
        **{name.replace("_", "."): value for name, value in conf.items()},
    }


def consumer_config(settings: Settings, **conf: Any) -> dict[str, Any]:
    """The configuration of a consumer: reads committed records only and never commits by itself."""
    return {
        **_base(settings),
        "group.id": NO_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": False,
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 65_536,
        # pause in fetching while the queue holds over 100,000 records; the default, 1 s, is waited even if it empties
        "fetch.queue.backoff.ms": 10,
        **{name.replace("_", "."): value for name, value in conf.items()},
    }


def producer(settings: Settings, *, on_error: Callable[[KafkaError], None] | None = None, **conf: Any) -> Producer:
    """A producer. `conf`: librdkafka's names, with underscores for dots. Raises BadUsage for settings that it rejects.

    `on_error` is called with each connection error when the producer is next polled.
    """
    told = {} if on_error is None else {"error_cb": on_error}
    return _made(settings, lambda: Producer({**producer_config(settings, **conf), **told}, logger=_UNHEARD))


def await_connection(client: Producer, topic: str) -> None:
    """Waits until a new idempotent or transactional producer has a connection, for a second at most.

    librdkafka asks for its id, or for the coordinator of its transactions, at once; without a connection it tries again
    only after 500 ms. This asks twice: the first answer may come over the connection to the address in the settings, which
    librdkafka closes once it knows the broker's id. If the connection fails, the next call raises the error.
    """
    deadline = time.monotonic() + 1.0
    with suppress(KafkaException):
        for _ in range(2):
            client.list_topics(topic, timeout=max(0.0, deadline - time.monotonic()))


def consumer(settings: Settings, **conf: Any) -> Consumer:
    """A consumer without a group: assign its partitions by hand. Raises BadUsage as `producer` does."""
    return _made(settings, lambda: Consumer(consumer_config(settings, **conf)))


def drain(client: Consumer, timeout_s: float, *, at_most: int = 10_000) -> list[Message]:
    """Waits up to `timeout_s` for one message (or the end of a partition), then takes what else has arrived.

    `Consumer.consume` alone waits for the whole timeout unless `at_most` messages arrive.
    """
    first = client.poll(timeout_s)
    return [] if first is None else [first, *client.consume(num_messages=at_most, timeout=0)]


def admin(settings: Settings) -> AdminClient:
    """An admin client. Raises BadUsage as `producer` does."""
    return _made(settings, lambda: AdminClient(_base(settings)))


def _made(settings: Settings, make: Callable[[], Answer]) -> Answer:
    try:
        return make()
    except KafkaException as error:
        # no cluster was asked yet. For a missing file OpenSSL gives only a number, so name the file here
        missing = [
            f"{name} names a file that doesn't exist: {path}"
            for name, path in settings.kafka_properties.items()
            if name.endswith(".location") and not Path(path).is_file()
        ]
        # the value may be a password in the wrong place
        reason = re.sub(r'^Invalid value ".*" for', "invalid value for", error.args[0].str(), flags=re.DOTALL)
        raise BadUsage(
            f"the Kafka client rejects its settings: {'; '.join(missing) or reason}",
            fix=f"correct them in {LOGIN_TABLE}",
        ) from error


def own(settings: Settings, client: AdminClient | None) -> AdminClient:
    """`client`, or a new one for None. Not `client or ...`: an idle client is falsy."""
    return admin(settings) if client is None else client


def answer_of(future: Future[Any], deadline: float) -> Any:
    """The answer to an admin client's request. Raises KafkaException, also if no answer comes by `deadline`.

    `deadline`: as `time.monotonic`. The request has a timeout of its own, but librdkafka enforces it only while its
    threads get to run.
    """
    try:
        return future.result(max(_PAUSE_S, deadline - time.monotonic()))
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer in time")) from error


def by_controller(
    client: AdminClient, ask: Callable[[float], Mapping[Any, Future[Any]]], timeout_s: float
) -> Mapping[Any, Future[Any]]:
    """What `ask` returns, the answers to a request about topics. `ask`: sends it, with a timeout in seconds.

    librdkafka sends such requests to one broker, which Kafka names as the controller. If that one dies, it waits for it, and
    asks for another only every five minutes. So while there is no answer, this asks for the brokers, and sends the request
    again: it must change nothing.
    """
    deadline, silent_s = time.monotonic() + timeout_s, _SILENT_S
    while True:
        limit_s = max(_PAUSE_S, min(silent_s, deadline - time.monotonic()))
        asked = ask(limit_s)
        wait(asked.values(), limit_s + _PAUSE_S)
        left_s = deadline - time.monotonic()
        if left_s <= _PAUSE_S or not all(map(_is_late, asked.values())):
            return asked
        know_controller(client, min(_SILENT_S, left_s / 2))
        silent_s *= 2


def know_controller(client: AdminClient, timeout_s: float = _SILENT_S) -> None:
    """Has a client ask which broker takes its requests about topics. If no broker answers, the next request says so."""
    with suppress(KafkaException):
        client.list_topics(timeout=timeout_s)


def _is_late(future: Future[Any]) -> bool:
    if not future.done():
        return True
    error = future.exception()
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._TIMED_OUT


def once_led(ask: Callable[[], Answer], timeout_s: float, *, passing: Sequence[int] = UNLED) -> Answer:
    """What `ask` returns. Asks again while it fails with a code of `passing`: by default, while no leader can be asked."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def require_broker(settings: Settings, timeout_s: float | None = None) -> AdminClient:
    """A client of a cluster that answered within `timeout_s`. Raises Unavailable with the reason and what to do.

    Without `timeout_s`, a broker that takes connections may take as long as any request; one that refuses them, 5 s.
    """
    errors = _Errors()
    conf: dict[str, Any] = {**_base(settings), "error_cb": errors}
    client = _made(settings, lambda: AdminClient(conf))
    began = time.monotonic()
    while True:
        patience_s = settings.request_timeout_s if errors.last is None else min(settings.request_timeout_s, 5.0)
        left_s = began + (timeout_s or patience_s) - time.monotonic()
        try:
            client.list_topics(timeout=min(_LOOK_S, max(left_s, 0.01)))
            return client
        except KafkaException as error:
            client.poll(0)
            refused = errors.last is not None and is_login(errors.last)
            if refused or left_s < _LOOK_S or error.args[0].code() not in NOT_REACHED:
                raise failure(settings, errors.last or error.args[0]) from error


def login_refused(settings: Settings, timeout_s: float) -> LoginRefused | None:
    """The error if the cluster refuses this login now. None: it accepts it, or doesn't answer within `timeout_s`."""
    try:
        require_broker(settings, timeout_s)
    except LoginRefused as error:
        return error
    except SwitchyardError:
        return None
    return None


def answers(client: AdminClient, topic: str, timeout_s: float = 1.0) -> bool:
    """Whether a broker gives any answer within `timeout_s`. `topic`: what it is asked about."""
    try:
        client.list_topics(topic, timeout=timeout_s)
    except KafkaException as error:
        return error.args[0].code() not in NOT_REACHED
    return True
