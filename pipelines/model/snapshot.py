"""A registry's state as of an offset, as bytes: what bounds the start of whoever reads the registry."""

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

# a record of Kafka's default size holds a part
_PART_BYTES = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state after the entry at `offset`. `digest`: of that entry's bytes, which says of which log this is a state."""

    state: RegistryState
    offset: int
    digest: str


def digest_of(value: bytes) -> str:
    """What a snapshot keeps of the last entry before it."""
    return hashlib.sha256(value).hexdigest()


@cache
def fold_version() -> str:
    """Names what a state depends on beside the entries: this package's code, any change of which makes another version.

    A number that someone has to raise would be forgotten once, and a state of other rules taken for one of these.
    """
    found = hashlib.sha256()
    for path in rules():
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def rules() -> list[Path]:
    """The files that say what entries fold to."""
    return sorted(Path(__file__).parent.glob("*.py"))


@cache
def _adapter() -> TypeAdapter[RegistryState]:
    return TypeAdapter(RegistryState)


def to_parts(snapshot: Snapshot) -> dict[str, bytes]:
    """A snapshot as records: key -> value. Those of one version have the same keys, so that compaction keeps its newest."""
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
    """The newest whole snapshot of this version among records, oldest first; what can't be read is left out."""
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
        except (ValueError, KeyError, TypeError, RecursionError):
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
        state = _adapter().validate_json(zlib.decompress(whole))
        return Snapshot(state=state, offset=int(head["offset"]), digest=str(head["digest"]))
    except (ValueError, KeyError, TypeError, zlib.error):
        return None
