"""What every frozen type of the model shares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable, keyword-only value that knows its JSON form."""

    model_config = ConfigDict(frozen=True, extra="forbid")
