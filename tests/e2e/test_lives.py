"""The whole life of every app: staged, hydrated, compared, checked, promoted, rolled back, reset and retired.

The second version of each app hydrates in small batches. Its result must not differ from that of the first, which
hydrated in large batches. The process in which it hydrates is killed in the middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, get_args

import pytest

from demo.ledger.reader import read
from orchestration.catalog import find_apps
from orchestration.operations.execute import execute
from orchestration.operations.lifecycle import live_release
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from pipelines.errors import SwitchyardError
from pipelines.kafka.offsets import end_offsets
from pipelines.kafka.progress import newest_progress
from pipelines.model.app import Shows
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.conftest import sweep
from tests.e2e.cluster import LARGE, SMALL, Cluster, assert_nothing_differs
from tests.e2e.harness import at_rest, operator
from tests.shared.host import Host
from tests.shared.session import configured
from tests.shared.threads import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.broker,
    pytest.mark.spark,
    # each test is the lives of several apps
    pytest.mark.timeout(1_800),
]


@dataclass(frozen=True, kw_only=True)
class Life:
    """An app with `records` of history, `per_second` in event time. Both versions have `at_least` keys or records.

    `reads`: the app whose result, or whose topics, it reads; then it has no input of its own. `of_table`: that
    result is a table, which is compacted, so a new version can't read all that the first has read. `only_read`: others
    read it, and it has only one version.
    """

    app: str
    records: int = 0
    per_second: int = 100
    at_least: int
    reads: str | None = None
    of_table: bool = False
    only_read: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def old(self) -> str:
        return f"{self.app}.v1"

    @property
    def new(self) -> str:
        return f"{self.app}.v2"


# an app of each kind that `shows` names
SHAPES = (
    Life(app="large-orders", records=4_000, at_least=80),
    Life(app="shoe-store", records=4_000, per_second=50, at_least=9),
    Life(app="stock-stats", records=4_000, at_least=400),
    Life(app="not-viewing", records=4_000, at_least=100),
    Life(app="notification-counts", reads="not-viewing", at_least=50),
    Life(app="product-counter", records=4_000, at_least=3_000),
    Life(app="sensor-readings", records=4_000, per_second=50, at_least=100),
)
# all others
GROUPS = {
    "trades and logs": (
        Life(app="stock-stats", records=4_000, at_least=400, only_read=True),
        Life(app="daily-gains", reads="stock-stats", at_least=9),
        Life(app="top-stocks", reads="daily-gains", of_table=True, at_least=1),
        Life(app="close-notifications", records=4_000, at_least=1_000),
        Life(app="captcha", records=4_000, at_least=250),
        Life(app="log-router", reads="captcha", at_least=250),
        Life(app="page-stats", records=8_000, at_least=10),
    ),
    "clicks and words": (
        Life(app="clickstream", records=4_000, at_least=400),
        Life(app="latest-value", records=4_000, at_least=100),
        Life(app="browser-windows", records=4_000, at_least=600),
        # half an hour
        Life(app="beaconing", records=8_000, per_second=4, at_least=5),
        Life(app="bookings", records=2_000, per_second=20, at_least=3_000),
        Life(app="word-count", records=3_000, at_least=1_000),
    ),
    "stores and devices": (
        Life(app="count-windows", records=4_000, at_least=3_000),
        Life(app="search-results", records=4_000, at_least=100),
        Life(app="product-views", records=4_000, at_least=100),
        Life(app="store-inventory", records=4_000, at_least=50),
        # three minutes, of which two are over
        Life(app="load-percentile", records=4_000, per_second=20, at_least=50),
        # windows of 10 minutes: a device is judged after 4 hours, not after a day
        Life(
            app="maintenance", records=17_000, per_second=1, at_least=50, settings={"window_s": 600, "advance_s": 300}
        ),
    ),
}


@pytest.fixture
def cluster(running_broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for one test: apps of different groups share topics."""
    # up to nine drivers share this: with short pauses their batches, and their questions for new records, would take all
    # of the CPU time
    found = Cluster(running_broker, tmp_path, lambda: spark, trigger_s=1.0, standby_trigger_s=1.0, heartbeat_s=1.2)
    with configured(spark, {"spark.sql.streaming.pollingDelay": "800ms"}):
        yield found
    found.close()
    sweep(running_broker)


