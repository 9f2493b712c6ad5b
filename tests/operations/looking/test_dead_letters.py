"""What `switchyard dead-letters` finds: the newest letters of a release, and clear answers where there are none."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestration.operations.looking import dead_letters as looking
from orchestration.operations.looking.dead_letters import SHOWN_BYTES, Letter, dead_letters, letter_of
from pipelines.engine.metrics import DeadLetter
from pipelines.engine.records import TOO_LARGE, Unsent, as_sent
from pipelines.engine.records import dead_letters as written
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.client import MAX_RECORD_BYTES, admin, producer
from pipelines.kafka.cluster import Cluster
from pipelines.kafka.progress import ProgressLost
from pipelines.kafka.topics import RESULT_STREAM, delete_topics, ensure_topic
from pipelines.model.entries import ResultSpec, Staged, StateSet
from pipelines.model.names import dead_letter_topic
from pipelines.model.progress import Counts
from pipelines.model.reset import Replays
from pipelines.settings import Settings
from tests.operations.builders import ENDED, Kafka, Log, context_of, generation, spec, staged

NO_REPLAYS = Replays([], {})
TWO = {
    name: ResultSpec(table=False, key=(), partitions=1, schema_ddl="`n` int", suite=None) for name in ("alerts", "all")
}


def read_back(malformed: Sequence[DeadLetter] = (), unsent: Sequence[Unsent] = ()) -> Letter:
    """The one letter of a batch, as a driver writes it and this command reads it."""
    [(key, value, headers)] = map(as_sent, written(7, malformed, unsent, NO_REPLAYS))
    return letter_of(3, 1_000, key, value, {name: bytes(content) for name, content in headers or ()})  # type: ignore[arg-type]


def test_a_malformed_record_is_shown_with_its_place_its_reason_and_its_bytes() -> None:
    found = read_back([DeadLetter("trades", 2, 9, b"IBM", b"\xff{}", "the value is not UTF-8")])
    assert found == Letter(
        offset=3, at_ms=1_000, reason="the value is not UTF-8", record="trades:2:9", result=None,
        key="IBM", key_bytes=3, value="\\xff{}", value_bytes=3, replay=False,
    )  # fmt: skip
    nothing = read_back([DeadLetter("trades", 0, 0, None, None, "the value is null")])
    assert (nothing.key, nothing.key_bytes, nothing.value, nothing.value_bytes) == (None, 0, None, 0)


def test_only_the_start_of_a_long_value_is_shown_with_its_length_and_no_half_character() -> None:
    long = "x" * (SHOWN_BYTES - 1) + "\N{EURO SIGN}" * 9
    found = read_back([DeadLetter("trades", 0, 0, None, long.encode(), "")])
    assert (found.value, found.value_bytes) == ("x" * (SHOWN_BYTES - 1), len(long.encode()))
    left_out = read_back([DeadLetter("trades", 0, 0, None, b"x" * MAX_RECORD_BYTES, "")])
    assert (left_out.value, left_out.value_bytes) == (None, MAX_RECORD_BYTES)


def test_a_row_that_is_too_large_is_shown_with_its_result_and_the_record_that_it_comes_from() -> None:
    found = read_back(unsent=[Unsent("a.v1.g1.alerts", b"k", 2_000_000, "trades:0:5", again=True)])
    assert (found.reason, found.record, found.result) == (TOO_LARGE, "trades:0:5", "a.v1.g1.alerts")
    assert (found.key, found.value, found.value_bytes, found.replay) == ("k", None, 2_000_000, True)
    long = read_back(unsent=[Unsent("a.v1.g1.alerts", b"k" * MAX_RECORD_BYTES, 5)])
    assert (long.record, long.key, long.key_bytes) == (None, "k" * 200, MAX_RECORD_BYTES)


def test_a_letter_of_another_build_is_shown_as_far_as_it_tells() -> None:
    found = letter_of(0, 0, b"k", b"v", {"reason": b"\xff", "partition": b"1", "value-bytes": b"many"})
    assert (found.reason, found.record, found.value_bytes) == ("\\xff", "?:1:?", 1)


def refused(log: Log, kafka: Kafka, name: str, **asked: Any) -> tuple[str, str]:
    with pytest.raises((BadUsage, Refused)) as caught:
        dead_letters(context_of(log, kafka), name, limit=5, **asked)
    return caught.value.what, caught.value.fix


def test_it_says_why_there_are_none_to_show() -> None:
    kafka = Kafka(partitions=lambda _: None)
    log = Log(*staged("a.v1", "b.v1"))
    assert refused(log, kafka, "a.v9") == ("there is no release a.v9", "the releases are: a.v1, b.v1")
    assert refused(log, kafka, "a.v1", result="no") == (
        "a.v1 has no result no", "leave out --result: it has only one result",
    )  # fmt: skip
    what, fix = refused(log, kafka, "a")
    assert what == "dead letters a.v1.dead-letters of a.v1 is gone"
    assert "`switchyard start a.v1 --execute`" in fix
    log.step(lambda _: [StateSet(release="b.v1", state="retired")])
    what, fix = refused(log, kafka, "b.v1")
    assert what == "b.v1 is retired: its dead letters were deleted" and "`switchyard log b.v1`" in fix


def test_a_result_that_is_not_there_is_refused_with_those_that_are() -> None:
    log = Log(Staged(spec=spec("a.v1", results=TWO)), generation("a.v1"))
    assert refused(log, Kafka(), "a", result="no") == ("a.v1 has no result no", "its results are: alerts, all")


def test_a_login_without_the_right_is_told_which_is_missing() -> None:
    def forbids(_: str) -> int:
        raise Refused("Kafka refuses: Topic authorization failed", fix="ask for the ACL on topic a.v1.dead-letters")

    what, fix = refused(Log(*staged("a.v1")), Kafka(partitions=forbids), "a")
    assert "authorization" in what and "ACL on topic a.v1.dead-letters" in fix


class World:
    """A release's topic of dead letters, on a broker."""

    def __init__(self, broker: Settings) -> None:
        self.release = f"letters-{uuid.uuid4().hex[:8]}.v1"
        self.topic = dead_letter_topic(self.release)
        self.settings = broker
        ensure_topic(broker, self.topic, 1, RESULT_STREAM)
        self.writer = producer(broker, transactional_id=self.release)
        self.writer.init_transactions(30)
        self.log = Log(Staged(spec=spec(self.release, results=TWO)), generation(self.release))

    def batch(self, *values: int, commit: bool = True, result: str | None = None) -> None:
        """Writes a letter for each value, in one transaction."""
        self.writer.begin_transaction()
        for value in values:
            malformed = [DeadLetter("in", 0, value, None, str(value).encode(), "")] if result is None else []
            unsent = [] if result is None else [Unsent(f"{self.release}.g1.{result}", str(value).encode(), 9)]
            for key, content, headers in written(0, malformed, unsent, NO_REPLAYS):
                self.writer.produce(self.topic, key=key, value=content, headers=headers)  # type: ignore[arg-type]
        self.writer.flush(30)
        (self.writer.commit_transaction if commit else self.writer.abort_transaction)(30)

    def found(self, limit: int, result: str | None = None) -> looking.DeadLetters:
        context = context_of(self.log, Cluster(self.settings, admin(self.settings)))  # type: ignore[arg-type]
        return dead_letters(replace(context, settings=self.settings), self.release, limit=limit, result=result)


