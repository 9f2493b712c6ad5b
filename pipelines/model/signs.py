"""What a process says each second that carries out an operation, so that no other one takes the operation over."""

from __future__ import annotations

import json

from pydantic import ValidationError

from pipelines.model.base import Frozen
from pipelines.model.entries import Holder
from pipelines.model.names import OperationId


class Sign(Frozen):
    """A sign of life: `holder` carries out operation `op`."""

    op: OperationId
    holder: Holder


def write_sign(sign: Sign) -> bytes:
    """The key of a sign's record among the heartbeats. The record has no value, so earlier builds pass over it."""
    return json.dumps({"sign": sign.model_dump()}).encode()


def read_sign(key: bytes | None) -> Sign | None:
    """The sign of a record without a value; None: it is something else, such as what asks for the broker's time."""
    if key is None or not key.startswith(b'{"sign": '):
        return None
    try:
        return Sign.model_validate(json.loads(key)["sign"], extra="ignore")
    except (ValidationError, ValueError, RecursionError):
        return None
