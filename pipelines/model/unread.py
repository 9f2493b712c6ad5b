"""Records of another version: what every record says about itself, and what happens to one that can't be read.

Besides its fields a record may have `schema_version` (default 1) and `must_understand` (default false). A record of a
newer schema is read without the fields that this version doesn't know, unless it must be understood.
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
from pipelines.model.names import app_of
from pipelines.model.text import visible

SCHEMA_VERSION, MUST_UNDERSTAND = "schema_version", "must_understand"
Record = TypeVar("Record", bound=Frozen)
# how much is kept of a name or a reason that someone else wrote
_CHARACTERS = 200
_NAMES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An entry of the registry that this version can't read. `kind`, `writer`, `op`: if it says so.

    `must`: a process that can't read it must not continue. `about`: the releases and aliases that it names; none: all.
    """

    offset: int
    reason: str
    kind: str | None = None
    writer: str | None = None
    op: str | None = None
    must: bool = False
    about: tuple[str, ...] = ()

    def concerns(self, name: str) -> bool:
        """Whether it may be about release or alias `name`: it names that, another release of the app, or nothing."""
        return not self.about or app_of(name) in {app_of(each) for each in self.about}

    def __str__(self) -> str:
        by = f" by {self.writer}" if self.writer else ""
        return f"entry {self.offset} of the registry ({self.kind or 'of no known kind'}{by}): {self.reason}"


def not_read(found: Unread) -> str:
    """What to tell a person whose operation `found` holds up."""
    return f"this version of Switchyard can't read {found}; upgrade Switchyard, or run `switchyard registry check`"


def refuse_unread(found: Unread | None, name: str) -> None:
    """Raises Refused for `found`, an entry about `name` that must be understood; None: there is none."""
    if found is not None:
        raise Refused(
            f"{name} is held: this version of Switchyard can't read {found}",
            fix="upgrade Switchyard here; if the entry must not count, run `switchyard registry repair`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What a record says about itself, and its fields."""

    version: int
    must: bool
    fields: Mapping[str, Any] = field(default_factory=dict)


# larger numbers have no exact form in JSON (RFC 8259, section 6), and are too large for a time, a float or a column
MAX_NUMBER = 2**53 - 1
# starts with a digit, which Python's search finds three times as fast as one of several first characters
_MAY_BE_HUGE = re.compile(rb"\d(?:(?<=[:\[,\s-].)\d{15}|[eE]\+?\d{2,}\s*[,\]}])")


def refuse_huge(data: bytes) -> None:
    """Raises ValueError if a JSON text contains a number larger than `MAX_NUMBER`, NaN or Infinity."""

    def whole(text: str) -> int:
        # check the length first: Python refuses to parse integers of more than 4,300 digits
        if len(text.lstrip("-")) > len(str(MAX_NUMBER)) or abs(int(text)) > MAX_NUMBER:
            raise ValueError("it has a number that is too large")
        return int(text)

    def fraction(text: str) -> float:
        if not abs(float(text)) <= MAX_NUMBER:
            raise ValueError("it has a number that is too large")
        return float(text)

    if b"NaN" in data or b"Infinity" in data or _MAY_BE_HUGE.search(data):
        try:
            json.loads(data, parse_int=whole, parse_float=fraction, parse_constant=fraction)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def opened(data: bytes) -> Envelope:
    """The envelope of a record. Raises ValueError if it has none that can be read."""
    try:
        found = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    version, must = found.pop(SCHEMA_VERSION, 1), found.pop(MUST_UNDERSTAND, False)
    if type(version) is not int or type(must) is not bool or version < 1:
        raise ValueError(f"{SCHEMA_VERSION} or {MUST_UNDERSTAND} is malformed")
    return Envelope(version=version, must=must, fields=found)


def read_record(kind: type[Record], data: bytes, version: int = 1) -> Record:
    """A record of `kind`, whose schema this version knows up to `version`.

    Raises ValueError with the reason if it can't be read.
    """
    refuse_huge(data)
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        pass  # it may come from another version
    envelope = opened(data)
    newer = envelope.version > version
    if newer and envelope.must:
        raise ValueError(
            f"it has schema version {envelope.version}, but this version of Switchyard knows only {version}"
        )
    try:
        return kind.model_validate_json(json.dumps(envelope.fields), extra="ignore" if newer else "forbid")
    except ValidationError as error:
        raise ValueError(reason_of(error)) from None


def unread(data: bytes, offset: int, reason: str) -> Unread:
    """What is known about an entry that can't be read. Only one with an envelope can say that it must be understood."""
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
    """Which fields are wrong, without their values. Their names are those of the record, so they are made visible."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return visible("; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in found[:3]))


def _names(fields: Mapping[str, Any]) -> tuple[str, ...]:
    inner = [fields.get(name) for name in ("spec", "switch")]
    places = [fields, *(each for each in inner if isinstance(each, dict))]
    found = [place.get(name) for place in places for name in ("release", "other", "alias", "app", "live", "new", "old")]
    listed = fields.get("releases")
    found += listed if isinstance(listed, list) else []
    return tuple(dict.fromkeys(text for each in found[:_NAMES] if (text := _text(each))))


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return visible(value[:_CHARACTERS])[:_CHARACTERS]
