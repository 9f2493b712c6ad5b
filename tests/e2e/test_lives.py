"""The whole life of every app: staged, hydrated, compared, checked, promoted, rolled back, reset and retired.

The second version of each app hydrates in small batches. Its result must not differ from that of the first, which
hydrated in large batches. The process in which it hydrates is killed in the middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, get_args

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
from tests.apps.lives import LifeOf, lives_of
from tests.conftest import sweep
from tests.e2e.cluster import DISORDER, LARGE, SMALL, Cluster, assert_nothing_differs
from tests.e2e.harness import at_rest, lag_records, operator
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


# so few records in a batch that each app has a second batch: the only input of some is a result of a few records
FEW = 4
# an app of each kind that `shows` names
SHAPES = (
    "large-orders",
    "shoe-store",
    "stock-stats",
    "not-viewing",
    "notification-counts",
    "product-counter",
    "sensor-readings",
)
# apps that share a broker and a session, which saves time: of more than these, a machine would be too busy
SHARED = {
    "trades and logs": ("daily-gains", "top-stocks", "close-notifications", "captcha", "log-router", "page-stats"),
    "clicks and words": ("clickstream", "latest-value", "browser-windows", "beaconing", "bookings", "word-count"),
    "stores and devices": (
        "count-windows",
        "search-results",
        "product-views",
        "store-inventory",
        "load-percentile",
        "maintenance",
    ),
}
# each other app is by itself
ALONE = sorted({app.name for app in find_apps()} - {*SHAPES, *chain(*SHARED.values())})
GROUPS = SHARED | {name: (name,) for name in ALONE}


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
    found = Host(cluster.settings.model_copy(update={"max_records_per_batch": FEW}), tmp_path)
    yield found
    found.end()


def test_an_app_of_each_kind_lives_to_its_end(cluster: Cluster, host: Host) -> None:
    lives = lives_of(SHAPES)
    assert sorted(life.app.shows or "" for life in lives) == sorted(get_args(Shows))
    _live(cluster, host, lives)


@pytest.mark.long
@pytest.mark.parametrize("group", GROUPS)
def test_each_app_goes_through_its_whole_life_although_its_driver_is_killed(
    cluster: Cluster, host: Host, group: str
) -> None:
    _live(cluster, host, lives_of(GROUPS[group]))


def _live(cluster: Cluster, host: Host, lives: tuple[LifeOf, ...]) -> None:
    for life in lives:
        _make_live(cluster, life)
    whole = tuple(life for life in lives if not life.only_read)
    for life in whole:
        options = {"settings": dict(life.settings), "accept_missing": life.of_table, "correction": "the same again"}
        cluster.stage(life.app.name, 2, **options)
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


def _read_by(life: LifeOf, lives: tuple[LifeOf, ...]) -> list[LifeOf]:
    """The apps whose results, or topics, an app reads, and those that they read. The first one comes first."""
    direct = [each for each in lives if each.app.name == life.reads]
    return [*_read_by(direct[0], lives), *direct] if direct else []


def _make_live(cluster: Cluster, life: LifeOf) -> None:
    if life.records:
        cluster.load_from(life.sources(DISORDER), life.records)
    cluster.hydrate(life.app.name, 1, batch=LARGE, settings=dict(life.settings))
    # what waits for a watermark comes with the next batch
    _settle(cluster, life.old)
    cluster.make_live(life.app.name, 1)


def _hydrate_on(cluster: Cluster, host: Host, lives: tuple[LifeOf, ...]) -> None:
    """Hydrates all second versions on one host, which dies in the middle, and on this one, where they keep running."""

    gone = Event()

    def sleep(seconds: float) -> None:
        if gone.is_set():
            raise SwitchyardError("its host is gone")
        patient(seconds)

    def start(life: LifeOf) -> None:
        with operator(cluster.settings, host, sleep=sleep) as context:
            execute(context, plan_start(context, life.new))

    def all_held() -> bool:
        for each in starts:
            if each.done():
                # raises if a driver could not start: it would be waited for in vain
                each.result()
        return all(host.holds(life.new) for life in lives)

    with ThreadPoolExecutor(len(lives)) as pool:
        starts = [pool.submit(start, life) for life in lives]
        cluster.until("not every driver writes its second batch", all_held, timeout_s=600)
        killed = host.pid
        host.kill()
        gone.set()
        for each in starts:
            assert isinstance(each.exception(), SwitchyardError | None)
    for life in lives:
        _assert_hydrated_on(cluster, life, killed)
    for life in lives:
        cluster.start(life.new, batch=SMALL)
    for life in lives:
        _settle(cluster, life.new)


def _assert_hydrated_on(cluster: Cluster, life: LifeOf, pid: int) -> None:
    """Asserts that the second version was in the middle of its history when process `pid`, which ran it, ended."""
    release = cluster.state.releases[life.new]
    assert release.lease is not None and release.lease.holder.pid == pid and not release.lease_ended, release
    known = newest_progress(cluster.settings, life.new, kept=cluster.registry.kept)
    assert known is not None and known.boundary.batch_id == 0, known
    inputs = {source: each.topic for source, each in release.spec.inputs.items()}
    assert lag_records(cluster.settings, life.new, inputs) > 0, f"{life.new} had read all of its input"


def _replace(cluster: Cluster, life: LifeOf, of: LifeOf) -> None:
    """Compares the second version with the first while input of app `of` comes, promotes it, and goes back."""
    cluster.start(life.old, batch=SMALL)
    _wait_for_both(cluster, life)
    context = cluster.context()
    before = _ends_of_inputs(cluster, life)
    with cluster.producing_from(of.sources(DISORDER), max(2 * of.per_second, 50)):
        cluster.until(f"no input of {life.app.name} comes", lambda: _ends_of_inputs(cluster, life) != before)
        assert_nothing_differs(diff(context, life.new), at_least=life.at_least)
    assert check(context, life.new).ok
    # on a busy machine, one may still read what came meanwhile
    _wait_for_both(cluster, life)
    cluster.run(plan_promote(context, life.app.name, version=2))
    cluster.run(plan_rollback(context, life.app.name))
    live = live_release(cluster.state, life.app.name)
    assert live is not None and live.name == life.old


def _wait_for_both(cluster: Cluster, life: LifeOf) -> None:
    for name in (life.old, life.new):
        wait_ready(cluster.context(), name, for_s=0.1, timeout_s=240)


def _ends_of_inputs(cluster: Cluster, life: LifeOf) -> object:
    topics = {each.topic for each in cluster.state.releases[life.old].spec.inputs.values()}
    return end_offsets(cluster.settings, topics)


def _reset_and_retire(cluster: Cluster, life: LifeOf) -> None:
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
