"""Which tests of a run stay in one process."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# files with independent tests that take minutes: each test is a share of its own
APART = ("tests/e2e/test_kills.py", "tests/e2e/test_lives.py")
# files where all tests with the same first parameter share a story: they form one share
BY_PARAMETER = ("tests/reset/test_cells.py",)
# folders whose tests share a broker of their own: each folder is one share
TOGETHER = ("tests/security/",)


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
