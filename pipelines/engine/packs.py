"""The files of a copy of a checkpoint: which of them are linked, packed, and unpacked again."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from pipelines.engine.checkpoint import Checkpoint, is_whole
from pipelines.errors import SwitchyardError
from pipelines.model.base import Frozen
from pipelines.paths import below

# of a copy, and of its pack
NAME = re.compile(r"(?P<batch>\d+)\.t(?P<token>\d+)\.n(?P<number>\d+)")
# while a state is small, a new pack of everything costs as much as a pack of what is new
_SMALL_BYTES = 4 * 2**20
# of a plan, an end or a state
_VERSION = re.compile(r"\.?(?P<version>\d+)(?:\.|$)")
# Spark deletes files of batches that are older than its last 20
_MOST_BATCHES = 10
# a checkpoint that changes faster than it is linked
_TRIES = 3


class CopyDamaged(SwitchyardError):
    """Objects of a copy are missing or too short."""


class CopiedFile(Frozen):
    """Where a file of a checkpoint is. `size_bytes` and `at_ns`, its time of change, tell whether it is still the same."""

    pack: str
    size_bytes: int
    at_ns: int


class Copy(Frozen):
    """A copy of a checkpoint after batch `batch_id`, the one with that `number` of this batch by one driver. `files`: path in
    the checkpoint -> file. `packs`: name -> bytes of all files in it, also of those that the checkpoint no longer has.
    """

    batch_id: int
    token: int
    number: int = 1
    files: dict[str, CopiedFile]
    packs: dict[str, int]

    @property
    def name(self) -> str:
        return f"{self.batch_id:012}.t{self.token}.n{self.number}"

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def order_of(name: str) -> tuple[int, int, int]:
    """Batch, token and number of a copy or a pack. The newest one has the largest."""
    match = NAME.fullmatch(name)
    assert match is not None, name
    return int(match["batch"]), int(match["token"]), int(match["number"])


def link(folder: Path, to: Path) -> int | None:
    """Links the files of a checkpoint, whose driver may run on, so that a driver can start from them. Returns the last batch in
    Spark's log; None without one.

    The log comes first, and then what Spark writes before it: plans, then state. So each batch of the log has its plan and its
    state. What a later batch has left is taken out: the state of a batch is of no use without its plan. Raises CopyDamaged if
    the checkpoint is incomplete, or is renamed or deleted meanwhile.
    """
    for _ in range(_TRIES):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        place, gone = os.stat(folder), set[str]()
        parts = ["commits", "offsets"]
        for part in parts:
            gone |= _link_all(folder, to, part)
        for part in sorted(set(os.listdir(folder)).difference(parts)):
            gone |= _link_all(folder, to, part)
        batch = last_of(to)
        if batch < 0:
            return None
        # deleted, or made again by a process from which another driver has taken it over
        stays = os.path.samestat(place, os.stat(folder)) and is_whole(folder)
        lost = any(int(match["version"]) > batch - _MOST_BATCHES for match in map(_VERSION.match, gone) if match)
        if not stays or lost or not is_whole(to) or not (to / "offsets" / str(batch)).is_file():
            raise CopyDamaged(f"{folder} is incomplete", fix="`switchyard status` shows who runs the release")
        Checkpoint(to, {}, "").forget_later(batch)
        # or Spark has deleted state that this batch needs
        if last_of(folder) - batch <= _MOST_BATCHES:
            return batch
    raise SwitchyardError(
        f"{folder} changes faster than it can be copied",
        fix="it is tried again; a higher target_latency_s makes it slower",
    )


def _link_all(folder: Path, to: Path, part: str) -> set[str]:
    """Links a file or folder `part` of a checkpoint. Returns the names of files that were deleted meanwhile.

    Raises CopyDamaged if a folder was.
    """
    gone = set[str]()
    if not (folder / part).exists():
        # Spark has not made it yet
        return gone
    if (folder / part).is_file():
        gone |= _link(folder / part, to / part)
        return gone
    for root, _, names in os.walk(folder / part, onerror=_refuse):
        place = to / Path(root).relative_to(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            # what Spark has not finished
            if not name.endswith(".tmp"):
                gone |= _link(Path(root) / name, place / name)
    return gone


def _refuse(error: OSError) -> None:
    raise CopyDamaged(f"{error.filename} is gone", fix="`switchyard status` shows who runs the release") from error


def _link(file: Path, to: Path) -> set[str]:
    try:
        os.link(file, to)
    except FileNotFoundError:
        return {file.name}
    return set()


def found_in(linked: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Path in the folder, and what Linux says of the file; of all files."""
    for path in linked.rglob("*"):
        if path.is_file():
            yield path.relative_to(linked).as_posix(), path.stat()


