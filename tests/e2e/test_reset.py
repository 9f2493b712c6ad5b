"""A reset at the terminal: shown, executed, interrupted by the death of its operator, resumed, and undone."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from demo.ledger.reader import read
from pipelines.kafka.offsets import end_offsets
from pipelines.model.entries import GenerationStarted
from pipelines.settings import Settings
from tests.e2e.cluster import LARGE, Cluster, Follower, folded
from tests.shared.operators import SEED, Death
from tests.shared.waiting import Deadline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark]

APP, NAME = "word-count", "word-count.v1"


@pytest.fixture(scope="module")
def cluster(broker: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One release has the cores to itself: its batches follow each other without a pause."""
    cluster = Cluster(broker, tmp_path_factory.mktemp("cluster"), lambda: spark, trigger_s=0.1, heartbeat_s=0.15)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def live(cluster: Cluster) -> Iterator[Cluster]:
    cluster.load(APP, 3_000, per_second=200)
    cluster.hydrate(APP, 1, batch=LARGE)
    cluster.make_live(APP, 1)
    yield cluster
    cluster.stop(NAME)


@pytest.fixture(scope="module")
def follower(live: Cluster) -> Iterator[Follower]:
    with Follower(live, APP, "counted") as found:
        yield found


def words(cluster: Cluster) -> dict[str, int]:
    """Each word of the input with its count, exactly as the app should count."""
    counts: Counter[str] = Counter()
    for record in read(cluster.settings.bootstrap, "lines"):
        if record.value is not None:
            try:
                line = record.value.decode()
            except UnicodeDecodeError:
                continue
            counts.update(w for w in re.split(r"[^A-Za-z0-9_]+", line.lower()) if w not in ("", "the"))
    return dict(counts)


def counted(fold: dict[str, Any]) -> dict[str, int]:
    return {json.loads(key)["word"]: row["count"] for key, row in fold.items()}


def of_result(cluster: Cluster) -> dict[str, int]:
    topic = cluster.state.releases[NAME].result_topics[""]
    return counted(folded(cluster.settings, topic, end_offsets(cluster.settings, [topic])[topic]))


def comes_to(follower: Follower, expected: dict[str, int]) -> None:
    """Waits until the follower's table is `expected`."""

    def table() -> dict[str, int]:
        fold: dict[str, Any] = {}
        for line in follower.lines():
            fold[line["key"]] = line["value"]
        texts = {k: json.loads(v) if isinstance(v, str) else v for k, v in fold.items() if v is not None}
        return counted(texts)

    follower.cluster.until("the follower's table is another", lambda: table() == expected)


def goes_on(live: Cluster, follower: Follower) -> None:
    """More input comes: the result has all of it once, and the follower gets it from where the release writes now."""
    live.load(APP, 200, per_second=200)
    live.settle(NAME, "lines")
    expected = words(live)
    assert of_result(live) == expected
    comes_to(follower, expected)


def test_a_plan_is_shown_and_changes_nothing(live: Cluster, follower: Follower, tmp_path: Path) -> None:
    comes_to(follower, words(live))
    refused = live.cli("reset", NAME, "--to-earliest")
    assert refused.code == 3 and "is run by process" in refused.err and "--stop" in refused.err
    before = live.world()
    shown = live.cli("reset", NAME, "--to-earliest", "--stop")
    assert shown.code == 0 and live.world() == before
    for said in ("to read", "lines[0]", "start generation 2", "switchyard undo reset-", "add --execute", "follower"):
        assert said in shown.out, shown.out
    for more in (
        ("--force",),
        ("--force", "--output", "truncate"),
        ("--force", "--output", "keep", "--export", str(tmp_path / "x")),
    ):
        assert live.cli("reset", NAME, "--to-earliest", "--stop", *more).code == 0
        assert live.world() == before, more
    told = (tmp_path / "x").read_text()
    assert told.startswith("lines,0,0\n")
    again = live.cli("reset", NAME, "--to-earliest", "--stop", "--export", str(tmp_path / "x"))
    assert again.code == 2 and "can't be written: File exists" in again.err
    assert (tmp_path / "x").read_text() == told
    plan = json.loads(live.cli("reset", NAME, "--to-earliest", "--stop", "--json").out)
    assert plan["operation"] == "reset" and plan["executed"] is False
    figures = plan["figures"]
    assert figures["replay_records"] == sum(p["old"] for p in figures["positions"]) > 0 and figures["replay_s"] > 0
    assert (
        {p["new"] for p in figures["positions"]} == {0} and figures["state_bytes"] > 0 and figures["result_records"] > 0
    )
    assert plan["tables"][0]["columns"] == ["input", "old", "new", "difference", "to read"]


