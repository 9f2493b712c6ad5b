"""What a driver does about an order to align that nobody can carry out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipelines.engine import alignment as module
from pipelines.engine.alignment import Alignment
from pipelines.engine.outages import is_outage
from pipelines.engine.telemetry import DriverStatus
from pipelines.errors import Unavailable
from pipelines.kafka.progress import ProgressLost
from pipelines.model.entries import AlignOrdered
from tests.operations.builders import Log, staged


def test_an_order_to_meet_a_release_that_nobody_knows_is_over() -> None:
    """Forged, or about a release whose entry this version can't read: the driver would pause for ever."""
    orders = SimpleNamespace(registry=Log(*staged("a.v1", "a.v2")))
    query = SimpleNamespace(sink=SimpleNamespace(last=None))
    alignment = Alignment("a.v1", cast(Any, query), cast(Any, orders), DriverStatus(), lambda: None, may_pass=True)
    known, unknown = (AlignOrdered(id="diff-1", release="a.v1", other=other, switch=None) for other in ("a.v2", "a.v9"))
    assert alignment.is_over(unknown) and not alignment.is_over(known)


def test_the_lost_progress_of_the_other_release_does_not_end_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def tail(_: Any, release: str) -> None:
        raise ProgressLost(release)

    monkeypatch.setattr(module, "ProgressTail", tail)
    orders = SimpleNamespace(registry=SimpleNamespace(settings=None))
    query = SimpleNamespace(active=False, catch_up=lambda: None, sink=SimpleNamespace(has_begun=True))
    alignment = Alignment("a.v1", cast(Any, query), cast(Any, orders), DriverStatus(), lambda: None, may_pass=False)
    with pytest.raises(Unavailable, match=r"progress a\.v2\.progress of a\.v2 is gone") as error:
        alignment.meet(AlignOrdered(id="diff-1", release="a.v1", other="a.v2", switch=None))
    assert is_outage(error.value)
