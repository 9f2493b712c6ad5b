"""Records that another version wrote: what every record says of itself, and what becomes of one that can't be read.

Beside its fields a record may say `schema_version` (1 where it doesn't) and `must_understand` (false). A record of a newer
schema is read without the fields that this version doesn't know, unless it says that it must be understood.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from pipelines.errors import Refused
from pipelines.model.base import Frozen
from pipelines.model.names import split_release
from pipelines.model.text import visible

SCHEMA_VERSION, MUST_UNDERSTAND = "schema_version", "must_understand"
Record = TypeVar("Record", bound=Frozen)
# what is kept of a name or a reason that someone else wrote
_CHARACTERS = 200
_NAMES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An entry of the registry that this version can't read. `kind`, `writer`, `op`: as far as it says so.

    `must`: it says that whoever can't read it may not go on. `about`: the releases and aliases that it names; none: all.
    """

    offset: int
    reason: str
    kind: str | None = None
    writer: str | None = None
    op: str | None = None
    must: bool = False
    about: tuple[str, ...] = ()

    def concerns(self, name: str) -> bool:
        """Whether it may be about release or alias `name`: it names that, another release of the app, or nothing at all."""
        return not self.about or _app(name) in {_app(each) for each in self.about}

    def __str__(self) -> str:
        by = f" by {self.writer}" if self.writer else ""
        return f"entry {self.offset} of the registry ({self.kind or 'of no known kind'}{by}): {self.reason}"


def not_read(found: Unread) -> str:
    """What is said of `found` where something is held by it."""
    return f"this version of Switchyard can't read {found}; upgrade it, or `switchyard registry check`"


def refuse_unread(found: Unread | None, name: str) -> None:
    """Raises Refused for `found`, an entry about `name` that must be understood; None: there is none."""
    if found is not None:
        raise Refused(
            f"{name} is held: this version of Switchyard can't read {found}",
            fix="upgrade Switchyard here; if that entry is not to count, `switchyard registry repair`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a record says of itself, and its fields."""

    version: int
    must: bool
    fields: Mapping[str, Any] = field(default_factory=dict)


# numbers beyond it have no exact form in JSON (RFC 8259, section 6), and fit into no time, float or column
MAX_NUMBER = 2**53 - 1
_MAY_BE_HUGE = re.compile(rb"[:\[,\s-]\d{16}|\d[eE]\+?\d{2,}\s*[,\]}]|NaN|Infinity")


def refuse_huge(data: bytes) -> None:
    """Raises ValueError for a number in a JSON text that is larger than `MAX_NUMBER`, or is none."""

    def whole(text: str) -> int:
        # not by its value: Python reads no integer of more than 4,300 digits
        if len(text.lstrip("-")) > len(str(MAX_NUMBER)) or abs(int(text)) > MAX_NUMBER:
            raise ValueError("it has a number that is too large")
        return int(text)

    def fraction(text: str) -> float:
        if not abs(float(text)) <= MAX_NUMBER:
            raise ValueError("it has a number that is too large")
        return float(text)

    if _MAY_BE_HUGE.search(data):
        try:
            json.loads(data, parse_int=whole, parse_float=fraction, parse_constant=fraction)
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error


def opened(data: bytes) -> Envelope:
    """The envelope of a record. Raises ValueError where there is none that can be read."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    version, must = found.pop(SCHEMA_VERSION, 1), found.pop(MUST_UNDERSTAND, False)
    if type(version) is not int or type(must) is not bool or version < 1:
        raise ValueError(f"{SCHEMA_VERSION} or {MUST_UNDERSTAND} is malformed")
    return Envelope(version=version, must=must, fields=found)


def read_record(kind: type[Record], data: bytes, version: int = 1) -> Record:
    """A record of `kind`, of which this version knows the schema up to `version`.

    Raises ValueError, saying why, if it can't be read.
    """
    refuse_huge(data)
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        pass  # it may be of another version
    envelope = opened(data)
    newer = envelope.version > version
    if newer and envelope.must:
        raise ValueError(f"it is of schema version {envelope.version}, this version of Switchyard knows {version}")
    try:
        return kind.model_validate_json(json.dumps(envelope.fields), extra="ignore" if newer else "forbid")
    except ValidationError as error:
        raise ValueError(reason_of(error)) from None


def unread(data: bytes, offset: int, reason: str) -> Unread:
    """What is known of an entry that can't be read; only one with an envelope can say that it must be understood."""
    try:
        envelope = opened(data)
    except ValueError as error:
        return Unread(offset=offset, reason=_text(str(error)) or "it is malformed")
    fields = envelope.fields
    return Unread(
        offset=offset,
        reason=_text(reason) or "it is malformed",
        kind=_text(fields.get("kind")),
        writer=_text(fields.get("actor")),
        op=_text(fields.get("op")) or _text(fields.get("id")),
        must=envelope.must,
        about=_names(fields),
    )


def reason_of(error: ValidationError) -> str:
    """Which fields are wrong, without what is in them."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in found[:3])


def _names(fields: Mapping[str, Any]) -> tuple[str, ...]:
    inner = [fields.get(name) for name in ("spec", "switch")]
    places = [fields, *(each for each in inner if isinstance(each, dict))]
    found = [place.get(name) for place in places for name in ("release", "other", "alias", "app", "live", "new", "old")]
    listed = fields.get("releases")
    found += listed if isinstance(listed, list) else []
    return tuple(dict.fromkeys(text for each in found[:_NAMES] if (text := _text(each))))


def _app(name: str) -> str:
    found = split_release(name)
    return found[0] if found else name


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return visible(value[:_CHARACTERS])[:_CHARACTERS]
