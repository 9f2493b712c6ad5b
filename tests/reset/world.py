"""One live app of a kind on a topic of its own, with its consumer. Resets are tested on it."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from demo.ledger.reader import Record, read
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning import stage
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.wait import wait_ready
from pipelines.errors import Unavailable
from pipelines.follow import LiveConsumer, committed_number
from pipelines.kafka.client import await_connection, producer
from pipelines.kafka.offsets import end_offsets
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model.registry import Release
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.e2e.harness import at_rest
from tests.operations.builders import tried
from tests.shared.operators import Death, Operators
from tests.shared.terminal import Said, Terminal
from tests.shared.threads import Threads, patient
from tests.shared.waiting import until

PARTITIONS = 2
START_MS = 1_600_000_000_000

HEAD = """
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, ResultOf, Stream, Table, app

NUMBERS = {"numbers": Stream(topic="TOPIC", key="k string", value=Json("n long NOT NULL"))}
"""

KINDS = {
    "count": """
@app(name="NAME", inputs=NUMBERS, result=Table(key=("k",), partitions=2))
def count(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    return numbers.groupBy("k").agg(F.count(F.lit(1)).alias("records"), F.sum("n").alias("total"))
""",
    "windowed": """
@app(name="NAME", inputs=NUMBERS, result=Table(key=("k", "start"), partitions=2), watermark="10 seconds")
def windowed(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    window = F.window("event_time", "4 seconds", "2 seconds")
    counted = numbers.groupBy("k", window.alias("w")).agg(F.count(F.lit(1)).alias("records"))
    return counted.select("k", F.unix_timestamp("w.start").alias("start"), "records")
""",
    "joined": """
BOTH = {name: Stream(topic="TOPIC", key="k string", value=Json("n long NOT NULL")) for name in ("left", "right")}


@app(name="NAME", inputs=BOTH, result=AppendStream(key=("k",), partitions=2), watermark="10 seconds")
def joined(left: DataFrame, right: DataFrame, settings: AppSettings) -> DataFrame:
    later = right.select(F.col("k").alias("other"), (F.col("n") - 7).alias("before"), F.col("event_time").alias("at"))
    near = "other = k AND before = n AND at >= event_time AND at <= event_time + interval 1 second"
    return left.join(later, F.expr(near)).select("k", "n", "topic", "partition", "offset")
""",
    "stateful": """
import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


class Ranks(StatefulProcessor):
    def init(self, handle):
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timers):
        seen = self.count.get()[0] if self.count.exists() else 0
        for frame in rows:
            for row in frame.sort_values("offset").itertuples():
                seen += 1
                yield pd.DataFrame({"k": [key[0]], "rank": [seen], "topic": [row.topic], "partition": [row.partition], "offset": [row.offset]})
        self.count.update((seen,))

    def close(self):
        pass


@app(name="NAME", inputs=NUMBERS, result=AppendStream(key=("k",), partitions=2))
def stateful(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    schema = "k string, rank long, topic string, partition int, offset long"
    return numbers.groupBy("k").transformWithStateInPandas(Ranks(), schema, "append", "none")
""",
    "poisoned": """
@app(name="NAME", inputs=NUMBERS, result=Table(key=("k",), partitions=2))
def poisoned(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    checked = F.expr("if(n = 237, raise_error(concat('a number that nobody can take: ', n)), n)")
    return numbers.groupBy("k").agg(F.count(F.lit(1)).alias("records"), F.sum(checked).cast("long").alias("total"))
""",
    "stateless": """
@app(name="NAME", inputs=NUMBERS, result=AppendStream(key=("k",), partitions=2))
def stateless(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    return numbers.where("n % 4 < 2").select("k", "n", "topic", "partition", "offset")
""",
    # a table and a stream: the last number of each key in each partition, and half of each partition's numbers
    "both": """
@app(name="NAME", inputs=NUMBERS, results={"last": Table(key=("k", "p"), partitions=2), "evens": AppendStream(key=("k",), partitions=3)})
def both(numbers: DataFrame, settings: AppSettings) -> DataFrame:
    even = F.when(F.expr("n % 4 < 2"), F.struct("k", "n", "topic", "partition", "offset"))
    return numbers.select(F.struct("k", F.col("partition").alias("p"), "n").alias("last"), even.alias("evens"))
""",
}
# how an app reads a stream with a number `n` of each key `k`
READS = {
    "result": "", "table": False, "key_as": "JSON", "key": ["k"], "value_as": "JSON", "value": ["n"], "avro": None,
}  # fmt: skip
POISON = 237
RECORDS = "`k` string, `n` bigint, `topic` string, `partition` int, `offset` bigint"
STREAM = {"": {"table": False, "key": ["k"], "schema_ddl": RECORDS}}
COUNTS = {"": {"table": True, "key": ["k"], "schema_ddl": "`k` string, `records` bigint, `total` bigint"}}
# kind of app -> its results by name, and its watermark
FACTS: dict[str, tuple[dict[str, dict[str, Any]], str | None]] = {
    "count": (COUNTS, None),
    "joined": (STREAM, "10 seconds"),
    "stateful": ({"": STREAM[""] | {"schema_ddl": RECORDS.replace("`n`", "`rank`")}}, None),
    "poisoned": (COUNTS, None),
    "windowed": (
        {"": {"table": True, "key": ["k", "start"], "schema_ddl": "`k` string, `start` bigint, `records` bigint"}},
        "10 seconds",
    ),
    "stateless": (STREAM, None),
    "both": (
        {
            "last": {"table": True, "key": ["k", "p"], "schema_ddl": "`k` string, `p` int, `n` bigint"},
            "evens": STREAM[""],
        },
        None,
    ),
}


@dataclass
class World:
    """One app of a kind on a topic of its own, and what was produced to it."""

    settings: Settings
    context: Context
    drivers: Threads
    kind: str
    app: str
    topic: str
    version: int = 1
    sent: list[tuple[str, int]] = field(default_factory=list)
    # the world whose result is its input, if it reads another's
    upstream: World | None = None
    # starts commands in processes of their own
    operators: Operators | None = None
    _producer: Any = None

    @property
    def name(self) -> str:
        return f"{self.app}.v{self.version}"

    @property
    def release(self) -> Release:
        return self.context.registry.state().releases[self.name]

    def produce(self, count: int) -> None:
        """Produces `count` more records on both partitions, 20 per second of event time; for a reader, upstream."""
        if self.upstream is not None:
            self.upstream.produce(count)
            self.upstream.settle()
            return
        if self._producer is None:
            self._producer = producer(self.settings, linger_ms=0)
            # otherwise the producer waits half a second for its first record
            await_connection(self._producer, self.topic)
        client = self._producer
        for _ in range(count):
            number = len(self.sent)
            key = f"k{number % 7}"
            at = START_MS + number * 50
            client.produce(self.topic, json.dumps({"n": number}), key, timestamp=at, partition=number % PARTITIONS)
            self.sent.append((key, number))
        assert client.flush(30) == 0

    def run(self, plan: Plan) -> Plan:
        execute(self.context, plan)
        return plan

    def until(self, what: str, probe: Any, timeout_s: float = 120) -> None:
        self.context.until(what, probe, timeout_s=timeout_s, poll_s=0.05)

    def settle(self) -> None:
        inputs = {source: i.topic for source, i in self.release.spec.inputs.items()}
        self.until(
            f"{self.name} has not come to rest",
            lambda: at_rest(self.settings, self.name, inputs, self.context.registry),
        )

    def make_live(self) -> None:
        self.run(plan_start(self.context, self.name))
        self.settle()
        wait_ready(self.context, self.name, for_s=0.1, timeout_s=120)
        self.run(plan_promote(self.context, self.app))

    def stop(self) -> None:
        self.run(plan_stop(self.context, self.name))

    def reset(self, target: Target, **options: Any) -> Plan:
        return self.run(plan_reset(self.context, self.name, Request(target=target, **options)))

    def cli(self, *arguments: object) -> Said:
        """Runs `switchyard` in this process."""
        return Terminal(self.settings, self.settings.state_dir, self.drivers, self.context.spark).run(*arguments)

    def killed(self, *arguments: object, death: Death) -> Plan | None:
        """The plan that the operator of this command had when it was killed; None: its operation was done before."""
        assert self.operators is not None
        said = self.operators.start(*arguments, death=death).end()
        if said.code != -signal.SIGKILL:
            assert said.code == 0, said.text
            return None
        state = self.context.registry.state()
        operation = state.blocking(self.name)
        if operation is None:
            # killed after its last entry
            closed = [*state.operations.values()][-1].closed
            assert closed is not None and closed.outcome == "done", said.text
            return None
        return Plan.from_journal(operation.opened)

    # -- what is right

    def records(self) -> list[Record]:
        return list(read(self.settings.bootstrap, self.topic))

    def expected(self, start: Mapping[int, int], until: Mapping[int, int] | None = None) -> Any:
        """What a fresh release makes of the input from `start`: key -> row of a table; source -> count of a stream."""
        chosen = [
            r for r in self.records()
            if r.offset >= start.get(r.partition, 0) and (until is None or r.offset < until.get(r.partition, 0))
        ]  # fmt: skip
        return recomputed(self.kind, chosen)

    def recompute(self, records: list[Record]) -> Any:
        return recomputed(self.kind, records)

    def start(self) -> None:
        """Starts it, unless it runs."""
        self.run(plan_start(self.context, self.name))

    def result(self, topic: str | None = None, until: Mapping[int, int] | None = None) -> Any:
        """What a result topic holds, in the form of `expected`."""
        return folded(self.kind, list(read(self.settings.bootstrap, topic or self.release.result_topics[""], until)))

    def kind_of(self, result: str) -> str:
        """The kind of app that has a result like this one alone."""
        return {"": self.kind, "last": "count", "evens": "stateless"}[result]


def recomputed(kind: str, records: list[Record]) -> Any:
    numbers = [(r, json.loads(r.value or b"")["n"]) for r in records]
    if kind == "stateless":
        return Counter(f"{r.topic}:{r.partition}:{r.offset}" for r, n in numbers if n % 4 < 2)
    if kind == "joined":
        known = {n for _, n in numbers}
        return Counter(f"{r.topic}:{r.partition}:{r.offset}" for r, n in numbers if n + 7 in known)
    if kind == "stateful":
        keys = Counter((r.key or b"").decode() for r, _ in numbers)
        return Counter((k, rank) for k, count in keys.items() for rank in range(1, count + 1))
    table: dict[str, dict[str, Any]] = {}
    for record, n in numbers:
        k = (record.key or b"").decode()
        if kind != "windowed":
            row = table.setdefault(json.dumps({"k": k}, separators=(",", ":")), {"records": 0, "total": 0})
            row["records"] += 1
            row["total"] += n
            continue
        second = record.time_ms // 1000
        for start in (second // 2 * 2 - 2, second // 2 * 2):
            row = table.setdefault(json.dumps({"k": k, "start": start}, separators=(",", ":")), {"records": 0})
            row["records"] += 1
    return table


def folded(kind: str, records: list[Any]) -> Any:
    """Folds records of a result, or what a consumer got: the last row of each key, or how often each source came."""
    if kind in ("stateless", "joined"):
        return Counter(r.source for r in records)
    if kind == "stateful":
        return Counter((json.loads(r.key)["k"], json.loads(r.value)["rank"]) for r in records)
    table: dict[str, Any] = {}
    for record in records:
        key = (record.key or b"").decode()
        if record.value is None:
            table.pop(key, None)
        else:
            table[key] = json.loads(record.value)
    return table


@dataclass
class Got:
    """A record as a follower got it."""

    key: bytes | None
    value: bytes | None
    source: str | None
    replay: bool
    topic: str
    phase: str


class Following(threading.Thread):
    """A follower of an alias on a thread of its own, which keeps everything that it gets."""

    def __init__(self, world: World, group: str, result: str = "") -> None:
        super().__init__(name=group, daemon=True)
        self.world, self.group, self.result = world, group, result
        self.got: list[Got] = []
        self._ended = threading.Event()

    def run(self) -> None:
        committed = None
        with LiveConsumer(
            self.world.app, group=self.group, result=self.result or None, settings=self.world.settings
        ) as consumer:
            while not self._ended.is_set():
                record = consumer.poll(0.1)
                if record is not None:
                    headers = dict(record.headers)
                    source = headers.get("source")
                    self.got.append(
                        Got(record.key, record.value, source.decode() if source else None, record.replay,
                            record.topic, record.phase)
                    )  # fmt: skip
                elif consumer.position != committed:
                    # if someone has deleted the result, nothing can be committed until it reads another one
                    with suppress(Unavailable):
                        consumer.commit()
                        committed = consumer.position

    def end(self) -> None:
        self._ended.set()
        self.join(30)
        assert not self.is_alive(), f"{self.name} has not ended within 30 s"

    @property
    def fold(self) -> Any:
        return folded(self.world.kind_of(self.result), list(self.got))

    def comes_to(self, expected: Any, timeout_s: float = 60) -> None:
        """Waits until what it got is `expected`; if that fails, says what differs."""
        deadline = time.monotonic() + timeout_s
        while (found := self.fold) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        assert found == expected

    def passes_the_newest_switch(self, timeout_s: float = 60) -> None:
        """Waits until it has committed that it reads what the newest switch leads to."""
        chain = self.world.context.registry.state().chains[self.world.app]
        newest = chain[-1].number

        def has_passed() -> bool:
            return committed_number(self.world.settings, self.group, self.world.app, chain) == newest

        until(f"{self.name} has not passed switch {newest}", has_passed, timeout_s)


@contextmanager
def following(world: World, result: str = "") -> Iterator[Following]:
    thread = Following(world, f"{world.app}-follower{result}", result)
    thread.start()
    try:
        yield thread
    finally:
        thread.end()


@contextmanager
def reader_of(upstream: World, folder: Path, *, pinned: bool = False) -> Iterator[World]:
    """A staged release of an app that counts what another app has written. `pinned`: it names that app, a stream with a
    number `n` of each key `k`, not a topic.
    """
    settings, topic = upstream.settings, upstream.release.result_topics[""]
    app = upstream.app if pinned else None
    with world_of(settings, upstream.context.spark(), "count", folder, topic=topic, of=app) as world:  # type: ignore[misc]
        world.upstream = upstream
        yield world


@contextmanager
def world_of(
    settings: Settings, spark: Any, kind: str, folder: Path, *, topic: str | None = None, of: str | None = None
) -> Iterator[World]:
    """A staged release of an app of `kind`: on a topic of its own with 200 records, or on another world's `topic`. `of`:
    the app whose result that is, if its definition names it.
    """
    unique = folder.name.replace("_", "-").lower()
    own, app = topic is None, f"{kind}-{abs(hash(str(folder))) % 10**8}"
    topic = topic or f"numbers-{abs(hash(str(folder))) % 10**8}-{unique[:20]}"
    if own:
        ensure_topic(settings, topic, PARTITIONS, INPUT)
    code = folder / "code"
    code.mkdir()
    text = (HEAD + KINDS[kind]).replace("NAME", app)
    if of is not None:
        text = text.replace('"TOPIC", key="k string"', f'ResultOf("{of}"), key=Json("k string NOT NULL")')
    (code / f"{kind}.py").write_text(text.replace("TOPIC", topic))
    sources = ("left", "right") if kind == "joined" else ("numbers",)
    results, watermark = FACTS[kind]
    facts: dict[str, Any] = {
        "module": kind, "settings": {}, "inputs": dict.fromkeys(sources, topic) if of is None else {}, "watermark": watermark,
        "watermark_delay_ms": None,
        "comparable": "exact", "reset_allowed": True, "tables": [], "suites": {}, "notes": [],
        "sources": list(sources), "upstream": {} if of is None else {"numbers": {"app": of, **READS}},
        "results": {name: {"partitions": 2, "suite": None, **result} for name, result in results.items()},
    }  # fmt: skip
    drivers = Threads(settings)
    operators = Operators(settings, folder, drivers, lambda: spark)
    with Registry(settings, actor="tester") as registry, pytest.MonkeyPatch.context() as patch:
        # the trial on empty input would need its own JVM, and has nothing to do with resets
        patch.setattr(stage, "probe", tried(facts))
        context = Context(
            settings=settings,
            registry=registry,
            launcher=drivers,
            spark=lambda: spark,
            say=lambda line: print(" ", line),
            sleep=patient,
        )
        world = World(
            settings=settings, context=context, drivers=drivers, kind=kind, app=app, topic=topic, operators=operators
        )
        if own:
            world.produce(200)
        execute(context, plan_stage(context, app, version=1, code_dir=code))
        try:
            yield world
        finally:
            operators.end()
            drivers.end()


@contextmanager
def live_world(broker: Settings, spark: Any, kind: str, folder: Path, **changes: Any) -> Iterator[World]:
    """A live release of an app of `kind`, whose batches follow without a pause."""
    settings = broker.model_copy(update={"trigger_s": 0.1, "heartbeat_s": 0.2, **changes})
    with world_of(settings, spark, kind, folder) as world:
        world.make_live()
        yield world


def ends(settings: Settings, topic: str) -> dict[int, int]:
    return dict(end_offsets(settings, [topic])[topic])
