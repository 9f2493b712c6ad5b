"""The diff of streams under load: unchanged code makes no difference. tests/e2e/test_switch.py compares tables."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.ledger.check import check_log
from orchestration.operations.procedures.diff import diff
from pipelines.engine.lease import is_alive
from pipelines.kafka.client import producer
from pipelines.kafka.progress import progress_history
from tests.e2e.cluster import LARGE, SMALL, Cluster, Follower, assert_nothing_differs
from tests.e2e.harness import code_without_suite, committed

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

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
def orders(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A stream without state and suite, whose records are known by their source."""
    code = code_without_suite(tmp_path_factory.mktemp("code") / "v1", "large_orders")
    cluster.load("large-orders", 8_000, per_second=200)
    cluster.hydrate("large-orders", 1, batch=SMALL, code_dir=code)
    cluster.make_live("large-orders", 1)
    cluster.hydrate("large-orders", 2, batch=LARGE, code_dir=code, correction="the same again")
    yield cluster
    cluster.stop("large-orders.v1", "large-orders.v2")


def test_unchanged_code_in_append_mode_does_not_differ_while_input_arrives(finals: Cluster) -> None:
    with finals.producing("stock-stats", 100, per_second=200):
        assert_nothing_differs(diff(finals.context(), "finals.v2"), at_least=200)
    # a row that is an hour late is in no window; Spark reports it in the batch, the diff reports it for both releases
    watermark_ms = max(p.boundary.watermark_ms or 0 for p in progress_history(finals.settings, "finals.v1"))
    client = producer(finals.settings)
    late = json.dumps({"side": "ask", "price": 1.0})
    client.produce("trades", late, "AAPL", timestamp=watermark_ms - 3_600_000)
    assert client.flush(10) == 0
    for name in ("finals.v1", "finals.v2"):
        finals.settle(name, "trades")
        progress = finals.context().progress(name)
        # a trade gives a row for each of the two windows that it belongs to
        assert progress is not None and progress.total.late_dropped == 2
    found = diff(finals.context(), "finals.v2")
    assert (found.changed, found.only_live, found.only_new) == (0, 0, 0)
    assert (found.live_late_dropped, found.new_late_dropped) == (2, 2)


def test_an_unchanged_stream_does_not_differ_while_input_arrives(orders: Cluster) -> None:
    with orders.producing("large-orders", 100, per_second=200):
        assert_nothing_differs(diff(orders.context(), "large-orders.v2"), at_least=200)


def test_new_records_of_streams_are_compared_before_consumers_move(orders: Cluster) -> None:
    one, other = "large-orders.v1", "large-orders.v2"
    diff(orders.context(), other)
    planned = orders.cli("promote", other, "--max-changed", 0)
    assert "compare what both streams have written since evidence" in planned.out, planned.text
    at = sum(orders.position(one)["orders"].values())
    with orders.producing("large-orders", 200, per_second=200):
        orders.until("v1 has read nothing new", lambda: sum(orders.position(one)["orders"].values()) > at + 200)
        said = orders.cli("promote", other, "--max-changed", 0, "--execute")
    assert said.code == 0, said.text
    [came] = re.findall(r"([\d,]+) records came since the evidence cut; 0\.0% of them differ", said.text)
    assert int(came.replace(",", "")) > 0


def _kill_beyond(cluster: Cluster, name: str, other: str) -> None:
    """Kills the driver of `name` after a batch. Waits until this is noticed and `other` has read at least as far."""
    before = cluster.position(name)
    cluster.until(f"{name} reads nothing", lambda: cluster.position(name) != before)
    lease = cluster.state.releases[name].lease
    assert lease is not None and lease.holder.pid != os.getpid()
    os.kill(lease.holder.pid, signal.SIGKILL)
    cluster.until(f"the death of {name} goes unnoticed", lambda: is_alive(lease.holder) is False)
    end = committed(cluster.settings, name).boundary.position
    cluster.until(f"{other} falls behind", lambda: committed(cluster.settings, other).boundary.position.dominates(end))


def test_a_rollback_from_a_stream_that_died_is_as_exact_as_the_operator_chose(orders: Cluster) -> None:
    one, other = "large-orders.v1", "large-orders.v2"
    diff(orders.context(), other)
    orders.make_live("large-orders", 2, instead=one)
    # a process, to be killed
    orders.stop(other)
    orders.drivers.processes.add(other)
    orders.start(other, batch=LARGE)
    with Follower(orders, "large-orders", "orders") as follower, orders.producing("large-orders", 100, per_second=200):
        for _ in range(5):
            _kill_beyond(orders, other, one)
            # by chance both may have read to the same record; then nothing needs to be allowed
            if orders.cli("rollback", "large-orders").code == 3:
                break
            orders.start(other, batch=LARGE)
        said = orders.cli("rollback", "large-orders", "--execute")
        assert (
            said.code == 3 and "has no boundary where" in said.err and "--allow duplicates or --allow gap" in said.err
        )
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
    # each of those input records gives at most one result
    assert ledger.duplicates <= int(twice.replace(",", ""))
