"""Copies of checkpoints in the bucket of the store. Another host takes over from the newest one.

Each release has, for each generation:

- packs `checkpoints/RELEASE/gG/packs/BATCH.tTOKEN`, tar files with the files that were new after a batch;
- copies `checkpoints/RELEASE/gG/copies/BATCH.tTOKEN.json`, which say in which pack each file of the checkpoint is. A copy is
  written after its packs, so it is whole.

A copy may be older than the result: a driver that takes over runs the batches in between again (`engine/catch_up.py`). So it
needs no fence. Only a batch that Kafka has committed is in Spark's log, and only what is in the log is copied. Two drivers
that copied one batch would copy the same state.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from pipelines.engine.checkpoint import (
    Checkpoint,
    forget,
    is_whole,
    newest_folder,
    release_folder,
    size_of,
    whole_folder,
)
from pipelines.errors import SwitchyardError, Unavailable
from pipelines.model.base import Frozen
from pipelines.objects import ObjectStore, object_store
from pipelines.paths import below, set_aside
from pipelines.private import private
from pipelines.processes import parent
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# then follows the number of its process
_WORK = ".copy-"
_COPY = re.compile(r"(?P<batch>\d+)\.t(?P<token>\d+)\.json")
# how many copies are kept: a host may read the last one while the next is written
_KEPT = 2
# while a state is small, a new pack of everything costs as much as a pack of what is new
_SMALL_BYTES = 4 * 2**20
# a copy whose packs are deleted while they are read: there are newer ones by then
_TRIES = 3
# Spark deletes files of batches that are older than its last 20
_MOST_BATCHES = 10


class CopyDamaged(SwitchyardError):
    """Objects of a copy are missing or too short."""


class CopiedFile(Frozen):
    """Where a file of a checkpoint is. `size_bytes` and `at_ns`, its time of change, tell whether it is still the same."""

    pack: str
    size_bytes: int
    at_ns: int


class Copy(Frozen):
    """A copy of a checkpoint after batch `batch_id`. `files`: path in the checkpoint -> file. `packs`: name -> bytes of all
    files in it, also of those that the checkpoint no longer has.
    """

    batch_id: int
    token: int
    files: dict[str, CopiedFile]
    packs: dict[str, int]

    @property
    def name(self) -> str:
        return _name(self.batch_id, self.token)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def _name(batch_id: int, token: int) -> str:
    return f"{batch_id:012}.t{token}"


class Copies:
    """The copies of one generation of a release in `bucket`. Each method raises as those of `ObjectStore` do."""

    def __init__(self, bucket: ObjectStore, settings: Settings, release: str, generation: int) -> None:
        self._bucket = bucket
        self._settings = settings
        self._release = release
        self._generation = generation
        self._home = home_of(release, generation)

    # -- what is there

    def newest(self) -> int | None:
        """The last batch of the newest copy; None: there is none."""
        return next((batch for batch, _ in self._listed()), None)

    def read(self) -> Copy | None:
        """The newest copy that can be read; None: there is none."""
        return next(self._all(), None)

    def _listed(self) -> list[tuple[int, int]]:
        """Batch and token of each copy, the newest first."""
        names = (PurePosixPath(key).name for key in self._bucket.list(f"{self._home}/copies"))
        matches = filter(None, map(_COPY.fullmatch, names))
        return sorted(((int(m["batch"]), int(m["token"])) for m in matches), reverse=True)

    def _all(self) -> Iterator[Copy]:
        for batch, token in self._listed():
            found = self._bucket.read(self._key(batch, token))
            # another host has just deleted it
            if found is None:
                continue
            try:
                yield Copy.model_validate_json(found)
            except ValueError as error:
                log.warning("%s: a copy of its checkpoint can't be read and is left out: %s", self._release, error)

    def _key(self, batch: int, token: int) -> str:
        return f"{self._home}/copies/{_name(batch, token)}.json"

    def _pack(self, name: str) -> str:
        return f"{self._home}/packs/{name}"

    # -- writing

    def write(self, folder: Path, token: int, last: Copy | None) -> Copy | None:
        """Copies the checkpoint `folder`, whose driver may run on. Returns the copy; None: it has no batch yet.

        `last`: the copy before. What did not change since stays in its packs. If more than half of these is of no use by now,
        all is packed anew.
        """
        with _work(folder.parent) as work:
            linked = Path(work) / "linked"
            batch_id = link(folder, linked)
            if batch_id is None:
                return None
            found = dict(_found(linked))
            copy = _plan(batch_id, token, found, last)
            if last is not None and (last.batch_id, last.files) == (batch_id, copy.files):
                return last
            new = sorted(path for path, file in copy.files.items() if file.pack == copy.name)
            if new:
                pack = Path(work) / "pack"
                _write_pack(pack, linked, new)
                self._bucket.put(self._pack(copy.name), pack)
            self._bucket.put(self._key(batch_id, token), copy.model_dump_json().encode())
        self._delete_older()
        return copy

    def _delete_older(self) -> None:
        """Deletes all copies but the newest ones, and packs that only those had."""
        listed = self._listed()
        kept = [copy for copy, _ in zip(self._all(), range(_KEPT), strict=False)]
        needed = {pack for copy in kept for pack in copy.packs}
        for batch, token in listed[_KEPT:]:
            self._bucket.delete(self._key(batch, token))
        for key in self._bucket.list(f"{self._home}/packs") if len(listed) > _KEPT else ():
            pack = PurePosixPath(key).name
            # a pack without a copy may belong to one that is being written
            if pack not in needed and pack < min(copy.name for copy in kept):
                self._bucket.delete(key)

    def delete_orphans(self, token: int) -> None:
        """Deletes the packs of drivers with an older token that no copy has: they were killed before they wrote their copy."""
        needed = {pack for copy in self._all() for pack in copy.packs}
        for key in self._bucket.list(f"{self._home}/packs"):
            pack = PurePosixPath(key).name
            if pack not in needed and int(pack.rpartition(".t")[2]) < token:
                self._bucket.delete(key)

    def sweep(self) -> None:
        """Deletes what killed processes of this host have left. Their links would keep files that Spark has deleted."""
        for left in release_folder(self._settings, self._release).glob(f"{_WORK}*"):
            if parent(int(left.name.removeprefix(_WORK).partition("-")[0])) is None:
                shutil.rmtree(left, ignore_errors=True)

    def delete(self, upto: int | None = None) -> None:
        """Deletes all copies of the generation. `upto`: only if no driver with a newer token has written one."""
        if upto is None or all(token <= upto for _, token in self._listed()):
            self._bucket.delete_all(self._home)

    # -- reading

    def bring(self, token: int | None = None) -> None:
        """Makes the newest copy a checkpoint of this host, unless this host has one that is as new.

        `token`: of the driver that takes over; None: it is only read, and keeps the token of its driver. Raises CopyDamaged if
        no copy is whole.
        """
        for _ in range(_TRIES):
            newest = self.newest()
            here = newest_folder(self._settings, self._release, self._generation)
            if newest is None:
                return
            if here is not None and is_whole(here) and _last_batch(here, self._release) >= newest:
                return
            if self._bring_any(token):
                return
        raise CopyDamaged(
            f"no copy of the checkpoint of {self._release} in the bucket is whole",
            fix=f"`switchyard reset {self._release} --to-earliest --execute` reads history again",
        )

    def _bring_any(self, token: int | None) -> bool:
        for copy in self._all():
            try:
                self._bring(copy, copy.token if token is None else token)
            except CopyDamaged as error:
                log.warning("%s: %s; an older copy is tried", self._release, error)
            else:
                return True
        return False

    def _bring(self, copy: Copy, token: int) -> None:
        folder = release_folder(self._settings, self._release)
        private(self._settings.store_dir)
        folder.mkdir(parents=True, exist_ok=True)
        mine = below(self._settings.store_dir, "checkpoints", self._release, f"g{self._generation}.t{token}")
        with _work(folder) as work:
            made = Path(work) / "made"
            made.mkdir()
            for pack in copy.packs:
                self._unpack(copy, pack, Path(work) / "pack", made)
            there = {path: stat.st_size for path, stat in _found(made)}
            missing = next((path for path, file in copy.files.items() if there.get(path) != file.size_bytes), None)
            if missing is not None:
                raise CopyDamaged(f"the copy after batch {copy.batch_id} lacks {missing}, or a part of it")
            if mine.exists():
                # older than the copy
                shutil.rmtree(set_aside(mine))
            os.replace(made, mine)
        log.info("%s: its checkpoint after batch %d comes from the bucket", self._release, copy.batch_id)

    def _unpack(self, copy: Copy, pack: str, file: Path, to: Path) -> None:
        if not self._bucket.get(self._pack(pack), file):
            raise CopyDamaged(f"pack {pack} of the copy after batch {copy.batch_id} is missing")
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


def copies_of(settings: Settings, release: str, generation: int) -> Copies | None:
    """The copies of a generation; None: the store is a folder, and the checkpoints in it need no copy."""
    bucket = object_store(settings)
    return None if bucket is None else Copies(bucket, settings, release, generation)


def bring_checkpoint(settings: Settings, release: str, generation: int, token: int | None = None) -> None:
    """Makes the newest copy of a checkpoint one of this host, as `Copies.bring` does. Does nothing if the store is a folder."""
    copies = copies_of(settings, release, generation)
    if copies is not None:
        copies.bring(token)


def take_over_checkpoint(settings: Settings, release: str, generation: int, token: int) -> None:
    """Brings the newest copy for a driver with `token`. If the bucket doesn't answer, a checkpoint of this host does: it may be
    older, but then the driver catches up. Raises as `Copies.bring` does, Unavailable only without such a checkpoint.
    """
    try:
        bring_checkpoint(settings, release, generation, token)
    except Unavailable as error:
        if whole_folder(settings, release, generation) is None:
            raise
        log.warning("%s: it starts with the checkpoint of this host, which may be older: %s", release, error.what)


def whole_checkpoint(settings: Settings, release: str, generation: int) -> Path | None:
    """The checkpoint of a generation, wherever its driver ran. None: there is none, or it is incomplete."""
    bring_checkpoint(settings, release, generation)
    return whole_folder(settings, release, generation)


def has_checkpoint(settings: Settings, release: str, generation: int) -> bool:
    """Whether a generation has a checkpoint, here or in the bucket."""
    if newest_folder(settings, release, generation) is not None:
        return True
    copies = copies_of(settings, release, generation)
    return copies is not None and copies.newest() is not None


def has_whole_checkpoint(settings: Settings, release: str, generation: int) -> bool:
    """Whether a driver can start from a checkpoint of a generation, here or in the bucket."""
    if whole_folder(settings, release, generation) is not None:
        return True
    copies = copies_of(settings, release, generation)
    return copies is not None and copies.newest() is not None


def is_logged(settings: Settings, release: str, generation: int, batch_id: int) -> bool:
    """Whether Spark's log of a generation has batch `batch_id`, here or in the bucket."""
    here = newest_folder(settings, release, generation)
    if here is not None and Checkpoint(here, {}, release).committed(batch_id):
        return True
    copies = copies_of(settings, release, generation)
    newest = copies.newest() if copies is not None else None
    return newest is not None and newest >= batch_id


