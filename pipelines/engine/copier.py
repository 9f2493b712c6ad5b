"""Copies the checkpoint of a running release to the bucket of the store, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pipelines.engine.copies import Copies
from pipelines.engine.packs import Copy

log = logging.getLogger("switchyard.driver")

_FIRST_S = 1.0


class Copier:
    """Copies the checkpoint `folder` of a driver with `token` every `every_s` seconds, if it has a new batch.

    `batch`: the last batch in Kafka, once this driver has run one; None before. Only a checkpoint from which a batch has run is
    copied: a damaged one must not take the place of the last good copy. An outage of the bucket stops nothing: the next
    driver has more batches to run again.
    """

    def __init__(
        self,
        copies: Copies,
        folder: Path,
        token: int,
        *,
        every_s: float,
        batch: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._copies = copies
        self._folder = folder
        self._token = token
        self._every_s = every_s
        self._batch = batch
        self._clock = clock
        self._last: Copy | None = None
        # of the first of the attempts that have failed since the last copy
        self._failed_at: float | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def copied(self) -> int | None:
        """The last batch of the newest copy; None: there is none."""
        return None if self._last is None else self._last.batch_id

    @property
    def fails_s(self) -> float | None:
        """For how many seconds copies have failed; None: the last one succeeded, or none was tried."""
        failed_at = self._failed_at
        return None if failed_at is None else self._clock() - failed_at

    def close(self, *, copy: bool) -> None:
        """Ends the thread. `copy`: writes the last copy, so that the next driver has nothing to run again; the query has ended."""
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()
        if copy and self._batch() is not None:
            self._try()

    def _run(self) -> None:
        self._begin()
        # soon: without a copy, no other host can take over
        while not self._ends.wait(min(self._every_s, _FIRST_S) if self._last is None else self._every_s):
            if self._batch() not in (None, self.copied):
                self._try()

    def _begin(self) -> None:
        try:
            self._copies.sweep()
            self._last = self._copies.read()
            self._copies.delete_orphans(self._token)
        except Exception as error:
            self._warn(error)

    def _try(self) -> None:
        try:
            self._last = self._copies.write(self._folder, self._token, self._last)
            self._failed_at = None
        except Exception as error:
            if self._failed_at is None:
                self._failed_at = self._clock()
            # whatever it is, the release runs on
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        log.warning("%s could not be copied to the bucket; it is tried again: %s", self._folder, error)
