"""A checkpoint that is older than the result, as one from a backup is: the driver runs the batches in between again.

v2 has the same code and keeps its checkpoint, so a comparison shows what the restored state of v1 is worth.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestration.operations.procedures.diff import diff
from pipelines.engine.checkpoint import Checkpoint, newest_folder
from pipelines.errors import SwitchyardError
from pipelines.kafka.offsets import end_offsets
from pipelines.kafka.progress import progress_history
from pipelines.model.names import result_topic
from tests.e2e.cluster import LARGE, Cluster, assert_nothing_differs

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

APP, OLD, SAME = "stock-stats", "stock-stats.v1", "stock-stats.v2"


@pytest.fixture(scope="module")
def stocks(cluster: Cluster) -> Iterator[Cluster]:
    cluster.load(APP, 6_000, per_second=100)
    cluster.hydrate(APP, 1, batch=2_000)
    cluster.make_live(APP, 1)
    cluster.hydrate(APP, 2, batch=LARGE, correction="the same again")
    yield cluster
    cluster.stop(OLD, SAME)


def _checkpoint(cluster: Cluster) -> Path:
    found = newest_folder(cluster.settings, OLD, 1)
    assert found is not None
    return found


def _back_up(cluster: Cluster, to: Path) -> int:
    """Stops v1 and copies its checkpoint. Returns the number of its last batch."""
    cluster.stop(OLD)
    shutil.copytree(_checkpoint(cluster), to)
    return progress_history(cluster.settings, OLD)[-1].boundary.batch_id


def _restore(cluster: Cluster, copy: Path) -> None:
    folder = _checkpoint(cluster)
    shutil.rmtree(folder, onerror=_unless_gone)
    shutil.copytree(copy, folder)


def _unless_gone(_function: object, _path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    # Spark may still be deleting old files of a query that has ended
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _some_input(cluster: Cluster) -> None:
    """Batches of v1 with input, without, and planned by hand for a comparison."""
    with cluster.producing(APP, 200, per_second=100):
        before = sum(cluster.position(OLD)["trades"].values())
        cluster.until("v1 reads nothing", lambda: sum(cluster.position(OLD)["trades"].values()) > before + 400)
        assert_nothing_differs(diff(cluster.context(), SAME), at_least=1)
    cluster.settle(OLD, "trades")


def test_a_restored_backup_catches_up_and_nothing_is_lost_or_doubled(
    stocks: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = _back_up(stocks, tmp_path / "backup")
    caplog.set_level(logging.INFO, "switchyard.driver")
    # with a lower limit, Spark would split the batches: each must be planned by hand
    for batch, queries in ((2_000, 1), (40, 4)):
        stocks.start(OLD, batch=2_000)
        _some_input(stocks)
        stocks.stop(OLD)
        history = progress_history(stocks.settings, OLD)
        last = history[-1].boundary
        assert last.batch_id >= copied + 4 and last.position == last.previous, "no batch without input"
        before = end_offsets(stocks.settings, [result_topic(OLD, 1)])
        _restore(stocks, tmp_path / "backup")
        caplog.clear()
        stocks.start(OLD, batch=batch)
        caught_up = _checkpoint(stocks) / "commits" / str(last.batch_id)
        stocks.until("v1 does not catch up", caught_up.exists)
        # all of it ran, and nothing was written again
        assert end_offsets(stocks.settings, [result_topic(OLD, 1)]) == before
        again = re.findall(r"checkpoint is at batch (\d+); the batches up to (\d+) run again", caplog.text)
        assert again[0] == (str(copied), str(last.batch_id)) and len(again) >= queries
        stocks.stop(OLD)
    stocks.start(OLD, batch=2_000)
    _some_input(stocks)
    stocks.settle(SAME, "trades")
    assert_nothing_differs(diff(stocks.context(), SAME), at_least=500)


def test_a_driver_that_catches_up_says_so_and_can_be_stopped(stocks: Cluster, tmp_path: Path) -> None:
    copied = _back_up(stocks, tmp_path / "backup")
    stocks.start(OLD, batch=2_000)
    _some_input(stocks)
    stocks.stop(OLD)
    last = progress_history(stocks.settings, OLD)[-1].boundary.batch_id
    _restore(stocks, tmp_path / "backup")
    # one query for each batch, which takes a while
    stocks.start(OLD, batch=40)
    beat = stocks.context().beats()[OLD]
    assert beat.state == "catching up"
    stocks.stop(OLD)
    stopped_at = Checkpoint(_checkpoint(stocks), {}, OLD).last_committed()
    assert stopped_at is not None and copied <= stopped_at < last
    # the next driver goes on from there
    stocks.start(OLD, batch=2_000)
    stocks.settle(SAME, "trades")
    assert_nothing_differs(diff(stocks.context(), SAME), at_least=500)


def test_a_backup_of_another_release_is_refused(stocks: Cluster, tmp_path: Path) -> None:
    _back_up(stocks, tmp_path / "backup")
    other = newest_folder(stocks.settings, SAME, 1)
    assert other is not None
    _restore(stocks, other)
    try:
        with pytest.raises(SwitchyardError, match=r"checkpoint's batch \d+ ends at .*, which progress does not know"):
            stocks.start(OLD, batch=2_000)
    finally:
        _restore(stocks, tmp_path / "backup")
