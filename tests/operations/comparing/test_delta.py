"""The delta of a switch on a real broker: written ahead while the drivers meet, and corrected at the cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from orchestration.operations.comparing.delta import Delta
from orchestration.operations.comparing.delta_topic import write_delta
from orchestration.operations.comparing.evidence import Comparison, evidence_path
from orchestration.operations.comparing.upkeep import Upkeep, load, upkeep_of
from orchestration.operations.procedures.refresh import read_on
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.client import admin, consumer, drain
from pipelines.kafka.clock import now_ms
from pipelines.kafka.offsets import end_of
from pipelines.kafka.records import read_changes
from pipelines.kafka.topics import APPEND_ONLY, delete_topics, ensure_topic
from pipelines.model.entries import DeltaSegment, EvidenceRecorded
from pipelines.model.names import delta_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.settings import Settings
from tests.conftest import FreshTopic
from tests.operations.comparing.test_touch_up import written
from tests.shared.transactions import await_ends, transactional

pytestmark = pytest.mark.broker

Changes = Mapping[str, str | None]


class Results:
    """Two results of one partition each, compared when they held `live` and `new`."""

    def __init__(self, settings: Settings, topics: tuple[str, str], live: Mapping[str, str], new: Mapping[str, str]):
        self.settings, (self.live, self.new) = settings, topics
        self._writers = {topic: transactional(settings, topic, topic) for topic in topics}
        self._delta: Delta | None = None
        self.write(self.live, live)
        self.write(self.new, new)
        name = f"diff-{self.live}"
        path = evidence_path(settings, name)
        path.parent.mkdir(parents=True)
        written(path.parent, live, new).rename(path)
        forward, backward = write_delta(settings, "sums", name, frozenset({""}))
        self.evidence = EvidenceRecorded(
            at_ms=now_ms(),
            id=name,
            live="sums.v1",
            live_generation=1,
            new="sums.v2",
            new_generation=1,
            cut=SourcePosition(sources={}),
            live_result=self.end(self.live),
            new_result=self.end(self.new),
            summary=Comparison.none().as_json(),
            forward=forward,
            backward=backward,
        )

    def write(self, topic: str, records: Changes) -> None:
        """One transaction, as a driver's: its end takes an offset, too."""
        client = self._writers[topic]
        client.begin_transaction()
        for key, value in records.items():
            client.produce(topic, value, key, partition=0)
        client.commit_transaction(10)
        await_ends(self.settings, topic, 1)

    def end(self, topic: str) -> ResultPosition:
        """As progress has it: before the end of the transaction."""
        return ResultPosition(topics={topic: {0: end_of(self.settings, topic, 1)[0] - 1}})

    def now(self) -> Upkeep:
        return Upkeep(live_result=self.end(self.live), new_result=self.end(self.new), at_ms=now_ms())

    def delete(self, topic: str) -> None:
        """Deletes what is there of a topic, as retention would."""
        [end] = self.end(topic).of(topic).values()
        upto = TopicPartition(topic, 0, end)
        # kept until it has answered
        client = admin(self.settings)
        for future in client.delete_records([upto]).values():
            future.result(10)

    def delta(self, *, to: str) -> Delta:
        if self._delta is not None:
            self._delta.close()
        self._delta = Delta(self.settings, self.evidence, to=to)
        return self._delta

    def close(self) -> None:
        if self._delta is not None:
            self._delta.close()
        delete_topics(self.settings, [delta_topic("sums", self.evidence.id)])

    def told(self, segments: tuple[DeltaSegment, ...]) -> list[dict[str, str | None]]:
        """What each segment tells a consumer, in their order: a key is taken from the first one that has it."""
        client = consumer(self.settings, auto_offset_reset="earliest", enable_partition_eof=True)
        seen: set[str] = set()
        found = []
        for segment in segments:
            records, _ = read_changes(client, segment.topic, {0: segment.start}, {0: segment.end}, 10)
            found.append({key: value for key, value in records.items() if key not in seen})
            seen |= records.keys()
        client.close()
        return found


Make = Callable[[Mapping[str, str], Mapping[str, str]], Results]


