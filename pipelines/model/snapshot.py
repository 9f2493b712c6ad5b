"""A registry's state as of an offset, as bytes: it limits how long a reader of the registry takes to start."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pipelines.model.registry import RegistryState

# a part fits into a record of Kafka's default maximum size
_PART_BYTES = 500_000
# 10,000 releases that are only staged take 13 MB (`dump_json` of their state)
_MOST_BYTES = 64 * 1024 * 1024
# what reading a record may raise that is no snapshot. OverflowError: Python reads `Infinity` as JSON, but not as an integer
_UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, RecursionError, MemoryError, zlib.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state after the entry at `offset`. `digest`: a digest of that entry's bytes, which shows which log the state
    is from.
    """

    state: RegistryState
    offset: int
    digest: str


def digest_of(value: bytes) -> str:
    """What a snapshot keeps of the last entry that it covers."""
    return hashlib.sha256(value).hexdigest()


@cache
def fold_version() -> str:
    """The version of the code that folds entries: a hash of this package's sources. Any change gives another version.

    Someone would once forget to raise a number, and a state folded by other rules would be used.
    """
    found = hashlib.sha256()
    for path in rules():
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def rules() -> list[Path]:
    """The files that define what entries fold to."""
    return sorted(Path(__file__).parent.glob("*.py"))


@cache
def _adapter() -> TypeAdapter[RegistryState]:
    return TypeAdapter(RegistryState)


def to_parts(snapshot: Snapshot) -> dict[str, bytes]:
    """A snapshot as records: key -> value. Snapshots of a version share their keys, so compaction keeps the newest."""
    whole = zlib.compress(_adapter().dump_json(snapshot.state), 1)
    parts = [whole[at : at + _PART_BYTES] for at in range(0, len(whole), _PART_BYTES)]
    head = {
        "version": fold_version(), "offset": snapshot.offset, "digest": snapshot.digest, "parts": len(parts),
        "sha256": hashlib.sha256(whole).hexdigest(),
    }  # fmt: skip
    return {
        f"{fold_version()}/{number}": json.dumps({**head, "part": number}).encode() + b"\n" + part
        for number, part in enumerate(parts)
    }


def newest_of(values: Iterable[bytes]) -> Snapshot | None:
    """The newest complete snapshot of this version in `values`, oldest first; values that can't be read are ignored."""
    found: dict[tuple[int, str], dict[int, bytes]] = {}
    heads: dict[tuple[int, str], dict[str, Any]] = {}
    for value in values:
        line, _, part = value.partition(b"\n")
        try:
            head = json.loads(line)
            if head["version"] != fold_version():
                continue
            name = (int(head["offset"]), str(head["sha256"]))
            found.setdefault(name, {})[int(head["part"])] = part
            heads[name] = head
        except _UNREADABLE:
            continue
    for name in sorted(found, reverse=True):
        snapshot = _read(heads[name], found[name])
        if snapshot is not None:
            return snapshot
    return None


def _read(head: dict[str, Any], parts: dict[int, bytes]) -> Snapshot | None:
    try:
        whole = b"".join(parts[number] for number in range(int(head["parts"])))
        if hashlib.sha256(whole).hexdigest() != head["sha256"]:
            return None
        state = _adapter().validate_json(_decompressed(whole))
        return Snapshot(state=state, offset=int(head["offset"]), digest=str(head["digest"]))
    except _UNREADABLE:
        return None


def _decompressed(data: bytes) -> bytes:
    """Raises ValueError if it would be larger than any state: a small record could fill the memory."""
    found = zlib.decompressobj()
    whole = found.decompress(data, _MOST_BYTES)
    if found.unconsumed_tail or not found.eof:
        raise ValueError("the state is cut off, or too large")
    return whole
