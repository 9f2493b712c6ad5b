"""The registry's log on a real broker: one fenced writer per step, whoever else writes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest
from confluent_kafka import KafkaError

from pipelines.errors import LoginRefused, Refused
from pipelines.kafka import log
from pipelines.kafka.log import Aside, FencedWriter, LogReader, read_tail
from pipelines.settings import Settings
from tests.shared.transactions import await_ends, transactional

pytestmark = pytest.mark.broker


def rest(reader: LogReader) -> list[bytes]:
    """The values of all records from where `reader` is up to the current end."""
    return [value for records in reader.records_to(reader.end()) for _, value in records]


def everything(settings: Settings, topic: str) -> list[bytes]:
    reader = LogReader(settings, topic)
    try:
        return rest(reader)
    finally:
        reader.close()


def append(settings: Settings, topic: str, *values: bytes) -> int:
    return append_with(FencedWriter(settings, topic, topic), settings, topic, lambda: values)


def append_with(writer: FencedWriter, settings: Settings, topic: str, decide: Callable[[], Sequence[bytes]]) -> int:
    """A step of `writer`. Returns when readers see what it wrote: Kafka marks its end after the commit."""
    end = writer.append(decide)
    await_ends(settings, topic, 1)
    return end


def left_open(settings: Settings, topic: str, writer_id: str, *values: bytes) -> Callable[[bool], None]:
    """A transaction of another writer with `values` in it. The returned function ends it: commits or aborts."""
    client = transactional(settings, writer_id, topic)
    client.begin_transaction()
    for value in values:
        client.produce(topic, value, partition=0)
    client.flush(10)

    def end(commit: bool) -> None:
        (client.commit_transaction if commit else client.abort_transaction)(10)
        await_ends(settings, topic, 1)

    return end


def test_a_step_says_where_it_ended_and_one_of_nothing_writes_nothing(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic()
    end = append(broker, topic, b"1", b"2")
    assert end >= 2
    assert append(broker, topic) == 0
    assert everything(broker, topic) == [b"1", b"2"]


def test_what_stands_aside_is_passed_over_by_who_does_not_ask_for_it(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic()
    append(broker, topic, b"1", Aside(b"2"), b"3")
    assert everything(broker, topic) == [b"1", b"3"]
    reader = LogReader(broker, topic, asides=True)
    assert rest(reader) == [b"1", b"2", b"3"]
    reader.close()


def test_two_writers_at_once_are_one_after_the_other(broker: Settings, fresh_topic: Callable[..., str]) -> None:
    topic = fresh_topic()
    entered, go_on = threading.Event(), threading.Event()
    seen: dict[str, list[list[bytes]]] = {"slow": [], "quick": []}

    def slow() -> Sequence[bytes]:
        seen["slow"].append(everything(broker, topic))
        entered.set()
        assert go_on.wait(30)
        return [b"slow"]

    def quick() -> Sequence[bytes]:
        seen["quick"].append(everything(broker, topic))
        return [b"quick"]

    writer = FencedWriter(broker, topic, topic)
    thread = threading.Thread(target=lambda: append_with(writer, broker, topic, slow))
    thread.start()
    assert entered.wait(30)
    # the slow one has decided but not written: it is fenced, and must decide again
    FencedWriter(broker, topic, topic).append(quick)
    go_on.set()
    thread.join(60)
    assert everything(broker, topic) == [b"quick", b"slow"]
    assert seen["quick"] == [[]]
    assert seen["slow"] == [[], [b"quick"]]


def test_a_step_that_is_refused_writes_nothing_and_leaves_nothing_open(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic()

    def decide() -> Sequence[bytes]:
        raise Refused("no", fix="none")

    with pytest.raises(Refused):
        FencedWriter(broker, topic, topic).append(decide)
    append(broker, topic, b"after")
    assert everything(broker, topic) == [b"after"]


def test_many_writers_lose_nothing_and_write_nothing_twice(broker: Settings, fresh_topic: Callable[..., str]) -> None:
    topic = fresh_topic()

    def count(number: int) -> None:
        def decide() -> Sequence[bytes]:
            return [json.dumps({"by": number, "seen": len(everything(broker, topic))}).encode()]

        append_with(FencedWriter(broker, topic, topic, attempts=60), broker, topic, decide)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = [json.loads(value) for value in everything(broker, topic)]
    assert sorted(each["by"] for each in found) == [0, 1, 2, 3]
    # each step decided on everything before it
    assert [each["seen"] for each in found] == [0, 1, 2, 3]


def test_a_writer_that_another_has_fenced_since_its_last_step_decides_again(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic()
    writer = FencedWriter(broker, topic, topic)
    assert append_with(writer, broker, topic, lambda: [b"1"]) > 0
    assert append_with(writer, broker, topic, list) == 0
    seen = []

    def meanwhile() -> Sequence[bytes]:
        seen.append(everything(broker, topic))
        if len(seen) == 1:
            append(broker, topic, b"2")
        return [b"3"]

    append_with(writer, broker, topic, meanwhile)
    assert seen == [[b"1"], [b"1", b"2"]]
    assert everything(broker, topic) == [b"1", b"2", b"3"]


class WhileItCan(list[bytes]):
    """Writes a record again and again until its writer is fenced."""

    def __iter__(self) -> Iterator[bytes]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            yield from super().__iter__()


def test_a_writer_that_another_fences_between_two_records_decides_again(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic()
    writer = FencedWriter(broker, topic, topic)
    append_with(writer, broker, topic, lambda: [b"1"])
    tries = []

    def meanwhile() -> Sequence[bytes]:
        tries.append(everything(broker, topic))
        if len(tries) > 1:
            return [b"3"]
        append(broker, topic, b"2")
        return WhileItCan([b"lost"])

    append_with(writer, broker, topic, meanwhile)
    assert tries == [[b"1"], [b"1", b"2"]]
    assert everything(broker, topic) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("commit", [False, True])
def test_the_tail_is_of_committed_records_only(broker: Settings, fresh_topic: Callable[..., str], commit: bool) -> None:
    topic = fresh_topic()
    append(broker, topic, b"1")
    append(broker, topic, b"2")
    end = left_open(broker, topic, f"{topic}-other", *[b"open"] * 40)
    assert read_tail(broker, topic) == [b"2"]
    end(commit)
    assert read_tail(broker, topic) == [b"open" if commit else b"2"]
    append(broker, topic, b"3")
    assert read_tail(broker, topic, 2) == [b"open" if commit else b"2", b"3"]
    assert len(read_tail(broker, topic, 100)) == (43 if commit else 3)


def test_the_tail_of_a_topic_with_aborted_records_only_is_empty(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic()
    assert read_tail(broker, topic) == []
    left_open(broker, topic, f"{topic}-other", b"1", b"2")(False)
    assert read_tail(broker, topic) == []


def test_a_reader_waits_at_an_open_transaction_and_goes_on_past_an_aborted_one(
    broker: Settings, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic()
    append(broker, topic, b"1")
    reader = LogReader(broker, topic)
    try:
        assert rest(reader) == [b"1"]
        end = left_open(broker, topic, f"{topic}-other", b"never")
        assert reader.poll(0.2) == []
        end(False)
        append(broker, topic, b"2")
        assert rest(reader) == [b"2"]
        assert reader.position >= 4
    finally:
        reader.close()


class Refusal:
    """What a consumer gets in place of a record while the cluster refuses its login."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._AUTHENTICATION)


def test_a_reader_outlives_a_login_that_is_refused_for_a_while(
    broker: Settings, fresh_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, times = fresh_topic(), count(step=6)
    append(broker, topic, b"1")
    reader = LogReader(broker, topic, clock=lambda: next(times))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(log, "drain", lambda *_, **__: [Refusal()])
            assert reader.poll(0.2) == []
            with pytest.raises(LoginRefused, match="refuses the login"):
                rest(reader)
        assert rest(reader) == [b"1"]
    finally:
        reader.close()
