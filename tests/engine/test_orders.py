"""A driver reads its orders by a driver's rights: it may read snapshots of the registry, but not write them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, cast

import pytest

from pipelines.engine import orders as engine_orders
from pipelines.engine.orders import Orders
from pipelines.model.registry import RegistryState
from pipelines.signals import StopSignal
from tests.operations.builders import Log, context_of, staged

NAME = "a.v1"


class Long(Log):
    """A registry with so many entries that a reader who may would write a snapshot."""

    settings = context_of(Log()).settings
    written = 0

    def state(self, *, snapshots: bool = True) -> RegistryState:
        self.written += snapshots
        return super().state()


def test_a_driver_writes_no_snapshot_of_a_long_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Long(*staged(NAME))
    monkeypatch.setattr(engine_orders, "Registry", lambda _: nullcontext(log))
    orders = Orders(cast(Any, log), NAME, log.state(snapshots=False).releases[NAME].token, settle=False,
                    signalled=StopSignal())  # fmt: skip
    assert orders.release().name == NAME
    orders.admit()
    assert log.written == 0