def test_an_operator_who_dies_is_followed_by_the_next(live: Cluster, follower: Follower) -> None:
    begun = Death(entry=GenerationStarted)
    dead = live.operators.start(
        "reset", NAME, "--to-earliest", "--stop", "--reason", "wrong since noon", "--execute", death=begun
    ).end()
    assert dead.code == -signal.SIGKILL, dead.text
    assert live.state.releases[NAME].generation == 2
    operation = next(o for o in live.state.operations.values() if o.opened.name == "reset" and o.closed is None)
    shown = live.cli("operations").out
    assert operation.id in shown and f"nobody carries it out: `switchyard resume {operation.id}`" in shown
    blocked = live.cli("stop", NAME, "--execute")
    assert blocked.code == 3 and f"switchyard resume {operation.id}" in blocked.err
    resumed = live.cli("resume", operation.id)
    assert resumed.code == 0, resumed.text
    goes_on(live, follower)
    log = live.cli("log", NAME)
    assert "wrong since noon" in log.out and operation.id in log.out


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.long)])
def test_an_operator_may_be_killed_anywhere(live: Cluster, follower: Follower, kills: int) -> None:
    """One reset after the other: its operator is killed at some line, then two that resume it; the next one ends it."""
    random, killed = Random(SEED), 0
    deadline = Deadline(f"{kills} operators were not killed", 120 + 30 * kills)
    while killed < kills:
        deadline.check()
        generation = live.state.releases[NAME].generation
        lines = [random.randint(1, 1500) for _ in range(3)]
        command = ["reset", NAME, "--to-earliest", "--stop", "--execute"]
        for line in lines:
            dead = live.operators.start(*command, death=Death(line=line)).end()
            operation = next(o for o in reversed([*live.state.operations.values()]) if o.opened.name == "reset")
            if operation.closed is not None:
                assert dead.code in (0, -signal.SIGKILL), f"to be killed at lines {lines}: {dead.text}"
                break
            assert dead.code == -signal.SIGKILL, f"to be killed at lines {lines}: {dead.text}"
            killed += 1
            command = ["resume", operation.id]
        else:
            resumed = live.cli(*command)
            assert resumed.code == 0, f"killed at lines {lines}: {resumed.text}"
        # applied once, even if parts of it ran several times
        assert live.state.releases[NAME].generation == generation + 1, f"killed at lines {lines}"
        goes_on(live, follower)


def test_an_undo_takes_a_reset_back(live: Cluster, follower: Follower) -> None:
    done = live.cli("reset", NAME, "--to-earliest", "--stop", "--execute")
    assert done.code == 0, done.text
    goes_on(live, follower)
    reset, switches = live.state.releases[NAME].under, len(live.state.chains[APP])
    assert reset is not None and reset.op is not None
    before = live.world()
    shown = live.cli("undo", reset.op, "--stop")
    assert shown.code == 0 and "nothing is changed" in shown.out and live.world() == before
    said = live.cli("undo", reset.op, "--stop", "--execute")
    assert said.code == 0, said.text
    assert reset.ended is not None and live.state.releases[NAME].generation == reset.ended.generation
    assert len(live.state.chains[APP]) == switches + 1
    goes_on(live, follower)


