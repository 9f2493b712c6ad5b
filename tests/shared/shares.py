"""How the processes of a run share the tests out."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# files whose tests need nothing of each other and take minutes: each test may run in another process
APART = ("tests/e2e/test_kills.py",)
# files whose tests follow each other for each value of the first parameter
BY_PARAMETER = ("tests/reset/test_cells.py",)


def share_of(nodeid: str) -> str:
    """The name of the tests that one process runs one after the other: those of a file, or of a part of it."""
    file, _, test = nodeid.partition("::")
    if file in APART:
        return nodeid
    if file in BY_PARAMETER:
        return f"{file}::{test.partition('[')[2].rstrip(']').partition('-')[0]}"
    return file


class Shares(LoadScopeScheduling):
    """Gives a process its next share only when its last test but one is done: xdist does so two tests earlier, and tests
    that take minutes would wait behind others while a process is idle.
    """

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)