def plan_copy(batch_id: int, token: int, found: Mapping[str, os.stat_result], last: Copy | None) -> Copy:
    """The copy to write; `last` itself, if it is of the same batch, and no operation has moved the release since."""
    known = last.files if last is not None else {}
    number, end = 1, f"offsets/{batch_id}"
    if last is not None and last.batch_id == batch_id:
        # the state of a batch that has not ended is of no use
        if end in known and _is_same(found[end], known[end]):
            return last
        number = last.number + 1 if last.token == token else 1
    kept = {path: file for path, file in known.items() if path in found and _is_same(found[path], file)}
    needed = {file.pack for file in kept.values()}
    packs = {pack: size for pack, size in (last.packs if last is not None else {}).items() if pack in needed}
    size = sum(stat.st_size for stat in found.values())
    new = {path: stat for path, stat in found.items() if path not in kept}
    new_bytes = sum(stat.st_size for stat in new.values())
    if sum(packs.values()) + new_bytes > 2 * size + _SMALL_BYTES:
        kept, packs, new, new_bytes = {}, {}, dict(found), size
    copy = Copy(batch_id=batch_id, token=token, number=number, files={}, packs={})
    files = {
        path: CopiedFile(pack=copy.name, size_bytes=stat.st_size, at_ns=stat.st_mtime_ns) for path, stat in new.items()
    }
    return copy.model_copy(update={"files": kept | files, "packs": packs | {copy.name: new_bytes}})


def _is_same(found: os.stat_result, file: CopiedFile) -> bool:
    return (found.st_size, found.st_mtime_ns) == (file.size_bytes, file.at_ns)


def write_pack(pack: Path, folder: Path, names: list[str]) -> None:
    with tarfile.open(pack, "w") as written:
        for name in names:
            written.add(folder / name, name, recursive=False)


def last_of(folder: Path) -> int:
    """The last batch in the log of a checkpoint; -1: none."""
    return Checkpoint(folder, {}, "").newest


def unpack(copy: Copy, pack: str, file: Path, to: Path) -> None:
    """Writes the files that a copy has in `pack`, a tar `file`, to the folder `to`. Raises CopyDamaged if the pack is."""
    wanted = {path: known for path, known in copy.files.items() if known.pack == pack}
    try:
        with tarfile.open(file) as found:
            for member in found:
                known = wanted.get(member.name)
                source = found.extractfile(member) if known is not None else None
                if known is None or source is None:
                    continue
                # a name from the bucket must not lead out of the folder
                target = below(to, *PurePosixPath(member.name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as written:
                    shutil.copyfileobj(source, written)
                os.utime(target, ns=(known.at_ns, known.at_ns))
    except (tarfile.TarError, EOFError) as error:
        raise CopyDamaged(f"pack {pack} of the copy after batch {copy.batch_id} is damaged: {error}") from error


def require_all(copy: Copy, folder: Path) -> None:
    """Raises CopyDamaged unless `folder` has all files of a copy."""
    there = {path: stat.st_size for path, stat in found_in(folder)}
    missing = next((path for path, file in copy.files.items() if there.get(path) != file.size_bytes), None)
    if missing is not None:
        raise CopyDamaged(f"the copy after batch {copy.batch_id} lacks {missing}, or a part of it")
