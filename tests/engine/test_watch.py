"""What a driver notices about its parts without a batch, and that it commits nothing once it knows of a loss."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from pipelines.engine import watch as module
from pipelines.engine.destination import Destination
from pipelines.engine.heart import PROBE_TIMEOUT_S
from pipelines.engine.sink import Sink
from pipelines.engine.watch import PartLost, Position, Watch, unknown_ids
from pipelines.errors import Refused
from pipelines.follow import same
from pipelines.kafka import registry
from pipelines.kafka.cluster import Cluster
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC
from pipelines.model.parts import Loss, known_ids, lost_topics, parts_of, vital
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.model.registry import Release
from pipelines.settings import Settings
from tests.operations.builders import release

NAME = "sums.v1"
RESULT, PROGRESS, LETTERS = f"{NAME}.g1", f"{NAME}.progress", f"{NAME}.dead-letters"
TOPICS = ("trades", RESULT, PROGRESS, LETTERS, REGISTRY_TOPIC, HEARTBEATS_TOPIC)
IDS = {topic: f"id of {topic}" for topic in TOPICS}
AGAIN_S = module._AGAIN_S
AT = SourcePosition(sources={"trades": {0: 500}})


def known(**changes: Any) -> Release:
    own = {topic: IDS[topic] for topic in (RESULT, PROGRESS, LETTERS)}
    return replace(release(NAME, state="live"), input_ids={1: {"trades": IDS["trades"]}}, own_ids=own, **changes)


class Kafka:
    """Answers with topic ids and first offsets, one after the other; the last one stays."""

    settings = Settings(bootstrap_servers="127.0.0.1:1")

    def __init__(self, *ids: dict[str, str], first: int = 0) -> None:
        self.ids, self.first, self.made = list(ids) or [IDS], first, list[str]()

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        there = self.ids.pop(0) if len(self.ids) > 1 else self.ids[0]
        return {topic: there[topic] for topic in topics if topic in there}

    def first_of(self, _: Mapping[str, int]) -> dict[str, dict[int, int]]:
        return {"trades": {0: self.first}}

    def ensure_topic(self, name: str, *_: object) -> None:
        self.made.append(name)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)


def watch_of(kafka: Kafka, position: Position, **options: Any) -> Watch:
    return Watch(cast(Cluster, kafka), known(), position=position, **options)


def looked(kafka: Kafka, at: SourcePosition = AT, *, busy: bool = False, **options: Any) -> PartLost | None:
    """What the watch of a release at position `at` finds."""
    return watch_of(kafka, lambda: (at, busy), **options).look()


def without(*gone: str) -> dict[str, str]:
    return {topic: found for topic, found in IDS.items() if topic not in gone}


class Waits:
    """An event that is never set, in whose waits no time passes. `asked`: how long each wait was to be."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.asked.append(timeout_s)
        return len(self.asked) > 9

    def is_set(self) -> bool:
        return False


@pytest.mark.parametrize("heartbeat_s", [0.5, 1.0, 60.0])
def test_the_waits_before_a_loss_is_named_are_shorter_than_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, heartbeat_s: float
) -> None:
    """By 2 s, for Kafka's answers. The part is lost right after a look, which is the worst moment."""
    monkeypatch.setattr(module, "_AGAIN_S", AGAIN_S)
    kafka, waits, alarmed = Kafka(IDS, without(RESULT)), Waits(), list[PartLost]()
    kafka.settings = Settings(bootstrap_servers="127.0.0.1:1", heartbeat_s=heartbeat_s)
    watch = watch_of(kafka, lambda: (AT, False), alarm=alarmed.append)
    watch._stopped = cast(Any, waits)
    watch._run()
    # until the first look, which finds all there; until the second one; until it looks again
    assert len(waits.asked) == 3 and len(alarmed) == 1
    # the heartbeat that says it may wait for what else it says
    assert sum(waits.asked[1:]) + PROBE_TIMEOUT_S <= 8


def test_so_are_those_of_who_reads_a_result_or_the_registry() -> None:
    assert same._EVERY_S + same._BRIEF_S <= 8
    assert registry._PROVE_S <= 8


def test_once_it_is_closed_it_creates_nothing() -> None:
    """The topics of a release that has stopped may be deleted, and must not come back."""
    kafka = Kafka(without(LETTERS))
    watch = watch_of(kafka, lambda: (AT, False))
    watch.close()
    assert watch.look() is None and kafka.made == []


