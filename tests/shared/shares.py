"""Which tests of a run stay in one process, and in which order they start."""

from __future__ import annotations

from collections.abc import Sequence

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# files with independent tests that take minutes: each test is a share of its own
APART = ("tests/cluster/test_operators.py", "tests/e2e/test_kills.py", "tests/e2e/test_lives.py")
# files where all tests with the same first parameter share a story: they form one share
BY_PARAMETER = ("tests/reset/test_cells.py",)
# folders whose tests share a broker of their own: each folder is one share
TOGETHER = ("tests/security/",)

# the files that take long, the longest first, so that the processes which share them end together
LONGEST = (
    "e2e/test_lives.py",
    "e2e/test_brokers.py",
    "e2e/test_kills.py",
    "e2e/test_definitions.py",
    "defs/test_dagster_dev.py",
    "e2e/test_bucket.py",
    "e2e/test_outages.py",
    "e2e/test_older_checkpoint.py",
    "reset/test_cells.py",
    # next to a file with few processes: its commands give up on a broker that gets no CPU time
    "e2e/test_demo.py",
    "e2e/test_benchmarks.py",
    "e2e/test_wheel.py",
    "e2e/test_as_of.py",
    "e2e/test_peers.py",
    "e2e/test_runbook.py",
    "reset/test_undo.py",
    "reset/test_interrupted.py",
    "e2e/test_switch.py",
    "e2e/test_driver.py",
    "engine/test_operators.py",
    "e2e/test_supervise.py",
    "e2e/test_tutorial.py",
    "security/test_roles.py",
    "e2e/test_diff.py",
    "e2e/test_bad_input.py",
    "e2e/test_reset.py",
    "reset/test_lost.py",
    "reset/test_versions.py",
    "reset/test_kinds.py",
    "defs/test_reset_jobs.py",
    "operations/comparing/test_delta.py",
    "engine/test_transactions.py",
    "engine/test_history.py",
    "apps/test_product_counter.py",
    "engine/test_meeting.py",
    "follow/test_consumer.py",
    "local/test_broker.py",
    # of `make test-cluster`
    "cluster/test_operators.py",
    "cluster/test_cluster.py",
    "cluster/test_dagster.py",
    "cluster/test_yarn.py",
)


def in_order(files: Sequence[str]) -> list[int]:
    """The order in which tests start: indices into `files`, which has the file of each test, relative to this package."""
    places = [LONGEST.index(file) if file in LONGEST else len(LONGEST) for file in files]
    return sorted(range(len(files)), key=places.__getitem__)


def share_of(nodeid: str) -> str:
    """The name of a test's share. One process runs all tests of a share, one after the other."""
    file, _, test = nodeid.partition("::")
    if file in APART:
        return nodeid
    if file in BY_PARAMETER:
        return f"{file}::{test.partition('[')[2].rstrip(']').partition('-')[0]}"
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


class Shares(LoadScopeScheduling):
    """Gives a process its next share when it starts the last test of the previous one.

    xdist does so one test earlier. Then a share could wait for tests that take minutes while another process is idle.
    """

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