def copied(settings: Settings, release: str, generation: int, batch_id: int) -> str | None:
    """For the operator: how old the newest copy of a generation is. `batch_id`: its last batch. None: nothing is copied."""
    copies = copies_of(settings, release, generation)
    if copies is None:
        return None
    newest = copies.newest()
    if newest is None:
        return "the bucket has no copy of its checkpoint yet"
    behind = max(0, batch_id - newest)
    return f"the bucket has its checkpoint after batch {newest:,}" + (f", {behind:,} batches ago" if behind else "")


def forget_checkpoint(settings: Settings, release: str, generation: int, upto: int | None = None) -> None:
    """Deletes the checkpoints of a generation, here and in the bucket. `upto`: only those of this token and older ones."""
    forget(settings, release, generation, upto)
    copies = copies_of(settings, release, generation)
    if copies is not None:
        copies.delete(upto)


def checkpoint_bytes(settings: Settings, release: str, generation: int) -> int:
    """Bytes of all files of a checkpoint, here or in the bucket; 0 without one."""
    here = newest_folder(settings, release, generation)
    copies = copies_of(settings, release, generation)
    if here is not None or copies is None:
        return size_of(here)
    copy = copies.read()
    return copy.size_bytes if copy is not None else 0


def _work(folder: Path) -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix=f"{_WORK}{os.getpid()}-", dir=folder, ignore_cleanup_errors=True)