def test_it_is_closed_when_no_look_is_under_way() -> None:
    asked, answered = threading.Event(), threading.Event()

    class Slow(Kafka):
        def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
            asked.set()
            assert answered.wait(10)
            return super().topic_ids(topics)

    watch = watch_of(Slow(), lambda: (AT, False))
    with ThreadPoolExecutor(2) as pool:
        look = pool.submit(watch.look)
        assert asked.wait(10)
        close = pool.submit(watch.close)
        assert watch._stopped.wait(10) and not close.done()
        answered.set()
        close.result(10)
        assert look.done()


def test_all_is_there() -> None:
    kafka = Kafka()
    assert looked(kafka) is None and kafka.made == []


@pytest.mark.parametrize("topic", ["trades", RESULT, PROGRESS, REGISTRY_TOPIC])
def test_a_driver_can_not_continue_without_these_topics(topic: str) -> None:
    alarmed: list[PartLost] = []
    found = looked(Kafka(without(topic)), alarm=alarmed.append)
    how = "was deleted" if topic == "trades" else "is gone"
    assert found is not None and f"{topic} of {NAME} {how}" in found.what and found.fix
    assert found.registry == (topic == REGISTRY_TOPIC) and alarmed == [found]


@pytest.mark.parametrize(
    ("topic", "way"),
    [(RESULT, "--output new"), (PROGRESS, "--output new")],
)
def test_a_topic_recreated_under_the_same_name_is_noticed(topic: str, way: str) -> None:
    found = looked(Kafka({**IDS, topic: "another"}))
    assert found is not None and f"{topic} of {NAME} was deleted and recreated" in found.what and way in found.fix


def test_a_deleted_input_is_told_alike_before_and_after_someone_has_created_it_again() -> None:
    """Who looks in between finds no topic, who looks later another one. It is one loss, with one choice."""
    between, later = looked(Kafka(without("trades"))), looked(Kafka({**IDS, "trades": "another"}))
    assert between is not None and later is not None
    assert between.what == later.what == f"input trades of {NAME} was deleted"
    assert (
        between.fix
        == later.fix
        == (
            "restore the old topic from a backup of the brokers that keeps its id, then run "
            f"`switchyard start {NAME} --execute`. Or create the topic again, unless that is done. Then "
            f"`switchyard reset {NAME} --to-earliest --output new --missing-history accept --execute` reads it from its start, "
            "with an empty state"
        )
    )


def test_another_registry_is_not_the_one_that_was_read() -> None:
    found = looked(Kafka({**IDS, REGISTRY_TOPIC: "another"}), registry_id=IDS[REGISTRY_TOPIC])
    assert (
        found is not None and found.registry and f"{REGISTRY_TOPIC} of {NAME} was deleted and recreated" in found.what
    )
    assert "restart this process" in found.fix
    assert looked(Kafka(), registry_id=IDS[REGISTRY_TOPIC]) is None


def test_what_one_broker_does_not_know_yet_is_not_gone() -> None:
    assert looked(Kafka(without(RESULT), IDS)) is None


def test_what_nobody_needs_for_going_on_is_made_again() -> None:
    kafka = Kafka(without(LETTERS, HEARTBEATS_TOPIC), {**IDS, LETTERS: "made anew"})
    told: list[Any] = []
    assert looked(kafka, made=told.append) is None
    assert sorted(kafka.made) == sorted([LETTERS, HEARTBEATS_TOPIC])
    [entry] = told
    assert entry.own == {LETTERS: "made anew"} and not entry.inputs


def test_a_topic_that_the_login_may_not_create_stops_nothing_and_hides_no_other_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Guarded(Kafka):
        def ensure_topic(self, name: str, *_: object) -> None:
            raise Refused("Kafka refuses: no right to create topics")

    kafka = Guarded(without(LETTERS, HEARTBEATS_TOPIC))
    told: list[Any] = []
    watch = watch_of(kafka, lambda: (AT, False), made=told.append)
    with caplog.at_level("WARNING"):
        assert watch.look() is None and watch.look() is None
    assert len([r for r in caplog.records if "can't create it again" in r.message]) == 2 and told == []
    assert len(watch.missing) == 2
    assert any(f"{LETTERS} of {NAME} is gone" in each and "switchyard start" in each for each in watch.missing)
    # someone with more rights has created it: the registry learns of the new one
    kafka.ids = [{**without(HEARTBEATS_TOPIC), LETTERS: "made anew"}]
    assert watch.look() is None
    assert [HEARTBEATS_TOPIC in each for each in watch.missing] == [True]
    [entry] = told
    assert entry.own == {LETTERS: "made anew"}
    kafka.first = 501
    assert watch.look() is not None


def test_input_that_retention_deletes_before_it_is_read_stops_the_driver() -> None:
    kafka = Kafka(first=600)
    found = looked(kafka)
    assert found is not None and "deleted by retention: trades[0] 500 to 599" in found.what
    assert "--missing-history accept" in found.fix
    # a running batch may have read it
    assert looked(kafka, busy=True) is None
    assert looked(kafka, SourcePosition(sources={"trades": {0: 600}})) is None