@pytest.fixture
def host(cluster: Cluster, tmp_path: Path) -> Iterator[Host]:
    found = Host(cluster.settings.model_copy(update={"max_records_per_batch": SMALL // 8}), tmp_path)
    yield found
    found.end()


def test_an_app_of_each_kind_lives_to_its_end(cluster: Cluster, host: Host) -> None:
    kinds = {app.name: app.shows for app in find_apps()}
    assert sorted(kinds[life.app] or "" for life in SHAPES) == sorted(get_args(Shows))
    _live(cluster, host, SHAPES)


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_each_app_goes_through_its_whole_life_although_its_driver_is_killed(
    cluster: Cluster, host: Host, group: str
) -> None:
    _live(cluster, host, GROUPS[group])


def _live(cluster: Cluster, host: Host, lives: tuple[Life, ...]) -> None:
    for life in lives:
        _make_live(cluster, life)
    whole = tuple(life for life in lives if not life.only_read)
    for life in whole:
        options = {"settings": life.settings, "accept_missing": life.of_table, "correction": "the same again"}
        cluster.stage(life.app, 2, **options)
    for life in lives:
        cluster.stop(life.old)
    _hydrate_on(cluster, host, whole)
    # who reads another's result comes before the other is reset
    for life in reversed(whole):
        read = _read_by(life, lives)
        with ExitStack() as stack:
            for each in read:
                cluster.start(each.old, batch=SMALL)
                stack.callback(cluster.stop, each.old)
            _replace(cluster, life, of=read[0] if read else life)
            for each in read:
                _settle(cluster, each.old)
            _reset_and_retire(cluster, life)


def _read_by(life: Life, lives: tuple[Life, ...]) -> list[Life]:
    """The apps whose results, or topics, an app reads, and those that they read. The first one comes first."""
    direct = [each for each in lives if each.app == life.reads]
    return [*_read_by(direct[0], lives), *direct] if direct else []


def _make_live(cluster: Cluster, life: Life) -> None:
    if life.records:
        cluster.load(life.app, life.records, life.per_second)
    cluster.hydrate(life.app, 1, batch=LARGE, settings=life.settings)
    # what waits for a watermark comes with the next batch
    _settle(cluster, life.old)
    cluster.make_live(life.app, 1)


def _hydrate_on(cluster: Cluster, host: Host, lives: tuple[Life, ...]) -> None:
    """Hydrates all second versions on one host, which dies in the middle, and on this one, where they keep running."""

    gone = Event()

    def sleep(seconds: float) -> None:
        if gone.is_set():
            raise SwitchyardError("its host is gone")
        patient(seconds)

    def start(life: Life) -> None:
        with operator(cluster.settings, host, sleep=sleep) as context:
            execute(context, plan_start(context, life.new))

    def has_second_batch() -> bool:
        known = [newest_progress(cluster.settings, life.new, kept=cluster.registry.kept) for life in lives]
        return any(progress is not None and progress.boundary.batch_id > 0 for progress in known)

    def all_run() -> bool:
        leases = [cluster.state.releases[life.new].lease for life in lives]
        return all(lease is not None and lease.holder.pid == host.pid for lease in leases)

    with ThreadPoolExecutor(len(lives)) as pool:
        starts = [pool.submit(start, life) for life in lives]
        cluster.until("not every driver has its lease", all_run, timeout_s=300)
        cluster.until("nobody commits a second batch", has_second_batch, timeout_s=300)
        host.kill()
        gone.set()
        unfinished = [life.new for life in lives if not _rests(cluster, life.new)]
        for each in starts:
            assert isinstance(each.exception(), SwitchyardError | None)
    print(f"  killed while they hydrate: {', '.join(unfinished)}")
    assert {life.new for life in lives if life.records} <= set(unfinished), unfinished
    for life in lives:
        cluster.start(life.new, batch=SMALL)
    for life in lives:
        _settle(cluster, life.new)


def _replace(cluster: Cluster, life: Life, of: Life) -> None:
    """Compares the second version with the first while input of app `of` comes, promotes it, and goes back."""
    cluster.start(life.old, batch=SMALL)
    _wait_for_both(cluster, life)
    context = cluster.context()
    before = _ends_of_inputs(cluster, life)
    with cluster.producing(of.app, max(2 * of.per_second, 50), of.per_second):
        cluster.until(f"no input of {life.app} comes", lambda: _ends_of_inputs(cluster, life) != before)
        assert_nothing_differs(diff(context, life.new), at_least=life.at_least)
    assert check(context, life.new).ok
    # on a busy machine, one may still read what came meanwhile
    _wait_for_both(cluster, life)
    cluster.run(plan_promote(context, life.app, version=2))
    cluster.run(plan_rollback(context, life.app))
    live = live_release(cluster.state, life.app)
    assert live is not None and live.name == life.old


def _wait_for_both(cluster: Cluster, life: Life) -> None:
    for name in (life.old, life.new):
        wait_ready(cluster.context(), name, for_s=0.1, timeout_s=240)


def _ends_of_inputs(cluster: Cluster, life: Life) -> object:
    topics = {each.topic for each in cluster.state.releases[life.old].spec.inputs.values()}
    return end_offsets(cluster.settings, topics)


def _reset_and_retire(cluster: Cluster, life: Life) -> None:
    """Resets the second version: its result is that of the first again. Then it ends."""
    context = cluster.context(max_records_per_batch=LARGE)
    cluster.run(plan_reset(context, life.new, Request(target=Target(kind="earliest", text="earliest"), stop=True)))
    for name in (life.old, life.new):
        _settle(cluster, name)
    assert cluster.state.releases[life.new].generation == 2
    for result in cluster.state.releases[life.new].result_topics:
        old, new = (_contents(cluster, name, result) for name in (life.old, life.new))
        assert (old - new, new - old) == (Counter(), Counter()) and old
    cluster.stop(life.old, life.new)
    cluster.run(plan_retire(cluster.context(), life.new))
    assert cluster.state.releases[life.new].state == "retired"


def _contents(cluster: Cluster, name: str, result: str) -> Counter[tuple[bytes | None, bytes | None]]:
    """The last row of each key of a table, or how often each record of a stream is there."""
    release = cluster.state.releases[name]
    records = ((each.key, each.value) for each in read(cluster.settings.bootstrap, release.result_topics[result]))
    if release.spec.outputs[result].table:
        return Counter((key, value) for key, value in dict(records).items() if value is not None)
    return Counter(records)


def _settle(cluster: Cluster, name: str) -> None:
    cluster.until(f"{name} has not come to rest", lambda: _rests(cluster, name), timeout_s=300, poll_s=0.3)


def _rests(cluster: Cluster, name: str) -> bool:
    inputs = {source: each.topic for source, each in cluster.state.releases[name].spec.inputs.items()}
    return at_rest(cluster.settings, name, inputs, cluster.registry)


@pytest.mark.long
def test_by_the_wall_clock_a_release_gives_other_windows_and_its_plan_warns(cluster: Cluster) -> None:
    cluster.load("browser-windows", 2_000, 100)
    cluster.hydrate("browser-windows", 1, batch=SMALL)
    cluster.make_live("browser-windows", 1)
    with cluster.trials():
        wall = plan_stage(cluster.context(), "browser-windows", version=2, settings={"clock": "wall"})
    assert any("may give a different result in a replay" in warning for warning in wall.warnings)
    cluster.run(wall)
    cluster.hydrate("browser-windows", 2, batch=LARGE)
    found = diff(cluster.context(), "browser-windows.v2")
    assert found.identical == 0 and found.only_live > 500 and found.only_new > 0
    cluster.stop("browser-windows.v1", "browser-windows.v2")
