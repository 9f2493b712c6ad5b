"""Apps beside their peers in Kafka Streams, which read the same topics: each key's last value is the same.

Where the two decide another way, the rows that only one of them has are written by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import Peer, compile_to, run
from demo.ledger.reader import read
from orchestration.sources import Options, produce, sources_for
from pipelines.kafka.offsets import end_offsets
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model.names import result_topic
from tests.e2e.cluster import DISORDER, SMALL, Cluster
from tests.shared.transactions import transactional

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.long,
    # the first test waits for ten releases
    pytest.mark.timeout(1_800),
]

Key = tuple[str, ...]
Row = dict[str, Any]
# partition, key, value, time of 1 March 2013
Given = tuple[int, str | None, Any, str]

# app -> records of history, records per second of event time
HISTORY = {
    "word-count": (3_000, 100),
    "stock-stats": (4_000, 100),
    "latest-value": (4_000, 100),
    "not-viewing": (4_000, 100),
    "browser-windows": (4_000, 100),
    "product-views": (6_000, 100),
    "captcha": (4_000, 50),
    "clickstream": (4_000, 100),
}
# of which app -> names of its results; "" is the only one
TABLES = {
    "word-count": "",
    "stock-stats": "",
    "latest-value": "",
    "daily-gains": "",
    "browser-windows": "",
    "notification-counts": "",
    "product-views": "counts",
    "captcha": "counts",
}
STREAMS = {"not-viewing": "", "product-views": "alerts", "captcha": "requests", "clickstream": ""}
# the smallest number of keys or records that shows something
AT_LEAST = {"product-views": 1, "daily-gains": 100}


def seconds(start: int, end: int, minute: str = "14:59") -> list[str]:
    """Starts of windows, as results name them, of 1 March 2013."""
    return [f"2013-03-01T{minute}:{second:02}Z" for second in range(start, end + 1)]


def ask(price: str) -> str:
    return f'{{"side": "ask", "price": {price}}}'


# in one transaction, so in one batch: the second is 20 s late when it comes
TOGETHER: list[Given] = [(0, "SAME", ask("10.00"), "15:00:00"), (0, "SAME", ask("8.00"), "14:59:40")]
# the watermark of all is then 14:59:50, as is the end of the grace in partition 0; in partition 1 that is a year ago
LATE: list[Given] = [
    (0, "BOTH", ask("7.00"), "14:59:30"),
    (1, "ACROSS", ask("6.00"), "14:59:30"),
    # its windows end at 49, 50, 51, 52 and 53: the first two are over
    (0, "GRACE", ask("5.00"), "14:59:48"),
]
# dropped: 5 windows of BOTH, 5 of ACROSS, 2 of GRACE
LATE_DROPPED = 12
# a batch drops by the watermark that it started with; Kafka Streams drops record by record
KEPT_IN_A_BATCH = {("SAME", start): (Decimal(8), 1, Decimal(8)) for start in seconds(36, 40)}
# one watermark for all partitions; in Kafka Streams each has its own time
KEPT_IN_A_PARTITION = {("ACROSS", start): (Decimal(6), 1, Decimal(6)) for start in seconds(26, 30)}
# the last millisecond of a day, and two trades in the first of the next
MIDNIGHT: list[Given] = [
    (2, "EDGE", ask("10.00"), "23:59:59.999"),
    (2, "EDGE", ask("20.00"), "24:00:00.000"),
    (2, "EDGE", ask("25.00"), "24:00:00.000"),
]

ACT = '{"action": "click"}'
# as TOGETHER and LATE, in windows of 5 s that start at each even second
ACTS_TOGETHER: list[Given] = [(0, "SAME", ACT, "15:00:00"), (0, "SAME", ACT, "14:59:40")]
LATE_ACTS: list[Given] = [
    (0, "BOTH", ACT, "14:59:30"),
    (1, "ACROSS", ACT, "14:59:30"),
    # its windows end at 49, 51 and 53
    (0, "GRACE", ACT, "14:59:48"),
]
# 3 windows of BOTH, 3 of ACROSS, 1 of GRACE
LATE_ACTS_DROPPED = 7

CLOSED: list[Given] = [(0, "late", "Close", "14:59:00"), (1, "across", "Close", "14:59:00")]
# the watermark is then 14:59:50
TICKS: list[Given] = [(0, "guest", "tick", "15:00:00")]
LATE_TICKS: list[Given] = [
    (0, "late", "tick", "14:59:30"),
    (1, "across", "tick", "14:59:30"),
    (0, "late", "tick", "14:59:55"),
]

CLICK = '{"page": "/"}'
# the watermark is 14:59:50 when they come
LATE_CLICKS: list[Given] = [(0, "late", CLICK, "14:59:30"), (0, "late", CLICK, "14:59:55")]


@dataclass
class World:
    """Both results of each app. `tables`, `streams`: of an app, ours and the peer's. `late`: rows that ours dropped."""

    cluster: Cluster
    tables: dict[str, tuple[dict[Key, Row], dict[Key, Row]]] = field(default_factory=dict)
    streams: dict[str, tuple[Counter[str], Counter[str]]] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)

    def put(self, topic: str, records: Sequence[Given]) -> None:
        """Adds records in one transaction. Returns when readers see them: Kafka marks their end after the commit."""
        settings, added = self.cluster.settings, Counter(partition for partition, *_ in records)
        before = end_offsets(settings, [topic], committed=False)[topic]
        producer = transactional(settings, f"by-hand-{topic}", topic)
        producer.begin_transaction()
        for partition, key, value, time in records:
            producer.produce(topic, value, key, partition, timestamp=time_ms(time))
        producer.commit_transaction(30)

        def visible() -> bool:
            end = end_offsets(settings, [topic])[topic]
            # one more offset, for the mark
            return all(end[p] > before[p] + n for p, n in added.items())

        self.cluster.until(f"the records of {topic} are not visible", visible, timeout_s=60)

    def settle(self, app: str) -> None:
        """Waits until a release has read all and decided what it can."""
        release = self.cluster.state.releases[f"{app}.v1"]
        for given in release.spec.inputs.values():
            self.cluster.settle(release.name, given.topic)
        progress = self.cluster.context().progress(release.name)
        assert progress is not None
        self.late[app] = progress.total.late_dropped

    def hydrate(self, app: str, **options: Any) -> None:
        """Lets the app read what is there, in several batches. None of it is late."""
        self.cluster.hydrate(app, 1, batch=SMALL, **options)
        self.settle(app)
        assert self.late[app] == 0

    def stop(self, app: str) -> None:
        self.cluster.stop(f"{app}.v1")


