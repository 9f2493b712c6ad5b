"""Which function applies which kind of stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from orchestration.operations.applying.work import Work
from orchestration.operations.plans.stages.base import Stage

Applied = TypeVar("Applied", bound=Stage)

EFFECTS: dict[type[Stage], Callable[[Work, Any], None]] = {}


def applies(kind: type[Applied]) -> Callable[[Callable[[Work, Applied], None]], Callable[[Work, Applied], None]]:
    """Marks the function that applies the stages of one kind. Called again, the function does only what is left. It
    raises Refused if something is not as planned, SwitchyardError if it fails.
    """

    def mark(effect: Callable[[Work, Applied], None]) -> Callable[[Work, Applied], None]:
        if kind in EFFECTS:
            raise TypeError(f"{EFFECTS[kind].__name__} already applies {kind.__name__}")
        EFFECTS[kind] = effect
        return effect

    return mark
