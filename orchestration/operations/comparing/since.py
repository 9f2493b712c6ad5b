"""What two results have written since they were compared: what a switch goes by, of tables and of streams alike."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from orchestration.operations.comparing.evidence import Comparison
from pipelines.errors import SwitchyardError
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import DeltaSegment, EvidenceRecorded

log = logging.getLogger(__name__)


class Difference(Protocol):
    """What came since, of both results. Its length: how many keys of tables, or records of streams."""

    def __len__(self) -> int: ...

    @property
    def ratio(self) -> float:
        """Share of what came in which the results differ."""


Found = TypeVar("Found", bound=Difference)


class Since(Protocol[Found]):
    """What two results have written since their evidence, for a switch: `Delta` of tables, `Agreement` of streams.

    `counts`: what is counted, in words; `came`: what became of it.
    """

    counts: str
    came: str

    def begin(self) -> None:
        """Has a thread read what there is, while the releases meet; what fails in advance is done when it is needed."""

    def advance(self, go_on: Callable[[], None], few: int) -> None:
        """Reads until no more than `few` records came meanwhile, before the releases are asked to meet. `go_on` is called
        now and then, and raises where it is to end; what fails is raised, too.
        """

    def read_to(self, old_end: ResultPosition, new_end: ResultPosition) -> Found:
        """What came between the evidence cut and the switch cut."""

    def changed_ratio(self, found: Found) -> float:
        """Share of all keys or records in which the results differ at the switch cut."""

    def write(self, found: Found) -> tuple[DeltaSegment, ...]:
        """Writes what consumers must be told of it, if anything. A key is taken from the first segment that has it."""

    def close(self) -> None:
        """Nothing is read or written after this."""


class InAdvance:
    """A thread that reads before it has to be: `wait` for its end, `close` ends it at its next `go_on`."""

    def __init__(self, name: str, failed: str) -> None:
        """`failed`: what is logged where it fails."""
        self._name, self._failed = name, failed
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Has the thread do `work`; whatever that raises, `give_up` forgets it: half of it would be wrong."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                log.warning("%s: %s", self._failed, error)
                give_up()

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until what could be done in advance is done."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Ends it, and waits for that."""
        self._closed.set()
        self.wait()

    def go_on(self) -> None:
        """Raises SwitchyardError once it is closed."""
        if self._closed.is_set():
            raise SwitchyardError("the operation is over")


def changed_ratio(evidence: EvidenceRecorded, *, more: int, differing: int) -> float:
    """Share of all keys or records in which two results differ now: what their diff counted, and what came since.

    `more`: how many there are now beyond those; `differing`: how many more of all differ. Both may be negative.
    """
    found = Comparison.of(evidence)
    total = found.total + more
    return (found.total - found.identical + differing) / total if total else 0.0