def home_of(release: str, generation: int) -> str:
    """The key under which the copies of a generation are."""
    return f"checkpoints/{release}/g{generation}"


def link(folder: Path, to: Path) -> int | None:
    """Links the files of a checkpoint, whose driver may run on, so that a driver can start from them. Returns the last batch in
    Spark's log; None without one.

    The log comes first, and then what Spark writes before it: plans, then state. So each batch of the log has its plan and its
    state. What belongs to a later batch is as if the driver had been killed in it. Raises CopyDamaged if the checkpoint is
    incomplete.
    """
    for _ in range(_TRIES):
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        parts = ["commits", "offsets"]
        for part in parts:
            _link_all(folder, to, part)
        for part in sorted(set(os.listdir(folder)).difference(parts)):
            _link_all(folder, to, part)
        batch = _last_batch(to, "")
        if batch < 0:
            return None
        if not is_whole(to) or not (to / "offsets" / str(batch)).is_file():
            # deleted, or made again by a process from which another driver has taken it over
            raise CopyDamaged(f"{folder} is incomplete", fix="`switchyard status` shows who runs the release")
        # or Spark has deleted state that this batch needs
        if _last_batch(folder, "") - batch <= _MOST_BATCHES:
            return batch
    raise SwitchyardError(
        f"{folder} changes faster than it can be copied",
        fix="it is tried again; a higher target_latency_s makes it slower",
    )


