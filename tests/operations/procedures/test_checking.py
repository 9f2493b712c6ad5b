"""A result is checked where it is whole, and is what consumers have."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.operations.context import Context
from orchestration.operations.procedures.check import BeingReset, check
from pipelines.errors import Refused
from pipelines.model.entries import Closed, Opened, VerdictRecorded, Via
from pipelines.model.progress import Counts
from tests.operations.builders import NOWHERE, Log, context_of, failed_checks, generation, staged, switched

BEGUN = generation("a.v1", 2).model_copy(update={"op": "reset-1"})


def under(name: str) -> Opened:
    return Opened(id=f"{name}-1", name=name, releases=("a.v1",), deadline_ms=2**60, actor="ada")


@pytest.mark.parametrize("name", ["reset", "undo"])
def test_a_result_is_not_checked_in_the_middle_of_a_reset(name: str) -> None:
    log = Log(*staged("a.v1"), *switched(1, None, "a.v1"), under(name), BEGUN)
    known = list(log.entries)
    with pytest.raises(BeingReset, match=rf"a\.v1 is in the middle of {name}-1") as error:
        check(context_of(log), "a.v1")
    assert "switchyard log" in error.value.fix
    assert log.entries == known


def test_nor_where_one_was_left_before_consumers_went_along() -> None:
    log = Log(
        *staged("a.v1"), *switched(1, None, "a.v1"), under("reset"), BEGUN, Closed(id="reset-1", outcome="abandoned")
    )
    with pytest.raises(Refused, match="reset-1 has not moved the consumers"):
        check(context_of(log), "a.v1")


@pytest.mark.parametrize("via", [None, "dagster"])
def test_the_entry_says_in_which_program_a_result_was_checked(via: Via | None, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(*staged("a.v1"), *switched(1, None, "a.v1"))
    reached: Any = SimpleNamespace(generation=1, result=NOWHERE, total=Counts())
    monkeypatch.setattr(Context, "progress", lambda *_: reached)
    monkeypatch.setattr(Context, "session_soon", lambda *_: lambda: None)
    # Spark and Great Expectations take seconds to import
    monkeypatch.setitem(sys.modules, "expectations.reading", SimpleNamespace(read_rows=lambda *_: None))
    monkeypatch.setitem(sys.modules, "expectations.gate", SimpleNamespace(run_gate=lambda *_: failed_checks().verdict))
    check(context_of(log, via=via), "a.v1")
    [entry] = [e for e in log.entries if isinstance(e, VerdictRecorded)]
    assert entry.via == via
