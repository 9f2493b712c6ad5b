"""The end of a query: a thread waits for it in the JVM, because asking again and again takes processor time."""

from __future__ import annotations

import threading
import time
from typing import Any

from pyspark.errors import StreamingQueryException

_ASK_S = 0.1


class Ending:
    """The end of `query`, which has started. `Query.error` says why it ended."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._over = threading.Event()
        self._lost: Exception | None = None
        threading.Thread(target=self._wait, name="ending", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether the query has ended. Raises what a call of the JVM raises, if the JVM does not answer."""
        if not self._over.is_set():
            return False
        if self._lost is not None:
            raise self._lost
        return True

    def wait(self, timeout_s: float) -> None:
        """Waits until the end is known, for `timeout_s` at most."""
        self._over.wait(timeout_s)

    def _wait(self) -> None:
        try:
            self._await_end()
        except Exception as error:
            self._lost = error
        self._over.set()

    def _await_end(self) -> None:
        try:
            self._query.awaitTermination()
        except StreamingQueryException:
            return
        except Exception:
            # of this one call, or of the JVM: then the next one fails, too
            while self._query.isActive:
                time.sleep(_ASK_S)