def _link_all(folder: Path, to: Path, part: str) -> None:
    """Links a file or folder `part` of a checkpoint."""
    if (folder / part).is_file():
        _link(folder / part, to / part)
    for root, _, names in os.walk(folder / part):
        place = to / Path(root).relative_to(folder)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            # what Spark has not finished
            if not name.endswith(".tmp"):
                _link(Path(root) / name, place / name)


def _link(file: Path, to: Path) -> None:
    # or Spark has deleted it, as no later batch needs it
    with suppress(FileNotFoundError):
        os.link(file, to)


def _found(linked: Path) -> Iterator[tuple[str, os.stat_result]]:
    for path in linked.rglob("*"):
        if path.is_file():
            yield path.relative_to(linked).as_posix(), path.stat()


def _plan(batch_id: int, token: int, found: Mapping[str, os.stat_result], last: Copy | None) -> Copy:
    name = _name(batch_id, token)
    known = last.files if last is not None else {}
    kept = {
        path: file
        for path, file in known.items()
        if path in found and (found[path].st_size, found[path].st_mtime_ns) == (file.size_bytes, file.at_ns)
    }
    needed = {file.pack for file in kept.values()}
    packs = {pack: size for pack, size in (last.packs if last is not None else {}).items() if pack in needed}
    size = sum(stat.st_size for stat in found.values())
    new = {path: stat for path, stat in found.items() if path not in kept}
    new_bytes = sum(stat.st_size for stat in new.values())
    # the copy of one batch by one driver is written once
    if sum(packs.values()) + new_bytes > 2 * size + _SMALL_BYTES or (new and name in packs):
        kept, packs, new, new_bytes = {}, {}, dict(found), size
    files = {path: CopiedFile(pack=name, size_bytes=stat.st_size, at_ns=stat.st_mtime_ns) for path, stat in new.items()}
    return Copy(batch_id=batch_id, token=token, files=kept | files, packs=packs | ({name: new_bytes} if new else {}))


def _write_pack(pack: Path, folder: Path, names: list[str]) -> None:
    with tarfile.open(pack, "w") as written:
        for name in names:
            written.add(folder / name, name, recursive=False)


def _last_batch(folder: Path, release: str) -> int:
    last = Checkpoint(folder, {}, release).last_committed()
    return -1 if last is None else last