@pytest.fixture
def world(broker: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(broker)
    newest = ENDED.model_copy(update={"total": Counts(dead_lettered=12)})
    monkeypatch.setattr("orchestration.operations.reading.newest_progress", lambda *_, **__: newest)
    yield made
    delete_topics(broker, [made.topic])


@pytest.mark.broker
def test_the_newest_committed_letters_are_found_among_others(world: World) -> None:
    assert world.found(3).letters == ()
    world.batch(*range(10))
    world.batch(10)
    # more offsets than a first look reads
    world.batch(*range(100, 150), commit=False)
    world.batch(11)
    found = world.found(3)
    assert [each.value for each in found.letters] == ["9", "10", "11"]
    assert [each.record for each in found.letters] == ["in:0:9", "in:0:10", "in:0:11"]
    assert (found.total, found.generation) == (12, 1)
    assert [each.value for each in world.found(1000).letters] == [str(n) for n in range(12)]


@pytest.mark.broker
def test_letters_of_one_result_are_found_behind_all_others(world: World) -> None:
    world.batch(1, 2, 3, result="alerts")
    world.batch(4, result="all")
    world.batch(*range(100))
    assert [each.key for each in world.found(2, "alerts").letters] == ["2", "3"]
    assert [each.key for each in world.found(2, "all").letters] == ["4"]


@pytest.mark.broker
def test_only_the_end_of_a_long_topic_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.batch(*range(2_000))
    read: list[int] = []

    def counted(record: Callable[..., Any]) -> Callable[..., Any]:
        def of(*arguments: Any) -> Iterator[Any]:
            for messages in record(*arguments):
                read.append(len(messages))
                yield messages

        return of

    monkeypatch.setattr(looking, "read_records", counted(looking.read_records))
    assert [each.value for each in world.found(5).letters] == [str(n) for n in range(1_995, 2_000)]
    assert sum(read) <= 10


@pytest.mark.broker
def test_without_its_progress_the_number_of_letters_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise ProgressLost(world.release)

    monkeypatch.setattr("orchestration.operations.reading.newest_progress", lost)
    world.batch(1)
    found = world.found(5)
    assert (found.total, len(found.letters)) == (None, 1)
