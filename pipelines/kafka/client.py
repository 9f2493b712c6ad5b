"""Kafka clients from the settings: confluent-kafka's own, configured once, with errors a person can act on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from pipelines.errors import Unavailable
from pipelines.settings import Settings

# what matters comes as errors; librdkafka would also write a fencing, which is ordinary here, to the terminal
_UNHEARD = logging.Logger("librdkafka", logging.CRITICAL + 1)
Answer = TypeVar("Answer")
# 15 min is the broker's default maximum; over the longest batch, under that
TRANSACTION_TIMEOUT_MS = 600_000


def _base(settings: Settings) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.bootstrap,
        "log_level": 0,
        "socket.connection.setup.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 30_000,
        **settings.kafka,
    }


class _Errors:
    """Keeps a client's last connection error: librdkafka tells it to a callback and retries for ever."""

    def __init__(self) -> None:
        self.last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # that all brokers are down follows from an error that says why
        if self.last is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.last = error


def producer_config(settings: Settings, **conf: Any) -> dict[str, Any]:
    """Configuration of a producer: idempotent, and keys partitioned as Java's clients do."""
    return {
        **_base(settings),
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "compression.type": "lz4",
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 131_072,
        **{name.replace("_", "."): value for name, value in conf.items()},
    }


def consumer_config(settings: Settings, **conf: Any) -> dict[str, Any]:
    """Configuration of a consumer: read committed, never committing by itself."""
    return {
        **_base(settings),
        "group.id": "switchyard-unused",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": False,
        "fetch.wait.max.ms": 50,
        "queued.max.messages.kbytes": 65_536,
        **{name.replace("_", "."): value for name, value in conf.items()},
    }


def producer(settings: Settings, **conf: Any) -> Producer:
    """A producer; `conf` by librdkafka's names with underscores for dots."""
    return Producer(producer_config(settings, **conf), logger=_UNHEARD)


def consumer(settings: Settings, **conf: Any) -> Consumer:
    """A consumer without a group of its own: assign partitions to it by hand."""
    return Consumer(consumer_config(settings, **conf))


def drain(client: Consumer, timeout_s: float, *, at_most: int = 10_000) -> list[Message]:
    """Waits up to `timeout_s` for one message (or end of partition), then takes what else has come.

    `Consumer.consume` alone waits for the whole time-out unless `at_most` messages come.
    """
    first = client.poll(timeout_s)
    return [] if first is None else [first, *client.consume(num_messages=at_most, timeout=0)]


def admin(settings: Settings) -> AdminClient:
    return AdminClient(_base(settings))


def own(settings: Settings, client: AdminClient | None) -> AdminClient:
    """`client`, or a new one for None. Not `client or ...`: an idle client counts as false."""
    return admin(settings) if client is None else client


def once_led(ask: Callable[[], Answer], timeout_s: float) -> Answer:
    """What `ask` returns. A new client's metadata may not know the partition's leader yet: then it is asked again."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except KafkaException as error:
            unknown = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.LEADER_NOT_AVAILABLE,
                       KafkaError.NOT_LEADER_FOR_PARTITION)  # fmt: skip
            if error.args[0].code() not in unknown or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def require_broker(settings: Settings, timeout_s: float | None = None) -> AdminClient:
    """A client of a cluster that has answered within `timeout_s`. Raises Unavailable with the reason and what to do."""
    errors = _Errors()
    conf: dict[str, Any] = {**_base(settings), "error_cb": errors}
    client = AdminClient(conf)
    try:
        client.list_topics(timeout=timeout_s or min(settings.request_timeout_s, 5.0))
    except KafkaException as error:
        client.poll(0)
        raise unavailable(settings, errors.last or error.args[0]) from error
    return client


def unavailable(settings: Settings, error: KafkaError | None) -> Unavailable:
    """The error that tells a person why the cluster at `settings.bootstrap` can't be used."""
    where = settings.bootstrap
    if error is not None and error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return Unavailable(
            f"the Kafka cluster at {where} refuses the login: {error.str()}",
            fix="check sasl.mechanism, sasl.username and sasl.password in the kafka table of switchyard.toml",
        )
    if error is not None and error.code() == KafkaError._SSL:
        return Unavailable(
            f"no TLS connection to the Kafka cluster at {where}: {error.str()}",
            fix="check security.protocol and ssl.ca.location in the kafka table of switchyard.toml",
        )
    # down without a failed connection: each was taken, and dropped at the first request
    if error is not None and (error.code() == KafkaError._ALL_BROKERS_DOWN or "security.protocol" in error.str()):
        return Unavailable(
            f"the Kafka cluster at {where} takes connections and drops them, as one does that asks for a login or TLS",
            fix="check security.protocol and the login in the kafka table of switchyard.toml, or in SWITCHYARD_KAFKA",
        )
    fix = "start it with `switchyard up`" if settings.embedded else "check SWITCHYARD_BOOTSTRAP_SERVERS and the network"
    reason = f": {error.str()}" if error is not None else ""
    return Unavailable(f"no Kafka broker answers at {where}{reason}", fix=fix)
