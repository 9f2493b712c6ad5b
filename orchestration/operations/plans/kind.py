"""The kinds of operations. Decisions go by the kind, never by the texts of a plan."""

from __future__ import annotations

from enum import StrEnum

from pipelines.errors import SwitchyardError


class Kind(StrEnum):
    """The kind of an operation. The journal keeps the value as the operation's name, so a value never changes."""

    STAGE = "stage"
    START = "start"
    STOP = "stop"
    RETIRE = "retire"
    DIFF = "diff"
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    ABORT = "abort"
    RESET = "reset"
    UNDO = "undo"
    CLEAN = "clean"
    REPAIR = "repair"


# the operations that start a generation of a release and end another
RESETS = frozenset({Kind.RESET, Kind.UNDO})


def kind_named(name: str) -> Kind:
    """The kind that the journal keeps as `name`. Raises SwitchyardError for one that this version does not know."""
    try:
        return Kind(name)
    except ValueError:
        raise SwitchyardError(
            f"the journal has an operation {name} that this version does not know",
            fix="resume it with the version that started it, or end it: `switchyard abandon ID`; `switchyard operations` shows its id",
        ) from None