def test_two_operators_with_the_same_reset_do_it_once(live: Cluster, follower: Follower) -> None:
    before = len(live.state.releases[NAME].generations)
    # the first has started and waits: its release must not stop before the second one is refused
    first = live.operators.start("reset", NAME, "--to-earliest", "--stop", "--execute")
    live.until("the first has not begun", lambda: live.state.blocking(NAME), poll_s=0.01)
    os.kill(first.process.pid, signal.SIGSTOP)
    try:
        refused = live.operators.start("reset", NAME, "--to-earliest", "--stop", "--execute").end()
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
    assert refused.code == 3 and "is carrying out" in refused.err, refused.text
    done = first.end()
    assert done.code == 0, done.text
    assert len(live.state.releases[NAME].generations) - before == 1
    goes_on(live, follower)


@pytest.mark.long
def test_a_consumer_that_sends_mails_can_tell_a_replay_from_new_records(cluster: Cluster) -> None:
    """A salesperson hears of each large order once, although all of them are written again."""
    cluster.load("large-orders", 2_000, per_second=200)
    cluster.hydrate("large-orders", 1, batch=LARGE)
    cluster.make_live("large-orders", 1)
    cluster.settle("large-orders.v1", "orders")
    with Follower(cluster, "large-orders", "mails") as follower:

        def told(replay: bool) -> Counter[str]:
            return Counter(x["headers"]["source"] for x in follower.lines() if x["replay"] is replay)

        def written() -> Counter[str]:
            topic = cluster.state.releases["large-orders.v1"].result_topics[""]
            return Counter(r.source for r in read(cluster.settings.bootstrap, topic) if r.source is not None)

        first = written()
        assert first and set(first.values()) == {1}
        cluster.until("the orders have not been told", lambda: told(replay=False) == first)
        said = cluster.cli("reset", "large-orders.v1", "--to-earliest", "--output", "keep", "--stop", "--execute")
        assert said.code == 0 and "they carry the header replay" in said.text, said.text
        cluster.load("large-orders", 500, per_second=200)
        cluster.settle("large-orders.v1", "orders")
        news = written() - first - first
        assert news
        cluster.until("the news have not been told", lambda: told(replay=False) == first + news)
        cluster.until("the replays have not come", lambda: told(replay=True) == first)
    cluster.stop("large-orders.v1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "a reset needs a position"),
        ("--to-earliest --to-latest", "can't be used together"),
        ("--to-offset -1", "is negative"),
        ("--to-offset 99999999", "is past the end"),
        ("--to-datetime yesterday", "is not a date and time"),
        ("--to-datetime 2026-11-01T00:00:00.000", "has no time zone"),
        ("--to-datetime 2199-01-01T00:00:00Z", "no record at or after that time"),
        ("--by-duration PT0S", "is zero"),
        ("--from-file none.csv", "can't be read"),
        ("--from-file {lines,0,5;lines,0}", "line 2: 'lines,0' is not topic,partition,offset"),
        ("--from-file {lines,0,5;lines,0,6}", "line 2: lines[0] is listed twice"),
        ("--from-file {lines,77,5}", "no partition 77"),
        ("--from-file {lines,0,-5}", "line 1: 'lines,0,-5' is not topic,partition,offset"),
        ("--from-file {lines,0,99999999}", "is past the end"),
        ("--to-earliest --input-topics trades", "does not read trades"),
        ("--to-earliest --input-topics lines:77", "no partition 77"),
        ("--to-earliest --output keep", "would keep their old rows"),
        ("--to-earliest --state keep", "would count twice"),
        ("--to-earliest --until 0", "is not after"),
        ("--to-earliest --export /none/offsets.csv", "can't be written"),
        ("--to-earliest --output truncate", "you can't confirm that because this is not a terminal"),
    ],
)
def test_an_invalid_reset_is_refused_and_changes_nothing(
    live: Cluster, tmp_path: Path, options: str, said: str
) -> None:
    before = live.world()
    words = []
    for word in options.split():
        if word.startswith("{"):
            # a file with these lines
            (tmp_path / "offsets.csv").write_text("\n".join(word.strip("{}").split(";")))
            word = str(tmp_path / "offsets.csv")
        words.append(word)
    found = live.cli("reset", NAME, "--stop", "--execute", *words)
    assert found.code in (2, 3) and said in found.err, found.text
    # the registry is as long as before: no wanted state changed, no lease taken, no operation started
    assert live.world() == before
