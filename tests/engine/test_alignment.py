"""What a driver does about an order to align that nobody can carry out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from pipelines.engine.alignment import Alignment
from pipelines.engine.telemetry import DriverStatus
from pipelines.model.entries import AlignOrdered
from tests.operations.builders import Log, staged


def test_an_order_to_meet_a_release_that_nobody_knows_is_over() -> None:
    """Forged, or about a release whose entry this version can't read: the driver would pause for ever."""
    orders = SimpleNamespace(registry=Log(*staged("a.v1", "a.v2")))
    query = SimpleNamespace(sink=SimpleNamespace(last=None))
    alignment = Alignment("a.v1", cast(Any, query), cast(Any, orders), DriverStatus(), lambda: None, may_pass=True)
    known, unknown = (AlignOrdered(id="diff-1", release="a.v1", other=other, switch=None) for other in ("a.v2", "a.v9"))
    assert alignment.is_over(unknown) and not alignment.is_over(known)