def time_ms(time: str) -> int:
    hours, minutes, rest = time.split(":")
    day = datetime(2013, 3, 1, tzinfo=UTC).timestamp()
    return int(day) * 1000 + int(hours) * 3_600_000 + int(minutes) * 60_000 + int(Decimal(rest) * 1000)


def load(world: World) -> None:
    """The history of all apps, with more disorder than usual, and some records by hand."""
    days = Options(seed=7, density="sparse", faults=DISORDER)
    produce(world.cluster.settings, sources_for("daily-gains", days), history=2_000)
    for app, (records, per_second) in HISTORY.items():
        world.cluster.load(app, records, per_second)
    lines = ["The THE the_end --- Straße, naïve; don't", "  ", "a 1 a_b"]
    world.put("lines", [(0, None, line, "15:00:00") for line in lines])
    pairs = [("k1", 7), ("k2", 9), ("k3", 11), ("k2", 4)]
    world.put("values", [(0, key, f'{{"value": {value}}}', "15:00:00") for key, value in pairs])


def run_ours(world: World) -> None:
    """Each app as a release, one after the other."""
    for app in ("word-count", "latest-value", "product-views", "captcha"):
        world.hydrate(app)
        world.stop(app)
    world.hydrate("browser-windows")
    for records in (ACTS_TOGETHER, LATE_ACTS):
        world.put("browser-actions", records)
        world.settle("browser-windows")
    world.stop("browser-windows")
    world.hydrate("stock-stats")
    for records in (TOGETHER, LATE, MIDNIGHT):
        world.put("trades", records)
        world.settle("stock-stats")
    world.stop("stock-stats")
    world.hydrate("daily-gains")
    world.stop("daily-gains")
    world.hydrate("not-viewing")
    world.put("open", CLOSED)
    # what waits is decided when time goes on, in Kafka Streams in each partition
    end: list[Given] = [(p, "end", "tick", "16:00:00") for p in range(4)]
    for records in (TICKS, LATE_TICKS, end):
        world.put("tick", records)
        world.settle("not-viewing")
    world.stop("not-viewing")
    world.hydrate("notification-counts", upstream=["not-viewing.v1"])
    world.stop("notification-counts")
    world.hydrate("clickstream")
    searches: list[Given] = [(p, "end", '{"terms": "/"}', "16:00:00") for p in range(4)]
    first, last = ([(p, "end", CLICK, f"{hour}:00:00") for p in range(4)] for hour in (15, 17))
    for topic, clicks in (("clicks", first), ("clicks", LATE_CLICKS), ("searches", searches), ("clicks", last)):
        world.put(topic, clicks)
        world.settle("clickstream")
    world.stop("clickstream")


