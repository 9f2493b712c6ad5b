"""Signs of life of a process that carries out an operation."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from pipelines.errors import SwitchyardError
from pipelines.kafka.clock import BrokerClock
from pipelines.model.signs import Sign, write_sign

log = logging.getLogger(__name__)


class SignsOfLife:
    """Sends a sign every `every_s` seconds while it is entered, on a thread of its own. If sending fails, it logs that once
    and keeps trying.

    To enter it, the broker must have taken the first sign: raises Refused without the right, Unavailable without an answer.
    Otherwise another process could take over an operation that is being carried out.
    """

    def __init__(self, clock: BrokerClock, sign: Sign, every_s: float) -> None:
        self._clock = clock
        self._key = write_sign(sign)
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)

    def __enter__(self) -> SignsOfLife:
        self._clock.say(self._key)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        failing = False
        while not self._ended.wait(self._every_s):
            try:
                self._clock.say(self._key)
            except SwitchyardError as error:
                if not failing:
                    log.warning("can't send signs of life: %s", error.what)
                failing = True
            else:
                if failing:
                    log.info("signs of life are sent again")
                failing = False
