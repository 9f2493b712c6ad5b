"""Operations whose broker dies under way, and comes back: they go on, and every result comes once.

`SWITCHYARD_OUTAGES` is the number of stages of each operation before which the broker is killed, `SWITCHYARD_KILLS_SEED`
seeds which they are.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from orchestration.local.broker import EmbeddedBroker
from orchestration.operations import journal
from orchestration.operations.planning.diff import plan_diff
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import StageId
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.wait import wait_ready
from pipelines.settings import Settings
from tests.e2e.cluster import LARGE, Cluster, Follower
from tests.e2e.test_reset import comes_to, goes_on, words
from tests.reset.undoing import EARLIEST
from tests.shared.ports import port_of
from tests.shared.stages import before_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

APP, NAME, OTHER = "word-count", "word-count.v1", "word-count.v2"
SEED = int(os.environ.get("SWITCHYARD_KILLS_SEED", "1"))
KILLS = int(os.environ.get("SWITCHYARD_OUTAGES", "2"))


class Mortal:
    """A broker that is killed before some stages of an operation, and started again at once."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(
            state_dir=folder, broker_port=port_of("broker that dies"), broker_heap_mb=256, target_latency_s=0.0
        )
        self._own = EmbeddedBroker(self.settings)
        self._own.start(180)
        self._random = random.Random(SEED)
        self._starts: threading.Thread | None = None

    def end(self) -> None:
        self._await()
        self._own.stop()

    def run(self, cluster: Cluster, plan: Plan) -> None:
        """Carries out a plan, which must come to its end. The broker dies before `KILLS` of its stages."""
        chosen = self._random.sample(plan.stage_ids, KILLS)
        print(f"{plan.id}: the broker dies before {chosen}")
        left = set(chosen)
        with ExitStack() as stack:
            for stage in chosen:
                stack.enter_context(before_stage(stage, partial(self._die, left, stage)))
            cluster.run(plan)
        closed = cluster.state.known_operations[plan.id].closed
        assert closed is not None and closed.outcome == "done" and not left

    def _die(self, left: set[StageId], stage: StageId) -> None:
        # a stage that is applied again has met its outage
        if stage not in left:
            return
        left.remove(stage)
        self._await()
        pid = self._own.status().pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self._starts = threading.Thread(target=self._own.start, args=(180,))
        self._starts.start()

    def _await(self) -> None:
        if self._starts is not None:
            self._starts.join()


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    found = Mortal(tmp_path_factory.mktemp("mortal"))
    yield found
    found.end()


@pytest.fixture(scope="module")
def live(mortal: Mortal, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(
        mortal.settings, tmp_path_factory.mktemp("cluster"), lambda: spark, trigger_s=0.1, heartbeat_s=0.15
    )
    cluster.load(APP, 3_000, per_second=200)
    for version in (1, 2):
        cluster.hydrate(APP, version, batch=LARGE, correction="compared across outages")
        if version == 1:
            cluster.make_live(APP, 1)
    with pytest.MonkeyPatch.context() as patch:
        # on busy cores a broker may need minutes to start
        patch.setattr(journal, "_OUTAGE_S", 600.0)
        yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def follower(live: Cluster) -> Iterator[Follower]:
    with Follower(live, APP, "counted") as found:
        # one that starts without a broker ends
        comes_to(found, words(live))
        yield found


@pytest.mark.parametrize("output", ["new", "truncate", "tombstone"])
def test_a_reset_goes_on(
    mortal: Mortal, live: Cluster, follower: Follower, output: Literal["new", "truncate", "tombstone"]
) -> None:
    asked = Request(target=EARLIEST, output=output, stop=True, force=True)
    mortal.run(live, plan_reset(live.context(), NAME, asked))
    goes_on(live, follower)


def test_a_switch_and_the_way_back_go_on(mortal: Mortal, live: Cluster, follower: Follower) -> None:
    mortal.run(live, plan_diff(live.context(), OTHER))
    check(live.context(), OTHER)
    wait_ready(live.context(), OTHER, for_s=0.5, timeout_s=120)
    mortal.run(live, plan_promote(live.context(), APP, version=2))
    goes_on(live, follower)
    mortal.run(live, plan_rollback(live.context(), APP))
    goes_on(live, follower)