@pytest.fixture
def compared(broker: Settings, fresh_topic: Callable[..., str], tmp_path: Path) -> Iterator[Make]:
    settings = broker.model_copy(update={"state_dir": tmp_path})
    with ExitStack() as made:
        yield lambda live, new: made.enter_context(
            closing(Results(settings, (fresh_topic(), fresh_topic()), live, new))
        )


def test_a_lost_delta_moves_no_consumer(compared: Make) -> None:
    results = compared({"a": "1", "b": "1"}, {"a": "2", "b": "2"})
    topic = delta_topic("sums", results.evidence.id)
    delete_topics(results.settings, [topic])
    with pytest.raises(Refused, match=f"delta {topic} of sums.v2 is gone[^~]*switchyard diff"):
        results.delta(to="sums.v2")
    ensure_topic(results.settings, topic, 1, APPEND_ONLY)
    with pytest.raises(Refused, match=f"delta {topic} of sums.v2 was deleted and recreated[^~]*switchyard diff"):
        results.delta(to="sums.v2")


def test_what_was_written_ahead_is_corrected_at_the_cut(compared: Make) -> None:
    results = compared({"a": "1", "b": "1", "c": "1", "d": "1"}, {"a": "2", "b": "2", "c": "2", "d": "1"})
    results.write(results.live, {"a": "3", "b": "3", "x": "3"})
    results.write(results.new, {"a": "4", "b": "4", "y": "4"})
    delta = results.delta(to="sums.v2")
    delta.begin()
    delta.prepared()
    # until the drivers meet: b changes again, y goes, d comes; x is touched by the live one alone
    results.write(results.live, {"b": "5", "d": "5"})
    results.write(results.new, {"b": "6", "d": "6", "y": None})
    touched = delta.read_to(results.end(results.live), results.end(results.new))
    assert (touched.old["x"], touched.new["x"]) == ("3", None)
    assert (touched.old["y"], touched.new["y"]) == (None, None)
    segments = delta.write(touched)
    assert results.told(segments) == [{"b": "6", "d": "6", "x": None, "y": None}, {"a": "4"}, {"c": "2"}]


def test_what_was_written_ahead_is_all_where_nothing_came_until_the_cut(compared: Make) -> None:
    results = compared({"a": "1"}, {"a": "2"})
    results.write(results.live, {"a": "3"})
    results.write(results.new, {"a": "4"})
    delta = results.delta(to="sums.v2")
    delta.begin()
    delta.prepared()
    segments = delta.write(delta.read_to(results.end(results.live), results.end(results.new)))
    assert results.told(segments) == [{"a": "4"}, {}]