def run_peers(world: World, folder: Path) -> dict[tuple[str, str], str]:
    """All peers in one JVM. App and name of the result -> the peer's topic."""
    settings = world.cluster.settings
    peers: list[Peer] = []
    topics: dict[tuple[str, str], str] = {}
    for app in sorted({*TABLES, *STREAMS}):
        spec = world.cluster.state.releases[f"{app}.v1"].spec
        names = [of[app] for of in (TABLES, STREAMS) if app in of]
        outputs = [f"peer.{app}.{name}".rstrip(".") for name in names]
        topics |= {(app, name): topic for name, topic in zip(names, outputs, strict=True)}
        peers.append(Peer(app=app, inputs=[each.topic for each in spec.inputs.values()], outputs=outputs))
    for topic in topics.values():
        ensure_topic(settings, topic, 1, INPUT)
    classes, states = folder / "classes", folder / "states"
    states.mkdir()
    compile_to(classes)
    run(settings.bootstrap, peers, classes=classes, folder=states, name="peer-", timeout_s=240)
    return topics


def told(world: World, topic: str) -> Iterator[tuple[Key, Row | None, str | None]]:
    """Key, value and source of each record of a result."""
    for record in read(world.cluster.settings.bootstrap, topic):
        assert record.key is not None
        key = tuple(json.loads(record.key).values())
        # the closing records are there for what comes before them
        if key[0] != "end":
            value = None if record.value is None else json.loads(record.value, parse_float=Decimal)
            yield key, value, record.source


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(cluster)
    load(world)
    run_ours(world)
    theirs = run_peers(world, tmp_path_factory.mktemp("peers"))
    for app, name in TABLES.items():
        world.tables[app] = table(world, ours(app, name)), table(world, theirs[app, name])
    for app, name in STREAMS.items():
        world.streams[app] = stream(world, ours(app, name)), stream(world, theirs[app, name])
    return world


def ours(app: str, name: str) -> str:
    return result_topic(f"{app}.v1", 1, name)


def table(world: World, topic: str) -> dict[Key, Row]:
    """The last value of each key that has one."""
    last = {key: value for key, value, _ in told(world, topic)}
    return {key: value for key, value in last.items() if value is not None}


def stream(world: World, topic: str) -> Counter[str]:
    """How often each record is there. Ours name their source in a header, the peers in the value."""
    found = [
        (key, {**(value or {}), **({"source": source} if source else {})}) for key, value, source in told(world, topic)
    ]
    return Counter(json.dumps(each, sort_keys=True, default=str) for each in found)


def only_in(one: dict[Key, Row], other: dict[Key, Row]) -> dict[Key, tuple[Any, ...]]:
    """The rows of `one` that `other` has not, or has with another value."""
    return {key: tuple(row.values()) for key, row in one.items() if other.get(key) != row}


