"""The diff under load: unchanged code differs in nothing, a planted change is found to the key."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.ledger.check import check_log
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from pipelines.engine.lease import is_alive
from pipelines.kafka.client import producer
from pipelines.kafka.progress import progress_history
from pipelines.model.names import result_topic
from pipelines.model.registry import EvidenceRecorded
from tests.e2e.cluster import LARGE, ROOT, SMALL, Cluster, Follower, folded
from tests.e2e.harness import committed

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark]

FINALS = '''
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app


@app(
    name="finals",
    inputs={"trades": Stream(topic="trades", key="ticker string", value=Json("side string NOT NULL, price decimal(8,2) NOT NULL"))},
    result=AppendStream(key=("ticker",), partitions=2),
    watermark="10 seconds",
)
def finals(trades: DataFrame, settings: AppSettings) -> DataFrame:
    """Each window once, when the watermark has passed it."""
    window = F.window("event_time", "4 seconds", "2 seconds")
    counted = trades.groupBy("ticker", window.alias("window")).agg(F.count(F.lit(1)).alias("trades"), F.min("price").alias("lowest"))
    return counted.select("ticker", F.col("window.start").cast("string").alias("window_start"), "trades", "lowest")
'''


@pytest.fixture(scope="module")
def trades(cluster: Cluster) -> Cluster:
    """The cluster with 12,000 trades: 60 s of event time."""
    cluster.load("stock-stats", 12_000, per_second=200)
    return cluster


@pytest.fixture(scope="module")
def stock(trades: Cluster) -> Cluster:
    """stock-stats.v1 live with small batches, its unchanged code as v2 with large ones."""
    trades.hydrate("stock-stats", 1, batch=SMALL)
    trades.make_live("stock-stats", 1)
    trades.hydrate("stock-stats", 2, batch=LARGE, correction="the same again, in large batches")
    return trades


@pytest.fixture
def finals(trades: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """An append-mode app: v1 live with small batches, v2 the same with large ones."""
    (tmp_path / "finals.py").write_text(FINALS)
    trades.hydrate("finals", 1, batch=SMALL, code_dir=tmp_path)
    trades.make_live("finals", 1)
    trades.hydrate("finals", 2, batch=LARGE, code_dir=tmp_path, correction="the same again")
    yield trades
    trades.stop("finals.v1", "finals.v2")


@pytest.fixture(scope="module")
def orders(cluster: Cluster) -> Iterator[Cluster]:
    """A stream without state, its records known by where they came from."""
    cluster.load("large-orders", 8_000, per_second=200)
    cluster.hydrate("large-orders", 1, batch=SMALL)
    cluster.make_live("large-orders", 1)
    cluster.hydrate("large-orders", 2, batch=LARGE, correction="the same again")
    yield cluster
    cluster.stop("large-orders.v1", "large-orders.v2")


def evidence(cluster: Cluster) -> EvidenceRecorded:
    return cluster.state.evidence[-1]


def assert_nothing_differs(found: Comparison, *, at_least: int) -> None:
    assert (found.only_live, found.only_new, found.changed) == (0, 0, 0), found
    assert found.identical >= at_least
    assert not found.columns and not found.samples and found.ratio == 0
    assert found.live_late_dropped == found.new_late_dropped == 0
    assert found.live_watermark_ms == found.new_watermark_ms


def test_unchanged_code_of_a_table_differs_in_nothing_while_input_comes(stock: Cluster) -> None:
    both = ("stock-stats.v1", "stock-stats.v2")
    for name in both:
        # what the plan of the next version says of its time
        ready = stock.state.releases[name].ready
        assert ready is not None and ready.facts["records_per_s"] > 0
    before = stock.position("stock-stats.v1")["trades"]
    with stock.producing("stock-stats", 400, per_second=200):
        stock.until("v1 has read nothing new", lambda: stock.position("stock-stats.v1")["trades"] != before)
        found = diff(stock.context(), "stock-stats.v2")
        assert_nothing_differs(found, at_least=500)
        cut = evidence(stock).cut.sources["trades"]
        assert sum(cut.values()) > sum(before.values())
        # both go on from there
        for name in both:
            stock.until(
                f"{name} has stood still since",
                lambda name=name: sum(stock.position(name)["trades"].values()) > sum(cut.values()) + 400,
            )
    largest = {name: max(p.batch.rows_in for p in progress_history(stock.settings, name)) for name in both}
    assert largest["stock-stats.v1"] <= SMALL < largest["stock-stats.v2"]


def test_an_idle_input_is_compared_too(stock: Cluster) -> None:
    for name in ("stock-stats.v1", "stock-stats.v2"):
        stock.settle(name, "trades")
    end = stock.position("stock-stats.v1")["trades"]
    assert_nothing_differs(diff(stock.context(), "stock-stats.v2"), at_least=500)
    assert evidence(stock).cut.sources["trades"] == end


def test_a_planted_change_is_found_to_the_key(stock: Cluster) -> None:
    stock.stop("stock-stats.v2")
    stock.hydrate("stock-stats", 3, batch=LARGE, code_dir=ROOT / "demo" / "v1")
    with stock.producing("stock-stats", 400, per_second=200):
        found = diff(stock.context(), "stock-stats.v3", samples=5)
    cut = evidence(stock)
    live = folded(stock.settings, (topic := result_topic("stock-stats.v1", 1)), cut.live_result.of(topic))
    new = folded(stock.settings, (topic := result_topic("stock-stats.v3", 1)), cut.new_result.of(topic))
    both = live.keys() & new.keys()
    changed = {key for key in both if live[key] != new[key]}
    assert changed
    assert found.only_live == len(live.keys() - new.keys())
    assert found.only_new == len(new.keys() - live.keys())
    assert found.changed == len(changed)
    assert found.identical == len(both) - len(changed)
    columns = {c: sum(live[k][c] != new[k][c] for k in both) for c in ("lowest_ask", "trades", "average_ask")}
    assert found.columns == {name: count for name, count in columns.items() if count}
    assert len(found.samples) == 5
    for sample in found.samples:
        assert sample["live"] != sample["new"]
    # both sides read the same input, so that only the bids are between them
    assert sum(v["trades"] for v in new.values()) > sum(v["trades"] for v in live.values())


@pytest.mark.long
def test_unchanged_code_in_append_mode_differs_in_nothing_while_input_comes(finals: Cluster) -> None:
    with finals.producing("stock-stats", 400, per_second=200):
        assert_nothing_differs(diff(finals.context(), "finals.v2"), at_least=200)
    # a row an hour late is in no window; Spark says so within the batch, and both sides of the diff say it
    watermark_ms = max(p.boundary.watermark_ms or 0 for p in progress_history(finals.settings, "finals.v1"))
    client = producer(finals.settings)
    late = json.dumps({"side": "ask", "price": 1.0})
    client.produce("trades", late, "AAPL", timestamp=watermark_ms - 3_600_000)
    assert client.flush(10) == 0
    for name in ("finals.v1", "finals.v2"):
        finals.settle(name, "trades")
        progress = finals.context().progress(name)
        # a trade is a row for each of the two windows that it falls into
        assert progress is not None and progress.total.late_dropped == 2
    found = diff(finals.context(), "finals.v2")
    assert (found.changed, found.only_live, found.only_new) == (0, 0, 0)
    assert (found.live_late_dropped, found.new_late_dropped) == (2, 2)


def test_an_unchanged_stream_differs_in_nothing_while_input_comes(orders: Cluster) -> None:
    with orders.producing("large-orders", 400, per_second=200):
        assert_nothing_differs(diff(orders.context(), "large-orders.v2"), at_least=200)


def test_what_streams_got_since_is_compared_again_when_consumers_change_over(orders: Cluster) -> None:
    one, other = "large-orders.v1", "large-orders.v2"
    diff(orders.context(), other)
    check(orders.context(), other)
    planned = orders.cli("promote", other, "--max-changed", 0)
    assert "compare what both streams have got since evidence" in planned.out, planned.text
    at = sum(orders.position(one)["orders"].values())
    with orders.producing("large-orders", 800, per_second=200):
        orders.until("v1 has read nothing new", lambda: sum(orders.position(one)["orders"].values()) > at + 200)
        said = orders.cli("promote", other, "--max-changed", 0, "--execute")
    assert said.code == 0, said.text
    [came] = re.findall(r"([\d,]+) records came since the evidence cut; 0\.0% of them differ", said.text)
    assert int(came.replace(",", "")) > 0


def _kill_beyond(cluster: Cluster, name: str, other: str) -> None:
    """Kills the driver of `name` after a batch, and waits until that is noticed, and `other` has read at least as far."""
    before = cluster.position(name)
    cluster.until(f"{name} reads nothing", lambda: cluster.position(name) != before)
    lease = cluster.state.releases[name].lease
    assert lease is not None and lease.holder.pid != os.getpid()
    os.kill(lease.holder.pid, signal.SIGKILL)
    cluster.until(f"the death of {name} goes unnoticed", lambda: is_alive(lease.holder, cluster.settings) is False)
    end = committed(cluster.settings, name).boundary.position
    cluster.until(f"{other} falls behind", lambda: committed(cluster.settings, other).boundary.position.dominates(end))


@pytest.mark.long
def test_a_rollback_from_a_stream_that_died_is_as_exact_as_the_operator_chose(orders: Cluster) -> None:
    one, other = "large-orders.v1", "large-orders.v2"
    diff(orders.context(), other)
    orders.make_live("large-orders", 2, instead=one)
    # a process, to be killed
    orders.stop(other)
    orders.drivers.processes.add(other)
    orders.start(other, batch=LARGE)
    with Follower(orders, "large-orders", "orders") as follower, orders.producing("large-orders", 400, per_second=200):
        for _ in range(5):
            _kill_beyond(orders, other, one)
            # by chance both may have read to the same record: then there is nothing to allow
            if orders.cli("rollback", "large-orders").code == 3:
                break
            orders.start(other, batch=LARGE)
        said = orders.cli("rollback", "large-orders", "--execute")
        assert said.code == 3 and "share no boundary" in said.err and "--allow duplicates or --allow gap" in said.err
        planned = orders.cli("rollback", "large-orders", "--allow", "duplicates")
        [twice] = re.findall(r"results of ([\d,]+) input records twice", " ".join(planned.out.split()))
        said = orders.cli("rollback", "large-orders", "--allow", "duplicates", "--execute")
        assert said.code == 0, said.text
        orders.until(f"{one} is not live", lambda: orders.state.chains["large-orders"][-1].new == one)
        follower.await_switch(len(orders.state.chains["large-orders"]))
    orders.settle(one, "orders")
    with follower:
        follower.await_end(one)
    ledger = check_log("large-orders", orders.settings.bootstrap, follower.log)
    assert (ledger.missing, ledger.wrong, ledger.steps_back) == (0, 0, 0), ledger.as_json()
    # each of those input records makes one result at most
    assert ledger.duplicates <= int(twice.replace(",", ""))
