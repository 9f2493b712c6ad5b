"""Accepts that a release lacks input, for steps that have no plan."""

from __future__ import annotations

from orchestration.operations.context import Context
from orchestration.operations.looking.history import History
from pipelines.model.entries import HistoryAccepted


def accept_now(context: Context, found: History, *, accept: bool) -> None:
    """`History.require` for a step that has no plan: records and says what is accepted."""
    found.require(accept=accept)
    if found.left:
        entry = HistoryAccepted(release=found.name, missing=found.left)
        context.registry.step(lambda _: [entry])
    for fact in found.facts.values():
        context.say(f"{found.name}, missing history: {fact}")