@pytest.mark.parametrize("app", sorted({*TABLES} - {"stock-stats", "browser-windows"}))
def test_the_last_value_of_each_key_is_the_same(world: World, app: str) -> None:
    mine, theirs = world.tables[app]
    assert len(theirs) >= AT_LEAST.get(app, 50)
    assert (only_in(mine, theirs), only_in(theirs, mine)) == ({}, {})


@pytest.mark.parametrize("app", sorted({*STREAMS} - {"not-viewing", "clickstream"}))
def test_a_stream_has_the_same_records_equally_often(world: World, app: str) -> None:
    mine, theirs = world.streams[app]
    assert theirs.total() >= AT_LEAST.get(app, 50)
    assert (mine - theirs, theirs - mine) == (Counter(), Counter())


def test_late_trades_are_dropped_by_batch_here_and_by_record_and_partition_there(world: World) -> None:
    mine, theirs = world.tables["stock-stats"]
    assert len(theirs) > 1_000
    assert only_in(mine, theirs) == KEPT_IN_A_BATCH
    assert only_in(theirs, mine) == KEPT_IN_A_PARTITION
    assert world.late["stock-stats"] == LATE_DROPPED
    # what both dropped, and what both kept
    assert not any(ticker == "BOTH" for ticker, _ in theirs)
    assert sorted(start for ticker, start in mine if ticker == "GRACE") == seconds(46, 48)


def test_late_actions_are_dropped_as_late_trades_are(world: World) -> None:
    mine, theirs = world.tables["browser-windows"]
    assert len(theirs) > 100
    assert only_in(mine, theirs) == {("SAME", start): (1,) for start in seconds(36, 40)[::2]}
    assert only_in(theirs, mine) == {("ACROSS", start): (1,) for start in seconds(26, 30)[::2]}
    assert world.late["browser-windows"] == LATE_ACTS_DROPPED
    assert not any(browser == "BOTH" for browser, _ in theirs)
    assert sorted(start for browser, start in mine if browser == "GRACE") == seconds(46, 48)[::2]


def test_a_late_tick_is_dropped_here_and_joined_at_once_there(world: World) -> None:
    mine, theirs = world.streams["not-viewing"]
    assert theirs.total() > 100
    assert mine - theirs == Counter()
    more = [json.loads(each) for each in (theirs - mine).elements()]
    assert sorted((key[0], value["at"]) for key, value in more) == [
        ("across", "2013-03-01T14:59:30.000Z"),
        ("late", "2013-03-01T14:59:30.000Z"),
    ]
    assert world.late["not-viewing"] == len(more)
    # the one in time
    assert any('["late"]' in each and "14:59:55" in each for each in mine)


def test_a_late_click_is_dropped_here_and_joined_at_once_there(world: World) -> None:
    mine, theirs = world.streams["clickstream"]
    assert theirs.total() > 100
    assert mine - theirs == Counter()
    more = [json.loads(each) for each in (theirs - mine).elements()]
    assert [(key[0], value["at"]) for key, value in more] == [("late", "2013-03-01T14:59:30.000Z")]
    assert world.late["clickstream"] == 1
    # the one in time
    assert any('["late"]' in each and "14:59:55" in each for each in mine)


def test_the_hand_written_records_have_the_rows_that_the_table_of_apps_says(world: World) -> None:
    for words in world.tables["word-count"]:
        assert ("the",) not in words and words[("the_end",)] == words[("a_b",)] == {"count": 1}
    for values in world.tables["latest-value"]:
        assert [values[(key,)]["value"] for key in ("k1", "k2", "k3")] == [7, 4, 11]
    for days in world.tables["daily-gains"]:
        # the last and the first millisecond of a day; of two trades in one, the first opens and the second closes
        assert days["EDGE", "2013-03-01"]["close"] == 10
        assert (days["EDGE", "2013-03-02"]["open"], days["EDGE", "2013-03-02"]["close"]) == (20, 25)
        # a trade changes its day, however late it is
        assert days["BOTH", "2013-03-01"]["open"] == 7
