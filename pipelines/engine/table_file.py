"""The file of a static table: a JSON line for each row, under a name that is the digest of its bytes.

A row is the key and the value of a record, as they came; a driver parses them as it parses those of a stream. So equal
rows give an equal file, wherever in the topic they were read.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.errors import SwitchyardError
from pipelines.model.parts import lost_table, reading_table_again
from pipelines.objects import fetch, publish
from pipelines.paths import below
from pipelines.private import write_private
from pipelines.settings import Settings

# key and value of a record
Row = tuple[bytes, bytes]
_FOLDER = "tables"


class TableChanged(SwitchyardError):
    """The file of a static table is missing, or is not what was staged. None of it was used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """`digest`: SHA-256 of `data`, the file's bytes, in hexadecimal: what `sha256sum` says."""

    digest: str
    data: bytes = field(repr=False)


def table_path(settings: Settings, digest: str) -> Path:
    """The path of a static table. Raises SwitchyardError if a link leads out of the store."""
    return below(settings.store_dir, _FOLDER, f"{digest}.jsonl")


def as_file(rows: Iterable[Row]) -> TableFile:
    """The file of these rows. The same rows give the same bytes, in whatever order they come."""
    data = b"".join(_line(key, value) for key, value in sorted(rows))
    return TableFile(digest=hashlib.sha256(data).hexdigest(), data=data)


def _line(key: bytes, value: bytes) -> bytes:
    said = {**_said("key", key), **_said("value", value)}
    return json.dumps(said, ensure_ascii=False).encode() + b"\n"


def _said(part: str, data: bytes) -> dict[str, str]:
    try:
        return {part: data.decode()}
    except UnicodeDecodeError:
        return {f"{part}_base64": base64.b64encode(data).decode()}


def rows_in(data: bytes) -> list[Row]:
    """The rows of a file whose digest was checked."""
    lines = map(json.loads, data.splitlines())
    return [(_bytes(line, "key"), _bytes(line, "value")) for line in lines]


def _bytes(line: dict[str, str], part: str) -> bytes:
    return line[part].encode() if part in line else base64.b64decode(line[f"{part}_base64"])


def checked(settings: Settings, digest: str, name: str, of: str) -> TableFile:
    """The file of `digest`, read once. `name`: of the static table; `of`: its release, for messages.

    Raises TableChanged if the file is missing, can't be read, or holds anything else. Raises as `fetch` does.
    """
    path = table_path(settings, digest)
    fetch(settings, path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        lost = lost_table(of, name, path)
        raise TableChanged(lost.what, fix=lost.way) from None
    except OSError as error:
        raise TableChanged(
            f"static table {name} of {of}, {path}, can't be read: {error.strerror}",
            fix="make it readable for the user who runs the driver",
        ) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise TableChanged(
            f"static table {name} of {of}, {path}, is not what was staged: its SHA-256 is not {digest}",
            fix=f"none of it was used; restore the file from a backup, {reading_table_again(of)}",
        )
    return TableFile(digest=digest, data=data)


def store(settings: Settings, table: TableFile) -> Path:
    """Writes the file where drivers of all hosts find it, unless it is there already. Returns its path.

    Raises SwitchyardError if `table` has another digest than it says, and as `publish` does.
    """
    path = table_path(settings, table.digest)
    if hashlib.sha256(table.data).hexdigest() != table.digest:
        raise SwitchyardError(
            f"the table for {path} does not match digest {table.digest}",
            fix="run `switchyard stage` again: it reads the topic again",
        )
    if not path.exists() or path.read_bytes() != table.data:
        write_private(settings.store_dir, path, table.data)
    # each time: an earlier attempt may have ended before this
    publish(settings, path)
    return path
