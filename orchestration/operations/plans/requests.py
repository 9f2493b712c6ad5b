"""What operations were asked for, as data. With it, the same command finds the operation that it started, and resumes
it.

The journal keeps the request beside the plan. The texts of a plan are only for people.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from orchestration.operations.plans.positions import digest_of
from pipelines.model.base import Frozen
from pipelines.model.names import OperationId
from pipelines.model.reset import Output, State, Target
from pipelines.model.text import visible
from pipelines.model.unread import reason_of

log = logging.getLogger(__name__)


class AskedPosition(Frozen):
    """A position as it was asked for, before it was looked up. Two are equal if they ask for the same position.

    `kind`: as in `Target`; `ago` is a time before now. `number`: for `offset` and `shift`. `at_ms`: for `datetime`,
    milliseconds since the epoch. `ago_ms`: for `ago`, milliseconds. `digest`: for `file`, of its content. `record`: for
    `skip`, as topic, partition and offset.
    """

    kind: Literal["earliest", "latest", "current", "datetime", "ago", "shift", "offset", "file", "skip"]
    number: int = 0
    at_ms: int = 0
    ago_ms: int = 0
    digest: str = ""
    record: tuple[str, int, int] | None = None


class ResetRequest(Frozen):
    """A reset as it was asked for. `inputs`: topic -> partitions that move (None: all of them); empty: every input.

    Options that only say how to carry it out are not part of it: whether to stop the release first, how long to wait.
    """

    kind: Literal["reset"] = "reset"
    to: AskedPosition
    state: State
    output: Output
    inputs: dict[str, tuple[int, ...] | None] = Field(default_factory=dict)
    until: AskedPosition | None = None
    max_records_per_batch: int | None = None
    stay_stopped: bool = False


class UndoRequest(Frozen):
    """An undo as it was asked for. `reset`: the operation that it takes back."""

    kind: Literal["undo"] = "undo"
    reset: OperationId


PlanRequest = ResetRequest | UndoRequest
_ADAPTER: TypeAdapter[PlanRequest] = TypeAdapter(Annotated[PlanRequest, Field(discriminator="kind")])


def asked_position(target: Target) -> AskedPosition:
    """What `target` asks for."""
    match target.kind:
        case "datetime" if target.ago_ms:
            return AskedPosition(kind="ago", ago_ms=target.ago_ms)
        case "datetime":
            return AskedPosition(kind="datetime", at_ms=target.at_ms)
        case "file":
            return AskedPosition(kind="file", digest=digest_of(target.offsets or {}))
        case "skip":
            [record] = [(t, p, o) for t, offsets in (target.offsets or {}).items() for p, o in offsets.items()]
            return AskedPosition(kind="skip", record=record)
        case "shift" | "offset":
            return AskedPosition(kind=target.kind, number=target.number)
        case "earliest" | "latest" | "current":
            return AskedPosition(kind=target.kind)


def asked_inputs(inputs: Mapping[str, Sequence[int] | None]) -> dict[str, tuple[int, ...] | None]:
    """The inputs of a reset, with their partitions in order, however they were given."""
    return {topic: tuple(sorted(partitions)) if partitions else None for topic, partitions in inputs.items()}


def to_journal(request: PlanRequest) -> dict[str, Any]:
    """A request as the journal keeps it. Leaves out defaults, so that an older version can read it if it uses nothing
    new.
    """
    return {"kind": request.kind, **request.model_dump(mode="json", exclude_defaults=True)}


def from_journal(name: str, data: object) -> PlanRequest | None:
    """The request of an operation called `name` that `to_journal` wrote.

    None for one that this version can't read. Then no command counts as the same request, and only `resume` with its id
    resumes it.
    """
    try:
        found = _ADAPTER.validate_python(data)
    except ValidationError as error:
        log.warning("the request of a %s can't be read: %s", visible(name), visible(reason_of(error)))
        return None
    return found if found.kind == name else None
