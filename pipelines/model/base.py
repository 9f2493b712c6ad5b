"""The base of every frozen type of the model."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable, keyword-only value with a JSON form."""

    model_config = ConfigDict(frozen=True, extra="forbid")
