"""Accepting that a release lacks input, in a step that has no plan."""

from __future__ import annotations

from orchestration.operations.context import Context
from orchestration.operations.looking.history import History
from pipelines.model.registry import HistoryAccepted


def accept_now(context: Context, found: History, *, accept: bool) -> None:
    """`History.require`, of a step that has no plan: what is accepted is recorded, and said."""
    found.require(accept=accept)
    if found.left:
        entry = HistoryAccepted(release=found.name, missing=found.left)
        context.registry.step(lambda _: [entry])
    for fact in found.facts.values():
        context.say(f"{found.name}, missing history: {fact}")
