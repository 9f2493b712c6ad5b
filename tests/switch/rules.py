"""What the model of the switch protocol is made of: its laws, and the decisions under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.follow import moves
from pipelines.follow.moves import Move
from pipelines.model import switch as rules
from pipelines.model.entries import Entry
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Flagging

ALIAS = "sums"
PARTITIONS = (0, 1)
WINDOW = 5
DELAY = 2
PATIENCE_MS = 10

Kind = Literal["stream", "table"]
Crash = Literal["planned", "produced"] | None
Ident = tuple[int, int]
Slot = tuple[Any, Any] | None


class Broken(AssertionError):
    """A law of the protocol was broken."""


def law(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def differences(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
    """What turns the fold `old` into `new`, as a diff writes it: the values that differ, None for keys that are gone."""
    return {key: new.get(key) for key in {**old, **new} if old.get(key) != new.get(key)}


@dataclass(frozen=True)
class Rules:
    """The decisions under test; a planted defect replaces one."""

    flags: Callable[..., bool] = rules.flags
    pauses_by: Callable[..., SourcePosition] = rules.pauses_by
    foreseen: Callable[..., Flagging | None] = rules.foreseen
    candidate_move: Callable[..., rules.CandidateMove] = rules.candidate_move
    changes: Callable[..., Any] = differences
    touch_ups: Callable[..., Any] = rules.touch_ups
    holds_ahead: Callable[..., bool] = rules.holds_ahead
    promotion: Callable[..., list[Entry]] = rules.promotion
    abortion: Callable[..., list[Entry]] = rules.abortion
    next_move: Callable[..., Move] = moves.next_move
    earlier_segments: Callable[..., list[int]] = moves.earlier_segments
    # a follower's clock: milliseconds that it waits at a barrier before it goes on by itself
    follower_patience_ms: int | None = None
