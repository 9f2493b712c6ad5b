"""How long a writer waits, without a broker: every wait ends, whatever the client does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from pipelines.engine import librdkafka
from pipelines.engine import writer as engine_writer
from pipelines.engine.librdkafka import LibrdkafkaProducer
from pipelines.engine.writer import OutcomeUnknown, Writer
from pipelines.errors import BadUsage, Unavailable
from pipelines.settings import Settings

SETTINGS = Settings(bootstrap_servers="127.0.0.1:1", request_timeout_s=0.5, transaction_timeout_s=100)


class Client:
    """A producer that behaves as told. `time_s`: the time that its writer sees."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.full = False
        self.queued = 0
        self.acknowledges: Callable[[], int] = lambda: self.queued
        self.fails: dict[str, BaseException] = {}
        self.hangs: dict[str, threading.Event] = {}
        self.waits: list[tuple[str, float]] = []

    def __len__(self) -> int:
        return self.queued

    def __bool__(self) -> bool:
        return True

    def _do(self, name: str, timeout_s: float) -> None:
        self.waits.append((name, timeout_s))
        if name in self.hangs:
            self.hangs[name].wait(60)
        if name in self.fails:
            raise self.fails[name]

    def list_topics(self, *_: object, **__: object) -> None:
        pass

    def init_transactions(self, timeout_s: float) -> None:
        self._do("init", timeout_s)

    def begin_transaction(self) -> None:
        pass

    def produce(self, *_: object, **__: object) -> None:
        if self.full:
            raise BufferError
        self.queued += 1

    def poll(self, timeout_s: float) -> None:
        self.time_s += timeout_s

    def flush(self, timeout_s: float) -> int:
        self.time_s += timeout_s
        self.queued -= self.acknowledges()
        return self.queued

    def commit_transaction(self, timeout_s: float) -> None:
        self._do("commit", timeout_s)

    def abort_transaction(self, timeout_s: float) -> None:
        self._do("abort", timeout_s)

    def purge(self) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    made = Client()
    monkeypatch.setattr(librdkafka, "producer", lambda *_, **__: made)
    monkeypatch.setattr(engine_writer, "newest_progress", lambda *_: None)
    monkeypatch.setattr(engine_writer, "ends_of", lambda *_, **__: {"sums.v1.g1": {0: 1}})
    monkeypatch.setattr(librdkafka, "_GRACE_S", 0.01)
    yield made
    for event in made.hangs.values():
        event.set()


@pytest.fixture
def writer(client: Client) -> Iterator[Writer[LibrdkafkaProducer]]:
    made = Writer(SETTINGS, "sums.v1", {"sums.v1.g1": 1}, LibrdkafkaProducer, clock=lambda: client.time_s)
    made.connect()
    made.begin()
    yield made
    made.close()


def timed_out(error: pytest.ExceptionInfo[KafkaException]) -> str:
    reason: Any = error.value.args[0]
    assert reason.code() == KafkaError._TIMED_OUT
    return str(reason.str())


def test_the_writer_waits_for_a_full_queue_as_long_as_a_batch_may_take(
    client: Client, writer: Writer[LibrdkafkaProducer]
) -> None:
    client.full = True
    began = client.time_s
    with pytest.raises(KafkaException) as error:
        writer.send("sums.v1.g1", [("k", "v", None)])
    assert "the producer's queue is full within 75%" in timed_out(error)
    assert "SWITCHYARD_TRANSACTION_TIMEOUT_S, 100 s" in timed_out(error)
    assert client.time_s - began == pytest.approx(75, abs=0.3)


