"""Batches that fail: how often a batch is tried before its release fails."""

from __future__ import annotations

import logging

from pipelines.engine.causes import cause
from pipelines.engine.code import code_path
from pipelines.engine.guard import checked
from pipelines.engine.orders import Orders
from pipelines.engine.query import Query
from pipelines.engine.telemetry import DriverStatus
from pipelines.errors import SwitchyardError
from pipelines.model.entries import StateSet
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

# a record that makes a batch fail makes it fail again: more tries only delay the message
_TRIES = 3


class Tries:
    """Counts the tries of release `name`'s batches, and fails the release with the last one."""

    def __init__(self, settings: Settings, name: str, orders: Orders, status: DriverStatus) -> None:
        self._settings = settings
        self._name = name
        self._orders = orders
        self._status = status
        # batch -> how often it has failed
        self._failed: dict[int, int] = {}

    def count(self, query: Query, batch: int, error: BaseException) -> None:
        """Batch `batch` has failed with `error`, which is no outage. Returns if it is to be tried again.

        Raises CodeChanged if the release's code was changed. Raises SwitchyardError after the last try, once the registry
        says that the release has failed.
        """
        # Python workers refuse changed code; then neither the batch nor the app is at fault
        spec = self._orders.registry.known.releases[self._name].spec
        checked(code_path(self._settings, spec.code_digest), spec.code_digest, self._name)
        self._failed[batch] = self._failed.get(batch, 0) + 1
        reason = f"batch {batch} ({_range(query, batch)}): {cause(error)}"
        self._status.error = reason
        log.error("%s, try %d of %d: %s", self._name, self._failed[batch], _TRIES, reason)
        if self._failed[batch] >= _TRIES:
            self._orders.enter(StateSet(release=self._name, state="failed"), reason)
            raise SwitchyardError(
                reason,
                fix=f"`switchyard bisect {self._name}` tells whether a record makes it fail, and which one: skip it, or fix the app and stage a new version",
            )


def _range(query: Query, batch: int) -> str:
    try:
        return query.describe_range(batch)
    except SwitchyardError:
        return "its range is not planned yet"