@pytest.mark.parametrize("when", ["first", "second"])
def test_what_fails_in_advance_is_done_at_the_cut(compared: Make, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    results = compared({"a": "1", "b": "1"}, {"a": "2", "b": "2"})
    results.write(results.live, {"a": "3"})
    results.write(results.new, {"a": "4"})
    reads: list[str] = []

    def fails(client: Any, topic: str, *rest: Any) -> Any:
        reads.append(topic)
        if len(reads) == ("first", "second").index(when) + 1:
            raise MemoryError
        return read_changes(client, topic, *rest)

    monkeypatch.setattr("orchestration.operations.comparing.changes.read_changes", fails)
    delta = results.delta(to="sums.v2")
    delta.begin()
    delta.prepared()
    segments = delta.write(delta.read_to(results.end(results.live), results.end(results.new)))
    assert results.told(segments) == [{"a": "4"}, {"b": "2"}]


def test_what_was_done_before_the_drivers_met_is_corrected_at_the_cut(compared: Make) -> None:
    results = compared({"a": "1", "b": "1", "c": "1", "d": "1", "e": "1"}, {"a": "2", "b": "2", "c": "2", "d": "1"})
    results.write(results.live, {"a": "3", "b": "3", "e": "3", "x": "3"})
    results.write(results.new, {"a": "4", "b": "4", "y": "4"})
    delta = results.delta(to="sums.v2")
    # while it reads, more comes than few: it reads on
    came = iter([{"z": "4"}, {"z": "5"}])
    delta.advance(lambda: results.write(results.new, said) if (said := next(came, None)) else None, few=1)
    # until the cut: b changes again, d comes, y goes; e and x, of the live one alone, stay as they were told
    results.write(results.live, {"b": "5"})
    results.write(results.new, {"b": "6", "d": "6", "y": None})
    touched = delta.read_to(results.end(results.live), results.end(results.new))
    assert [(touched.old[key], touched.new[key]) for key in "exz"] == [("3", None), ("3", None), (None, "5")]
    last, told, base = results.told(delta.write(touched))
    assert last == {"b": "6", "d": "6", "y": None}
    assert told == {"a": "4", "e": None, "x": None, "z": "5"}
    assert base == {"c": "2"}


def test_nothing_is_read_at_the_cut_that_was_read_before(compared: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    results = compared({"a": "1"}, {"a": "2"})
    results.write(results.live, {"a": "3", "x": "3"})
    results.write(results.new, {"a": "4"})
    delta = results.delta(to="sums.v2")
    delta.advance(lambda: None, few=1)
    reads: list[dict[str, str | None]] = []

    def reads_again(*arguments: Any) -> Any:
        found = read_changes(*arguments)
        reads.append(found[0])
        return found

    monkeypatch.setattr("orchestration.operations.comparing.changes.read_changes", reads_again)
    # nor is the fold looked through
    monkeypatch.setattr(
        "orchestration.operations.comparing.fold_file._batches", lambda _: pytest.fail("it reads the fold")
    )
    segments = delta.write(delta.read_to(results.end(results.live), results.end(results.new)))
    # nothing had come
    assert reads == [{}, {}]
    assert results.told(segments) == [{"a": "4", "x": None}, {}]


@pytest.mark.parametrize("at_most", [1, 7, 10_000])
def test_changes_are_read_up_to_the_end_whatever_comes_at_once(
    broker: Settings, fresh_topic: FreshTopic, monkeypatch: pytest.MonkeyPatch, at_most: int
) -> None:
    topic = fresh_topic(3)
    client = transactional(broker, topic, topic)
    written: dict[int, list[tuple[str, str | None]]] = {0: [], 1: [], 2: []}
    for round_ in range(6):
        client.begin_transaction()
        for number in range(40):
            key, value = f"k{number % 12}", None if number % 5 == round_ else f"{round_}-{number}"
            partition = number % 12 % 3
            client.produce(topic, value, key, partition=partition)
            written[partition].append((key, value))
        client.commit_transaction(10)
        for records in written.values():
            # the transaction's end takes an offset, too
            records.append(("", None))
    start, end = {0: 0, 1: 15, 2: 3}, {0: 41, 1: 60, 2: 3}
    expected = {key: value for p in start for key, value in written[p][start[p] : end[p]] if key}
    monkeypatch.setattr(
        "pipelines.kafka.records.drain",
        lambda reader, wait_s: drain(reader, wait_s, at_most=at_most),
    )
    reader = consumer(broker, auto_offset_reset="earliest", enable_partition_eof=True)
    with closing(reader):
        found, reached = read_changes(reader, topic, start, end, 10)
    assert found == expected
    # where the last record before the end is that of a transaction, it ends before it
    assert all(reached[p] <= end[p] and not any(k for k, _ in written[p][reached[p] : end[p]]) for p in end)


def test_what_fails_before_the_drivers_meet_is_raised(compared: Make) -> None:
    results = compared({"a": "1"}, {"a": "2"})
    results.write(results.new, {"a": "4"})
    delta = results.delta(to="sums.v2")

    def abandoned() -> None:
        raise Refused("the operation was abandoned")

    with pytest.raises(Refused, match="was abandoned"):
        delta.advance(abandoned, few=1)


def test_what_was_read_past_the_cut_is_not_part_of_the_delta(compared: Make) -> None:
    results = compared({"a": "1", "b": "1"}, {"a": "2", "b": "1"})
    results.write(results.live, {"a": "3"})
    results.write(results.new, {"a": "4"})
    cut = results.end(results.live), results.end(results.new)
    # an operation that was left: both went on
    results.write(results.live, {"b": "5"})
    results.write(results.new, {"b": "6"})
    delta = results.delta(to="sums.v2")
    delta.begin()
    delta.prepared()
    assert results.told(delta.write(delta.read_to(*cut))) == [{"a": "4"}, {}]


def nothing(_: Delta, __: pytest.MonkeyPatch) -> None:
    """As for a dead release: nobody meets it."""


def advanced(delta: Delta, _: pytest.MonkeyPatch) -> None:
    delta.advance(lambda: None, few=1)


def begun(delta: Delta, _: pytest.MonkeyPatch) -> None:
    delta.begin()
    delta.prepared()


def begun_in_vain(delta: Delta, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("orchestration.operations.comparing.changes.read_changes", lambda *_: 1 / 0)
        begun(delta, monkeypatch)


@pytest.mark.parametrize("before", [nothing, advanced, begun, begun_in_vain])
@pytest.mark.parametrize("to", ["sums.v2", "sums.v1"])
def test_what_was_kept_since_the_diff_is_told_and_not_read_again(
    compared: Make,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[Delta, pytest.MonkeyPatch], None],
    to: str,
) -> None:
    results = compared({"a": "1", "b": "1", "c": "1", "d": "1"}, {"a": "2", "b": "2", "c": "2", "d": "2"})
    results.write(results.live, {"a": "3", "x": "3"})
    results.write(results.new, {"a": "4", "b": None, "y": "4"})
    # with the end of the transaction before
    assert read_on(results.settings, results.evidence, results.now()) == (5 + 2, 4)
    # a second time: only what came since
    results.write(results.live, {"x": None})
    assert read_on(results.settings, results.evidence, results.now()) == (1 + 1, 4)
    # what was read is gone: it would be missed by whoever reads it again
    results.delete(results.live)
    results.delete(results.new)
    results.write(results.live, {"c": "5"})
    results.write(results.new, {"c": "6", "y": "6"})
    delta = results.delta(to=to)
    before(delta, monkeypatch)
    ends = [results.end(topic) for topic in (results.live, results.new)]
    touched = delta.read_to(*(ends if to == "sums.v2" else reversed(ends)))
    assert touched.differing > 0
    told = {key: value for part in reversed(results.told(delta.write(touched))) for key, value in part.items()}
    if to == "sums.v2":
        assert told == {"a": "4", "b": None, "c": "6", "d": "2", "x": None, "y": "6"}
    else:
        assert told == {"a": "3", "b": "1", "c": "5", "d": "1", "x": None, "y": None}


def test_what_was_kept_is_read_in_portions_and_never_past_the_goal(
    compared: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.operations.procedures.refresh._PORTION", 2)
    results = compared({"a": "1"}, {"a": "2"})
    results.write(results.live, {"a": "3", "b": "3", "c": "3"})
    results.write(results.new, {"a": "4"})
    goal = results.now()
    results.write(results.live, {"c": "5"})
    kept: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        # ended in the middle: what was read so far stays, as old as it was
        read_on(
            results.settings, results.evidence, goal, before_saving=lambda: kept.append(1) if not kept else _ended()
        )
    half, live, _ = load(results.settings, results.evidence)
    assert half.at_ms == results.evidence.at_ms and live.keys() < {"a", "b", "c"}
    assert read_on(results.settings, results.evidence, goal)[1] == 3
    assert load(results.settings, results.evidence)[1:] == ({"a": "3", "b": "3", "c": "3"}, {"a": "4"})
    assert upkeep_of(results.settings, results.evidence).at_ms == goal.at_ms
    # another goal that lies before it changes nothing
    assert read_on(results.settings, results.evidence, half)[0] == 0
    assert load(results.settings, results.evidence)[1]["c"] == "3"


def _ended() -> None:
    raise KeyboardInterrupt


def test_what_was_kept_past_the_cut_is_refused_with_the_way_out(compared: Make) -> None:
    results = compared({"a": "1", "b": "1"}, {"a": "2", "b": "2"})
    results.write(results.live, {"a": "3"})
    ends = results.end(results.new), results.end(results.live)
    results.write(results.live, {"b": "5"})
    read_on(results.settings, results.evidence, results.now())
    with pytest.raises(SwitchyardError, match="has read past the cut") as caught:
        results.delta(to="sums.v1").read_to(*ends)
    assert "since.parquet" in caught.value.fix


def test_nothing_touched_leaves_the_evidence_as_it_is(compared: Make) -> None:
    results = compared({"a": "1"}, {"a": "2"})
    delta = results.delta(to="sums.v1")
    segments = delta.write(delta.read_to(results.end(results.new), results.end(results.live)))
    assert segments == (results.evidence.backward,)
    assert results.told(segments) == [{"a": "1"}]
