"""`LiveConsumer` against a real broker; a test writes what drivers and operations would."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from pipelines.errors import BadUsage, SwitchyardError, Unavailable
from pipelines.follow import LiveConsumer, LiveRecord, committed_number, same
from pipelines.follow.control import Control
from pipelines.follow.data import DataReader
from pipelines.follow.moves import Enter, Move, Wait, next_move
from pipelines.kafka.client import admin, producer
from pipelines.kafka.inputs import topic_ids
from pipelines.kafka.topics import APPEND_ONLY, delete_topics, ensure_topic
from pipelines.model.entries import ReleaseSpec, Staged, TopicsKnown
from pipelines.settings import Settings
from tests.follow.cluster import Cluster, Release
from tests.shared.waiting import until

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(broker: Settings) -> Iterator[Cluster]:
    made = Cluster(broker)
    yield made
    made.close()


def follower(cluster: Cluster, group: str = "g", **options: object) -> LiveConsumer:
    return LiveConsumer(
        cluster.alias,
        group=f"{cluster.alias}-{group}",
        settings=cluster.settings,
        **options,  # type: ignore[arg-type]
    )


def take(consumer: LiveConsumer, count: int, idle_s: float = 0.2, timeout_s: float = 20.0) -> list[LiveRecord]:
    """`count` records, and any more that come within `idle_s` after them."""
    found: list[LiveRecord] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        record = consumer.poll(0.1 if len(found) < count else idle_s)
        if record is not None:
            found.append(record)
        elif len(found) >= count:
            break
    return found


def texts(records: list[LiveRecord]) -> list[str]:
    """`key=value` of each; a tombstone is `key!`, a record of a delta begins with `~`."""
    out = []
    for r in records:
        text = f"{(r.key or b'').decode()}!" if r.value is None else f"{(r.key or b'').decode()}={r.value.decode()}"
        out.append(f"~{text}" if r.phase == "delta" else text)
    return out


def rows(version: int, *numbers: int) -> list[tuple[int, str, str | None]]:
    return [(n % 2, f"k{n}", f"v{version}") for n in numbers]


def test_at_the_tail_it_delivers_each_committed_batch_once(cluster: Cluster) -> None:
    v1 = cluster.first()
    with follower(cluster) as consumer:
        assert consumer.poll(0.2) is None
        seen: list[str] = []
        for number in range(5):
            v1.batch(rows(1, number, number + 10))
            v1.batch(rows(9, 99), abort=True)
            seen += texts(take(consumer, 2))
        v1.batch()
        assert consumer.poll(0.3) is None
    assert [{*seen[n : n + 2]} for n in range(0, 10, 2)] == [{f"k{n}=v1", f"k{n + 10}=v1"} for n in range(5)]
    assert len(seen) == 10


def test_a_record_knows_where_it_comes_from(cluster: Cluster) -> None:
    v1 = cluster.first()
    v1.batch([(1, "k", None)])
    with follower(cluster) as consumer:
        (record,) = take(consumer, 1)
    assert (record.key, record.value, record.headers) == (b"k", None, (("source", b"in:0:0"),))
    assert (record.topic, record.partition, record.offset) == (v1.topic, 1, 0)
    assert (record.number, record.phase, record.release) == (1, "result", v1.name)
    assert record.position.offsets == {0: 0, 1: 1}


def test_a_record_knows_the_columns_of_the_release_that_wrote_it(cluster: Cluster) -> None:
    v1 = cluster.first()
    v2 = cluster.release(2, schema_ddl="`ticker` string, `side` string, `trades` decimal(10,2)")
    v1.batch(rows(1, 0, 1))
    v2.batch(rows(2, 0, 1))
    op = cluster.intend(v1, v2)
    with follower(cluster) as consumer:
        old = take(consumer, 2)
        segment = cluster.delta([("k0", "v2")])
        cluster.promote(op, v1, v2, v2.result, (segment,))
        v2.batch(rows(2, 2))
        new = take(consumer, 2)
    assert [(r.release, r.phase, dict(r.columns)) for r in old] == [
        (v1.name, "result", {"ticker": "string", "trades": "bigint"})
    ] * 2
    columns = {"ticker": "string", "side": "string", "trades": "decimal(10,2)"}
    assert [(r.release, r.phase, dict(r.columns)) for r in new] == [
        (v2.name, "delta", columns), (v2.name, "result", columns),
    ]  # fmt: skip
    # nothing is made for each record
    assert old[0].columns is old[1].columns
    assert all(r.schema is None for r in (*old, *new))


def test_it_delivers_no_record_that_progress_does_not_speak_of(cluster: Cluster) -> None:
    v1 = cluster.first()
    op = cluster.intend(v1, cluster.release(2), rows(1, 0, 1))
    v1.batch(rows(1, 2, 3))
    with follower(cluster) as consumer:
        assert sorted(texts(take(consumer, 2))) == ["k0=v1", "k1=v1"]
        cluster.abort(op)
        assert sorted(texts(take(consumer, 2))) == ["k2=v1", "k3=v1"]


def test_a_follower_with_records_to_read_takes_the_switch_at_its_cut(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, *range(3000)))
    v2.batch(rows(2, *range(3000)))
    op = cluster.intend(v1, v2, rows(1, 3000, 3001))
    v1.batch(rows(1, *range(5000, 9000)))
    cluster.promote(op, v1, v2, v2.result)
    v2.batch(rows(2, *range(3002, 6000)))
    with follower(cluster, earliest=True) as consumer:
        found = take(consumer, 6000)
    assert sorted(texts(found)) == sorted([f"k{n}=v1" for n in range(3002)] + [f"k{n}=v2" for n in range(3002, 6000)])
    numbers = [r.number for r in found]
    assert numbers == sorted(numbers)
    for partition in (0, 1):
        offsets = [(r.number, r.offset) for r in found if r.partition == partition]
        assert offsets == sorted(set(offsets))


def test_a_new_group_begins_at_the_newest_release_from_its_first_offsets(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, 0, 1))
    v2.batch(rows(2, 0, 1))
    cluster.switch(v1, v2)
    v2.batch(rows(2, 2, 3))
    with follower(cluster) as consumer:
        assert sorted(texts(take(consumer, 4))) == ["k0=v2", "k1=v2", "k2=v2", "k3=v2"]


def test_missed_two_switches(cluster: Cluster) -> None:
    v1, v2, v3 = cluster.first(), cluster.release(2), cluster.release(3)
    v1.batch(rows(1, 0, 1))
    with follower(cluster) as consumer:
        assert len(take(consumer, 2)) == 2
        consumer.commit()
    v1.batch(rows(1, 2))
    v2.batch(rows(2, 0, 1, 2))
    cluster.switch(v1, v2)
    v1.batch(rows(1, 3, 4, 5))
    v2.batch(rows(2, 3))
    v3.batch(rows(3, 0, 1, 2, 3))
    cluster.switch(v2, v3)
    v2.batch(rows(2, 4, 5))
    v3.batch(rows(3, 4))
    cluster.switch(v3, v1)
    v1.batch(rows(1, 6))
    with follower(cluster) as consumer:
        found = take(consumer, 4)
        assert texts(found) == ["k2=v1", "k3=v2", "k4=v3", "k6=v1"]
        assert [r.number for r in found] == [1, 2, 3, 4]
        consumer.commit()
    with follower(cluster) as consumer:
        assert consumer.poll(0.5) is None
        v1.batch(rows(1, 7))
        assert texts(take(consumer, 1)) == ["k7=v1"]


def test_a_restart_goes_on_where_it_committed(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, *range(4)))
    v2.batch(rows(2, *range(4)))
    delta = cluster.delta([(f"k{n}", f"d{n}") for n in range(3)])
    cluster.switch(v1, v2, (delta,))
    v2.batch(rows(2, *range(4, 7)))
    found: list[str] = []
    for _ in range(10):  # each takes one record and commits; what it reads after that it does not
        with follower(cluster, earliest=True) as consumer:
            record = consumer.poll(20)
            assert record is not None, found
            found += texts([record])
            consumer.commit()
            consumer.poll(0.2)
    with follower(cluster, earliest=True) as consumer:
        assert consumer.poll(0.5) is None
    expected = [f"k{n}=v1" for n in range(4)] + [f"~k{n}=d{n}" for n in range(3)]
    assert sorted(found[:7]) == sorted(expected)
    assert found[4:7] == expected[4:]
    assert sorted(found[7:]) == ["k4=v2", "k5=v2", "k6=v2"]


def test_a_position_that_the_consumer_stored_itself(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, 0, 2))
    delta = cluster.delta([("a", "1"), ("b", None)])
    cluster.switch(v1, v2, (delta,))
    v2.batch(rows(2, 4))
    with follower(cluster, earliest=True) as consumer:
        whole = take(consumer, 5)
    assert texts(whole) == ["k0=v1", "k2=v1", "~a=1", "~b!", "k4=v2"]
    for number, record in enumerate(whole):
        stored = record.position.model_dump_json()
        with follower(cluster, group="other", start=stored) as consumer:
            assert texts(take(consumer, 4 - number)) == texts(whole[number + 1 :])


def test_at_a_barrier_only_the_registry_moves_it(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v2.batch(rows(2, 0, 1, 2, 3))
    with follower(cluster) as consumer:
        op = cluster.intend(v1, v2, rows(1, 0, 1))
        v1.batch(rows(1, 2, 3))
        v1.batch(rows(1, 4, 5))
        assert sorted(texts(take(consumer, 2))) == ["k0=v1", "k1=v1"]
        assert consumer.poll(1.0) is None
        # aborted: it goes on with the old result
        cluster.abort(op)
        assert sorted(texts(take(consumer, 4))) == ["k2=v1", "k3=v1", "k4=v1", "k5=v1"]
        # promoted: with the new one, from the cut
        again = cluster.intend(v1, v2, rows(1, 6))
        v1.batch(rows(1, 7))
        v2.batch(rows(2, 4, 5, 6))
        cut = v2.result
        v2.batch(rows(2, 7))
        assert texts(take(consumer, 1)) == ["k6=v1"]
        cluster.promote(again, v1, v2, cut)
        assert texts(take(consumer, 1)) == ["k7=v2"]


def test_a_restart_at_a_barrier_waits_there_too(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    op = cluster.intend(v1, v2, rows(1, 0))
    v1.batch(rows(1, 1, 2))
    with follower(cluster) as consumer:
        assert texts(take(consumer, 1)) == ["k0=v1"]
        consumer.commit()
    with follower(cluster) as consumer:
        assert consumer.poll(0.5) is None
        cluster.promote(op, v1, v2, v2.result)
        assert consumer.poll(0.5) is None
        v2.batch(rows(2, 5))
        assert texts(take(consumer, 1)) == ["k5=v2"]


def test_a_delta_with_touch_ups_and_tombstones(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch([(0, "a", "1"), (0, "b", "1"), (0, "c", "1"), (0, "d", "1")])
    v2.batch([(0, "a", "2"), (0, "b", "2"), (0, "d", "1")])
    base = cluster.delta([("a", "old"), ("b", "2"), ("c", None)])
    touched = cluster.delta([("a", "2"), ("e", None)], base.topic)
    cluster.switch(v1, v2, (touched, base))
    v2.batch([(0, "d", "3")])
    with follower(cluster, earliest=True) as consumer:
        found = take(consumer, 9)
    assert texts(found) == ["a=1", "b=1", "c=1", "d=1", "~a=2", "~e!", "~b=2", "~c!", "d=3"]
    table: dict[bytes, bytes] = {}
    for record in found:
        if record.value is None:
            table.pop(record.key or b"", None)
        else:
            table[record.key or b""] = record.value
    assert table == {b"a": b"2", b"b": b"2", b"d": b"3"}
    # in the middle of the older segment: what the newer one delivered is still left out
    middle = next(r for r in found if r.key == b"e")
    with follower(cluster, group="other", start=middle.position) as consumer:
        assert texts(take(consumer, 3)) == ["~b=2", "~c!", "d=3"]


class Watched:
    """Another thread's follower: its moves, and whether it waits for news."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moves: list[Move] = []
        self.waits = threading.Event()
        poll = Control.poll

        def moved(*arguments: Any, **options: Any) -> Move:
            self.moves.append(next_move(*arguments, **options))
            return self.moves[-1]

        def polled(control: Control, timeout_s: float) -> bool:
            if timeout_s > 0:
                self.waits.set()
            return poll(control, timeout_s)

        monkeypatch.setattr("pipelines.follow.consumer.next_move", moved)
        monkeypatch.setattr(Control, "poll", polled)