def test_a_batch_that_ends_while_kafka_is_asked_is_no_loss() -> None:
    position = iter([(AT, False), (SourcePosition(sources={"trades": {0: 600}}), False)])
    assert watch_of(Kafka(first=600), lambda: next(position)).look() is None


def test_nor_is_one_that_has_begun_meanwhile() -> None:
    # it has read on, and reports that at its end
    position = iter([(AT, False), (AT, True)])
    assert watch_of(Kafka(first=600), lambda: next(position)).look() is None


def test_a_lost_checkpoint_stops_the_driver(tmp_path: Path) -> None:
    kafka = Kafka()
    found = looked(kafka, checkpoint=lambda: tmp_path / "g1.t1")
    # as `status` and the next driver name it
    assert found is not None and found.what == f"checkpoint {tmp_path} of {NAME} is gone or incomplete"
    # an emptied folder is no checkpoint
    (tmp_path / "g1.t1").mkdir()
    found = looked(kafka, checkpoint=lambda: tmp_path / "g1.t1")
    assert found is not None and "checkpoint" in found.what
    # nor is one that the next batch has made again; a query writes `metadata` when it starts
    (tmp_path / "g1.t1" / "offsets").mkdir()
    found = looked(kafka, checkpoint=lambda: tmp_path / "g1.t1")
    assert found is not None and "checkpoint" in found.what
    (tmp_path / "g1.t1" / "metadata").touch()
    assert looked(kafka, checkpoint=lambda: tmp_path / "g1.t1") is None


@pytest.mark.parametrize(
    ("beside", "lost"),
    [("g1.t3", False), ("g1.t1", True), ("g2.t3", False), ("g0.t1", True), (".g1.t3.unfinished", True)],
)
def test_a_checkpoint_that_another_driver_has_taken_over_is_not_lost(tmp_path: Path, beside: str, lost: bool) -> None:
    (tmp_path / beside).mkdir()
    found = looked(Kafka(), checkpoint=lambda: tmp_path / "g1.t2")
    assert (found is not None) == lost


def test_ids_that_an_older_version_did_not_keep_are_filled_in() -> None:
    old = replace(known(), input_ids={}, own_ids={})
    more = unknown_ids(old, IDS)
    assert more is not None and more.inputs == {"trades": IDS["trades"]}
    assert more.own == {topic: IDS[topic] for topic in (RESULT, PROGRESS, LETTERS)}
    assert unknown_ids(known(), {**IDS, "trades": "another"}) is None
    # without a known id, no topic counts as another one
    assert lost_topics(old, parts_of(old), {**IDS, "trades": "another"}) == []
    assert known_ids(old) == {}


def test_every_loss_says_its_way_back() -> None:
    parts = ("input", "result", "progress", "dead letters", "registry", "heartbeats", "delta", "checkpoint", "frozen code", "evidence", "group")  # fmt: skip
    losses = [Loss(release=NAME, part=part, name="x", how=how) for part in parts for how in ("gone", "another")]  # type: ignore[arg-type]
    assert all(loss.way and NAME in loss.what for loss in losses)
    assert {loss.part for loss in vital(losses)} == {"input", "result", "progress", "registry", "checkpoint"}


class Forgetful:
    """A writer that counts commits."""

    def __init__(self) -> None:
        self.committed, self.given_up = 0, 0
        self.connected = True

    def commit_progress(self, *_: object) -> None:
        self.committed += 1

    def begin(self) -> None:
        """There is nothing to begin."""

    def give_up(self) -> None:
        self.given_up += 1


def test_nothing_is_committed_once_a_loss_is_known(tmp_path: Path) -> None:
    writer = Forgetful()
    target = Destination(release=NAME, generation=1, token=1, results={"": RESULT}, inputs={"trades": "trades"},
                    start=AT, watermarked=False)  # fmt: skip
    sink = Sink(target, cast(Any, writer), cast(Any, None), serialize=cast(Any, None), metrics=cast(Any, None))
    progress = Progress(release=NAME, generation=1, token=1, boundary=Boundary(batch_id=0, position=AT),
                        result=ResultPosition(topics={}), at_ms=0)  # fmt: skip
    sink._write(progress)
    assert writer.committed == 1
    sink.halt(PartLost("gone", fix="bring it back"))
    assert writer.given_up == 1
    with pytest.raises(PartLost):
        sink._write(progress)
    with pytest.raises(PartLost):
        sink.process_batch(cast(Any, None), 1)
    assert writer.committed == 1 and sink.failure is not None and sink.failure[0] == 1
