"""Requests of operations that an older version started, which kept them only as words, in the plan's fact `asked`.

These words are in journals and never change. No plan is written to be read by this any more, so the texts of plans may
change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from orchestration.operations.plans import positions
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.requests import (
    AskedPosition,
    PlanRequest,
    ResetRequest,
    UndoRequest,
    asked_inputs,
    asked_position,
)
from pipelines.errors import BadUsage
from pipelines.model.reset import Target
from pipelines.model.text import visible

log = logging.getLogger(__name__)

_RESET = re.compile(
    r"(?P<to>--.+) --state (?P<state>\S+) --output (?P<output>\S+)(?: --input-topics (?P<inputs>\S+))?(?: --until (?P<until>\S+))?"
    r"(?: --max-records-per-batch (?P<limit>[0-9]{1,19}))?(?P<stays> --stay-stopped)?"
)
_FILE = re.compile(r".+ \((?P<digest>[0-9a-f]{8})\)")
# later than any time: here only the duration that was asked for counts, not when it was asked
_LATE_MS = 2**62
_TARGETS: Mapping[str, Callable[[str], Target]] = {
    "--to-earliest": lambda _: Target(kind="earliest", text=""),
    "--to-latest": lambda _: Target(kind="latest", text=""),
    "--to-current": lambda _: Target(kind="current", text=""),
    "--to-datetime": positions.at_time,
    "--by-duration": lambda text: positions.before_now(text, _LATE_MS),
    "--shift-by": lambda text: Target(kind="shift", text="", number=int(text)),
    "--to-offset": lambda text: Target(kind="offset", text="", number=int(text)),
    "--skip": positions.one_record,
}


def in_words(name: str, plan: Mapping[str, Any]) -> PlanRequest | None:
    """The request of an operation called `name`, from the words of its plan; None if they hold none."""
    facts = plan.get("facts")
    words = facts.get("asked") if isinstance(facts, dict) else None
    if not isinstance(words, str):
        return None
    try:
        if name == Kind.RESET:
            return _reset(words)
        return UndoRequest(reset=words) if name == Kind.UNDO else None
    except (BadUsage, ValueError) as error:
        log.warning("the request of a %s can't be read: %s", visible(name), visible(str(error)))
        return None


def _reset(words: str) -> ResetRequest | None:
    found = _RESET.fullmatch(words)
    if found is None:
        return None
    until, limit = positions.until_of(found["until"]), found["limit"]
    return ResetRequest.model_validate(
        {
            "to": _position(found["to"]),
            "state": found["state"],
            "output": found["output"],
            "inputs": asked_inputs(positions.topics_of(found["inputs"])),
            "until": asked_position(until) if until is not None else None,
            "max_records_per_batch": int(limit) if limit else None,
            "stay_stopped": found["stays"] is not None,
        }
    )


def _position(words: str) -> AskedPosition:
    option, _, text = words.partition(" ")
    if option == "--from-file" and (file := _FILE.fullmatch(text)):
        return AskedPosition(kind="file", digest=file["digest"])
    if option not in _TARGETS:
        raise ValueError(f"no position: {words!r}")
    return asked_position(_TARGETS[option](text))