def test_the_first_record_of_the_other_release_comes_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch itself wakes who waits at its barrier, and nothing is waited for from there on."""
    watched = Watched(monkeypatch)
    # who is not woken sees the switch when its poll is over, without a record
    monkeypatch.setattr("pipelines.follow.consumer._LONGEST_WAIT_S", 3600.0)
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, 0))
    v2.batch(rows(2, 0))
    with follower(cluster) as following, ThreadPoolExecutor(1) as pool:
        take(following, 1)
        live, new = v1, v2
        deltas: tuple[list[tuple[str, str | None]] | None, ...] = (None, [("a", "1")], [("a", "2")])
        for delta in deltas:
            op = cluster.intend(live, new, rows(1, 2))
            take(following, 1, idle_s=0.1)
            cut = new.result
            new.batch(rows(2, 4))
            segments = (cluster.delta(delta),) if delta else ()
            watched.waits.clear()
            first = pool.submit(following.poll, 20)
            assert watched.waits.wait(20)
            watched.moves.clear()
            cluster.promote(op, live, new, cut, segments)
            record = first.result(60)
            assert record is not None and record.number == len(cluster.state.chains[cluster.alias])
            entered = next(at for at, move in enumerate(watched.moves) if isinstance(move, Enter))
            assert not any(isinstance(move, Wait) for move in watched.moves[entered:]), watched.moves
            live, new = new, live


def test_two_members_share_the_partitions_and_cross_together(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, *range(6)))
    v2.batch(rows(2, *range(6)))
    delta = cluster.delta([("a", "1"), ("b", None)])
    cluster.switch(v1, v2, (delta,))
    v2.batch(rows(2, *range(6, 10)))
    with follower(cluster, member=(0, 2), earliest=True) as zero, follower(cluster, member=(1, 2)) as one:
        evens = take(zero, 3)
        assert texts(evens) == ["k0=v1", "k2=v1", "k4=v1"]
        zero.commit()
        # the other one has not even begun: nothing but waiting
        assert zero.poll(0.5) is None
        odds = take(one, 3)
        assert texts(odds) == ["k1=v1", "k3=v1", "k5=v1"]
        # delivered, and not committed: it may be delivered again
        assert zero.poll(0.5) is None
        one.commit()
        assert texts(take(zero, 4)) == ["~a=1", "~b!", "k6=v2", "k8=v2"]
        # the delta is not committed yet
        assert one.poll(0.5) is None
        zero.commit()
        assert texts(take(one, 2)) == ["k7=v2", "k9=v2"]
        one.commit()
    with follower(cluster, member=(0, 2)) as zero, follower(cluster, member=(1, 2)) as one:
        v2.batch(rows(2, 10, 11))
        assert texts(take(zero, 1)) == ["k10=v2"]
        assert texts(take(one, 1)) == ["k11=v2"]
        zero.commit()
    # one member alone takes over all partitions
    with follower(cluster) as sole:
        assert texts(take(sole, 1)) == ["k11=v2"]


def test_two_members_under_load_see_everything_once(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    seen: list[LiveRecord] = []
    stop = threading.Event()

    def run(index: int) -> None:
        with follower(cluster, member=(index, 2)) as consumer:
            while not stop.is_set():
                record = consumer.poll(0.1)
                if record is not None:
                    seen.append(record)
                else:
                    consumer.commit()

    with ThreadPoolExecutor(2) as pool:
        members = [pool.submit(run, index) for index in (0, 1)]
        live, new, expected = v1, v2, 0
        for number in range(30):
            numbers = range(expected, expected + 20)
            expected += 20
            if number % 10 == 5:
                op = cluster.intend(live, new, rows(0, *numbers))
                new.batch(rows(0, *numbers))
                cluster.promote(op, live, new, new.result)
                live, new = new, live
            else:
                live.batch(rows(0, *numbers))
                new.batch(rows(0, *numbers))
        deadline = time.monotonic() + 20
        while len(seen) < expected and time.monotonic() < deadline:
            time.sleep(0.1)
        stop.set()
        for member in members:
            member.result()
    assert sorted(int((r.key or b"k")[1:]) for r in seen) == list(range(expected))


def test_what_a_group_has_passed_is_known(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, 0, 1))
    with follower(cluster) as consumer:
        assert cluster.state.followers[cluster.alias] == (consumer.group,)
        take(consumer, 2)
        consumer.commit()
        chain = cluster.state.chains[cluster.alias]
        assert committed_number(cluster.settings, consumer.group, cluster.alias, chain) == 1
        cluster.switch(v1, v2)
        chain = cluster.state.chains[cluster.alias]

        def has_passed() -> bool:
            assert consumer.poll(0.1) is None
            return committed_number(cluster.settings, consumer.group, cluster.alias, chain) == 2

        # moved on without a record: said all the same
        until("switch 2 is not committed", has_passed, 20)
        assert committed_number(cluster.settings, "nobody", cluster.alias, chain) is None


def test_bad_input(cluster: Cluster) -> None:
    with pytest.raises(BadUsage, match="no-such has no release"):
        LiveConsumer("no-such", group="g", settings=cluster.settings)
    v1 = cluster.release(1)
    spec = ReleaseSpec(
        release=v1.name,
        app=cluster.alias,
        version=1,
        module="m",
        code_digest="0" * 64,
        settings={},
        inputs={},
        table=False,
        key=("k",),
        partitions=2,
        schema_ddl="",
        suite=None,
        watermark=None,
        comparable="exact",
        change="first",
    )
    cluster.write(Staged(spec=spec))
    with pytest.raises(SwitchyardError, match="no live release yet"):
        follower(cluster)
    cluster.first()
    with pytest.raises(BadUsage, match="member 2 of 2"):
        follower(cluster, member=(2, 2))
    with pytest.raises(BadUsage, match="3 members for the 2 partitions"):
        follower(cluster, member=(0, 3))
    with pytest.raises(BadUsage, match="not a follower's position"):
        follower(cluster, start="{}")
    with pytest.raises(BadUsage, match="is of alias other"):
        follower(cluster, start={"alias": "other", "number": 1, "topic": "t", "offsets": {}})
    with pytest.raises(SwitchyardError, match="switch 7"):
        follower(cluster, start={"alias": cluster.alias, "number": 7, "topic": v1.topic, "offsets": {}})


def test_a_follower_reports_a_deleted_result(cluster: Cluster) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, 0))
    with follower(cluster) as consumer:
        stored = take(consumer, 1)[0].position
    cluster.switch(v1, v2)
    delete_topics(cluster.settings, [v1.topic])
    with pytest.raises(SwitchyardError, match=r"is gone: its release was retired"):
        follower(cluster, start=stored)


def test_records_that_were_deleted_before_they_were_read_are_said(cluster: Cluster) -> None:
    """Otherwise the follower would read on at the first record that is kept, or at the end, and have a gap."""
    v1 = cluster.first()
    v1.batch(rows(1, 0, 2, 4, 6))
    with follower(cluster, earliest=True) as consumer:
        first, second = consumer.poll(20), consumer.poll(20)
        assert first is not None and second is not None and texts([first, second]) == ["k0=v1", "k2=v1"]
    gone = TopicPartition(v1.topic, 0, 3)
    client = admin(cluster.settings)
    client.delete_records([gone])[gone].result(10)
    with follower(cluster, group="other", start=second.position) as consumer:
        comes_to_raise(
            consumer, rf"{v1.topic}\[0\] no longer has the record at the follower's offset[^~]*were deleted: "
        )


def made_again(cluster: Cluster, topic: str, partitions: int, records: int = 0) -> None:
    """Another topic of the same name, which is as long as `records` for each partition."""
    delete_topics(cluster.settings, [topic])
    ensure_topic(cluster.settings, topic, partitions, APPEND_ONLY)
    writer = producer(cluster.settings)
    for number in range(records):
        for partition in range(partitions):
            writer.produce(topic, f"other-{number}", "k", partition=partition)
    assert writer.flush(10) == 0


def comes_to_raise(consumer: LiveConsumer, match: str, timeout_s: float = 20.0) -> None:
    """Polls until the consumer raises; it delivers nothing meanwhile."""
    deadline = time.monotonic() + timeout_s
    with pytest.raises(SwitchyardError, match=match):
        while time.monotonic() < deadline:
            assert consumer.poll(0.2) is None


def known(cluster: Cluster, version: int) -> Release:
    """A release of which the registry has the id of its result."""
    release = cluster.release(version)
    own = topic_ids(cluster.settings, [release.topic])
    cluster.write(TopicsKnown(release=release.name, generation=1, own=own))
    return release


def test_a_follower_stops_at_a_recreated_result(cluster: Cluster) -> None:
    v1 = known(cluster, 1)
    cluster.first()
    v1.batch(rows(1, 0, 1, 2, 3))
    with follower(cluster) as consumer:
        stored = take(consumer, 4)[1].position
    made_again(cluster, v1.topic, 2, records=50)
    another = rf"result {v1.topic} of {v1.name} was .*recreated[^~]*switchyard reset[^~]*follow with a new group"
    # nobody runs the release
    with follower(cluster, "stored", start=stored) as consumer:
        comes_to_raise(consumer, another)


@pytest.mark.parametrize("known_before", [True, False])
def test_what_a_running_follower_has_yet_to_read_is_not_taken_from_another_topic(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, known_before: bool
) -> None:
    monkeypatch.setattr(same, "_EVERY_S", 0.0)
    v1 = known(cluster, 1) if known_before else cluster.release(1)
    cluster.first()
    op = cluster.intend(v1, cluster.release(2), rows(1, 0, 1))
    v1.batch(rows(1, 2, 3))
    with follower(cluster) as consumer:
        assert len(take(consumer, 2)) == 2
        made_again(cluster, v1.topic, 2, records=50)
        assert consumer.poll(0.5) is None
        cluster.abort(op)
        comes_to_raise(consumer, f"result {v1.topic} of {v1.name} was deleted and recreated")


def test_who_has_read_all_of_it_is_moved_on_all_the_same(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, "_EVERY_S", 0.0)
    v1, v2 = cluster.first(), cluster.release(2)
    op = cluster.intend(v1, v2, rows(1, 0, 1))
    with follower(cluster) as consumer:
        assert len(take(consumer, 2)) == 2
        made_again(cluster, v1.topic, 2, records=50)
        assert consumer.poll(0.5) is None
        cluster.promote(op, v1, v2, v2.result)
        v2.batch(rows(2, 7))
        assert texts(take(consumer, 1)) == ["k7=v2"]


LOST_DELTA = r"delta {}, .*was deleted and recreated[^~]*follow with a new group and an empty store"
GONE_DELTA = r"topic {}, .*is gone[^~]*follow with a new group and an empty store"


@pytest.mark.parametrize("empty", [True, False], ids=["made again", "gone"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_follower_does_not_wait_for_a_lost_delta(cluster: Cluster, index: int, empty: bool) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch(rows(1, 0, 1))
    with follower(cluster) as consumer:
        stored = take(consumer, 2)[-1].position
    touched, base = cluster.delta([("a", "2")]), cluster.delta([("b", "2"), ("c", "3")])
    cluster.switch(v1, v2, (touched, base))
    with follower(cluster, "other", start=stored) as consumer:
        middle = take(consumer, 3)[1].position
    assert middle.segment == 1
    topic = (touched, base)[index].topic
    if empty:
        made_again(cluster, topic, 1)
    else:
        delete_topics(cluster.settings, [topic])
    lost = (LOST_DELTA if empty else GONE_DELTA).format(topic)
    # on its way into the segment, and in the one after it, whose keys it has to leave out
    for position in (stored, middle):
        with pytest.raises(SwitchyardError, match=lost), follower(cluster, "again", start=position) as consumer:
            take(consumer, 3, timeout_s=10)
            raise AssertionError("it waits for ever")
    # the way that the error names
    with follower(cluster, "afresh") as consumer:
        v2.batch(rows(2, 7))
        assert texts(take(consumer, 1)) == ["k7=v2"]


def test_a_delta_that_is_made_again_while_it_is_read_is_not_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same, "_EVERY_S", 0.0)
    v1, v2 = cluster.first(), cluster.release(2)
    base = cluster.delta([(f"k{n}", "2") for n in range(10)])
    cluster.switch(v1, v2, (base,))
    assign = DataReader.assign

    def once_it_is_another(reader: DataReader, topic: str, offsets: Mapping[int, int]) -> None:
        if topic == base.topic:
            made_again(cluster, topic, 1)
        assign(reader, topic, offsets)

    monkeypatch.setattr(DataReader, "assign", once_it_is_another)
    with follower(cluster, earliest=True) as consumer:
        comes_to_raise(consumer, LOST_DELTA.format(base.topic))


def test_without_a_broker() -> None:
    nowhere = Settings(bootstrap_servers="localhost:1", request_timeout_s=1.0)
    with pytest.raises(Unavailable, match="no Kafka broker answers at localhost:1"):
        LiveConsumer("stock-stats", group="g", settings=nowhere)