def test_acknowledgments_that_keep_coming_are_waited_for_and_others_are_not(
    client: Client, writer: Writer[LibrdkafkaProducer]
) -> None:
    client.acknowledges = lambda: 1
    writer.send("sums.v1.g1", [("k", "v", None)] * 20)
    assert writer.acknowledged().of("sums.v1.g1") == {0: 1}
    # 20 of them took ten times the request timeout
    began = client.time_s
    assert began >= 10 * SETTINGS.request_timeout_s
    client.acknowledges = lambda: 0
    writer.send("sums.v1.g1", [("k", "v", None)] * 7)
    with pytest.raises(KafkaException) as error:
        writer.acknowledged()
    assert "none of 7 records of sums.v1 was acknowledged for 0.5 s (SWITCHYARD_REQUEST_TIMEOUT_S)" in timed_out(error)
    assert client.time_s - began < 3 * SETTINGS.request_timeout_s


def test_a_batch_that_takes_too_long_is_given_up_though_acknowledgments_come(
    client: Client, writer: Writer[LibrdkafkaProducer]
) -> None:
    client.acknowledges = lambda: 1
    writer.send("sums.v1.g1", [("k", "v", None)] * 1_000)
    with pytest.raises(KafkaException) as error:
        writer.acknowledged()
    assert "records are not acknowledged within 75%" in timed_out(error)
    assert client.time_s == pytest.approx(75, abs=0.6)


def test_a_batch_whose_rows_come_too_slowly_is_given_up(client: Client, writer: Writer[LibrdkafkaProducer]) -> None:
    def rows() -> Iterator[Any]:
        for number in itertools.count():
            client.time_s += 0.01
            yield f"k{number}", "v", None

    with pytest.raises(KafkaException) as error:
        writer.send("sums.v1.g1", rows())
    assert "not all records are written within 75%" in timed_out(error)


@pytest.mark.parametrize("call", ["commit", "abort"])
def test_a_call_that_does_not_return_is_given_up_with_its_producer(
    client: Client, writer: Writer[LibrdkafkaProducer], call: str
) -> None:
    client.hangs[call] = threading.Event()
    if call == "commit":
        with pytest.raises(OutcomeUnknown, match="did not return within"):
            writer.commit()
    else:
        writer.abort()
    assert not writer.connected


def test_a_connection_that_does_not_come_back_is_given_up(client: Client) -> None:
    client.hangs["init"] = threading.Event()
    settings = SETTINGS.model_copy(update={"request_timeout_s": 0.05})
    made = Writer(settings, "sums.v1", {"sums.v1.g1": 1}, LibrdkafkaProducer)
    with pytest.raises(KafkaException) as error:
        made.connect()
    assert "did not return within" in timed_out(error)
    assert not made.connected
    made.close()


def test_a_producer_whose_progress_could_not_be_read_is_not_used(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> None:
        raise Unavailable("no Kafka broker answers")

    made = Writer(SETTINGS, "sums.v1", {"sums.v1.g1": 1}, LibrdkafkaProducer)
    monkeypatch.setattr(engine_writer, "newest_progress", unavailable)
    with pytest.raises(Unavailable):
        made.connect()
    # otherwise a batch whose commit was not answered would be written again, although it was committed
    assert not made.connected
    made.close()


def test_each_call_may_take_as_long_as_a_request(client: Client, writer: Writer[LibrdkafkaProducer]) -> None:
    client.fails["commit"] = KafkaException(KafkaError(KafkaError._TIMED_OUT, "slow"))
    with pytest.raises(OutcomeUnknown):
        writer.commit()
    writer.connect()
    writer.begin()
    writer.abort()
    assert client.waits == [("init", 1.5), ("commit", 0.5), ("init", 1.5), ("abort", 0.5)]


def test_a_transaction_that_is_too_long_for_the_broker_is_said(client: Client) -> None:
    client.fails["init"] = KafkaException(KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT, "too long"))
    made = Writer(SETTINGS, "sums.v1", {"sums.v1.g1": 1}, LibrdkafkaProducer)
    with pytest.raises(BadUsage, match="not allow transactions of 100 s") as caught:
        made.connect()
    assert "transaction.max.timeout.ms" in caught.value.fix
    assert not made.connected
    made.close()
