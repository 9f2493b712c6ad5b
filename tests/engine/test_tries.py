"""A batch that fails is tried three times, then its release has failed."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from pipelines.engine import tries as engine_tries
from pipelines.engine.orders import Orders
from pipelines.engine.telemetry import DriverStatus
from pipelines.engine.tries import Tries
from pipelines.errors import SwitchyardError
from pipelines.signals import StopSignal
from tests.engine.test_superseded import NAME, WANTED, taken
from tests.operations.builders import Log, context_of, staged

ERROR = ValueError("a price below zero")


def test_the_third_try_of_a_batch_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    # what it does with changed code is in `test_guard.py`
    monkeypatch.setattr(engine_tries, "checked", lambda *_: None)
    log = Log(*staged(NAME), WANTED, taken(1))
    orders = Orders(cast(Any, log), NAME, 1, settle=False, signalled=StopSignal())
    status = DriverStatus()
    tries = Tries(context_of(log).settings, NAME, orders, status)
    query = MagicMock(describe_range=lambda _: "trades[0] 0-2")
    # each batch has tries of its own
    for batch in (7, 8, 7):
        tries.count(query, batch, ERROR)
        assert status.error == f"batch {batch} (trades[0] 0-2): a price below zero"
    assert log.state().releases[NAME].state == "staged"
    with pytest.raises(SwitchyardError, match="a price below zero") as failed:
        tries.count(query, 7, ERROR)
    assert f"switchyard bisect {NAME}" in failed.value.fix
    assert log.state().releases[NAME].state == "failed"
    assert log.state().releases[NAME].failure == "batch 7 (trades[0] 0-2): a price below zero"


def test_a_batch_without_a_plan_has_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_tries, "checked", lambda *_: None)
    log = Log(*staged(NAME), WANTED, taken(1))
    orders = Orders(cast(Any, log), NAME, 1, settle=False, signalled=StopSignal())
    status = DriverStatus()
    query = MagicMock()
    query.describe_range.side_effect = SwitchyardError("offsets/0 can't be read", fix="restore it")
    Tries(context_of(log).settings, NAME, orders, status).count(query, 0, ERROR)
    assert status.error == "batch 0 (its range is not planned yet): a price below zero"
