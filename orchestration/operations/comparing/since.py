"""What two results have written since their diff, which a switch needs: the common part of tables and streams."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from orchestration.operations.comparing.evidence import Comparison
from pipelines.errors import SwitchyardError
from pipelines.model.entries import DeltaSegment, EvidenceRecorded
from pipelines.model.positions import ResultPosition

log = logging.getLogger(__name__)


class Difference(Protocol):
    """What both results have written since. Its length: the number of keys (tables) or records (streams)."""

    def __len__(self) -> int: ...

    @property
    def ratio(self) -> float:
        """Share of these in which the results differ."""


Found = TypeVar("Found", bound=Difference)


class Since(Protocol[Found]):
    """What two results have written since their evidence, for a switch: `Delta` for tables, `Agreement` for streams.

    `counts`: what is counted, in words; `came`: the verb for it.
    """

    counts: str
    came: str

    def begin(self) -> None:
        """Starts a thread that reads what there is while the releases meet. If that fails, the work is done later, when
        it is needed.
        """

    def advance(self, raise_if_closed: Callable[[], None], few: int) -> None:
        """Reads until no more than `few` records arrive while it reads, before the releases are asked to meet. Calls
        `raise_if_closed` now and then, which raises to end it. Raises what fails.
        """

    def read_to(self, old_end: ResultPosition, new_end: ResultPosition) -> Found:
        """What both wrote between the evidence cut and the switch cut."""

    def changed_ratio(self, found: Found) -> float:
        """Share of all keys or records in which the results differ at the switch cut."""

    def write(self, found: Found) -> tuple[DeltaSegment, ...]:
        """Writes the part of it that consumers must get, if there is one. A consumer takes a key from the first segment
        that has it.
        """

    def close(self) -> None:
        """Ends the reading and writing."""


class InAdvance:
    """A thread that works in advance. `wait` waits for its end; `close` ends it at its next `raise_if_closed`."""

    def __init__(self, name: str, failed: str) -> None:
        """`failed`: what is logged if it fails."""
        self._name, self._failed = name, failed
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Starts the thread on `work`. If that raises, `give_up` forgets its work, because half of it would be wrong."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                log.warning("%s: %s", self._failed, error)
                give_up()

        self._thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits until the work in advance is done."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Ends the thread, and waits until it has ended."""
        self._closed.set()
        self.wait()

    def raise_if_closed(self) -> None:
        """Raises SwitchyardError once it is closed."""
        if self._closed.is_set():
            raise SwitchyardError("the operation is over")


def changed_ratio(evidence: EvidenceRecorded, *, more: int, differing: int) -> float:
    """Share of all keys or records in which two results differ now, from what their diff counted and what came since.

    `more`: how many more there are now; `differing`: how many more differ now. Both may be negative.
    """
    found = Comparison.of(evidence)
    total = found.total + more
    return (found.total - found.identical + differing) / total if total else 0.0
