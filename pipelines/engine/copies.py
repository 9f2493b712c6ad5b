"""Copies of checkpoints in the bucket of the store. Another host takes over from the newest one.

Each release has, for each generation:

- packs `checkpoints/RELEASE/gG/packs/BATCH.tTOKEN.nNUMBER`, tar files with the files that were new after a batch;
- copies `checkpoints/RELEASE/gG/copies/BATCH.tTOKEN.nNUMBER.json`, which say in which pack each file of the checkpoint is.
  A copy is written after its packs, so it is whole. Neither is ever replaced.

A copy may be older than the result: a driver that takes over runs the batches in between again (`engine/catch_up.py`). So it
needs no fence. Only a batch that Kafka has committed is in Spark's log, and only what is in the log is copied. Two drivers
that copied one batch would copy the same state.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterator
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
from pipelines.engine.packs import (
    NAME,
    Copy,
    CopyDamaged,
    found_in,
    last_of,
    link,
    order_of,
    plan_copy,
    require_all,
    unpack,
    write_pack,
)
from pipelines.errors import Refused, Unavailable
from pipelines.objects import ObjectStore, object_store
from pipelines.paths import below, set_aside
from pipelines.private import private
from pipelines.processes import parent
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# then follows the number of its process
_WORK = ".copy-"
# the token of a checkpoint that is only read; those of drivers start at 1
_READ = 0
# how many copies are kept: a host may read the last one while the next is written
_KEPT = 2
# after how many copies older ones are deleted
_DELETES_EACH = 8
# a copy whose packs are deleted while they are read: there are newer ones by then
_TRIES = 3


class Copies:
    """The copies of one generation of a release in `bucket`. Each method raises as those of `ObjectStore` do."""

    def __init__(self, bucket: ObjectStore, settings: Settings, release: str, generation: int) -> None:
        self._bucket = bucket
        self._settings = settings
        self._release = release
        self._generation = generation
        self._home = home_of(release, generation)
        self._written = 0

    # -- what is there

    def newest(self) -> int | None:
        """The last batch of the newest copy; None: there is none."""
        return next((order_of(name)[0] for name in self._listed()), None)

    def read(self) -> Copy | None:
        """The newest copy that can be read and whose packs are there; None: there is none."""
        packs = self._packs()
        return next((copy for copy in self._all() if packs.issuperset(copy.packs)), None)

    def _listed(self) -> list[str]:
        """The names of all copies, the newest first."""
        names = (PurePosixPath(key).name.removesuffix(".json") for key in self._bucket.list(f"{self._home}/copies"))
        return sorted(filter(NAME.fullmatch, names), key=order_of, reverse=True)

    def _packs(self) -> set[str]:
        names = (PurePosixPath(key).name for key in self._bucket.list(f"{self._home}/packs"))
        return set(filter(NAME.fullmatch, names))

    def _all(self) -> Iterator[Copy]:
        for name in self._listed():
            found = self._bucket.read(self._key(name))
            # another host has just deleted it
            if found is None:
                continue
            try:
                yield Copy.model_validate_json(found)
            except ValueError as error:
                log.warning("%s: a copy of its checkpoint can't be read and is left out: %s", self._release, error)

    def _key(self, name: str) -> str:
        return f"{self._home}/copies/{name}.json"

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
            found = dict(found_in(linked))
            copy = plan_copy(batch_id, token, found, last)
            if copy is last:
                return last
            new = sorted(path for path, file in copy.files.items() if file.pack == copy.name)
            pack = Path(work) / "pack"
            write_pack(pack, linked, new)
            self._bucket.put(self._pack(copy.name), pack)
            self._bucket.put(self._key(copy.name), copy.model_dump_json().encode())
        self._written += 1
        # each request costs; a pack of everything makes the others useless
        if self._written % _DELETES_EACH == 0 or len(copy.packs) == 1:
            self._delete_older()
        return copy

    def _delete_older(self) -> None:
        """Deletes all copies but the newest ones, and packs that only those had."""
        older = self._listed()[_KEPT:]
        for name in older:
            self._bucket.delete(self._key(name))
        if older:
            # a pack without a copy may belong to one that is being written
            self._delete_packs(lambda pack: order_of(pack) <= order_of(older[0]))

    def delete_orphans(self, token: int) -> None:
        """Deletes the packs of drivers with an older token that no copy has: they were killed before they wrote their copy."""
        self._delete_packs(lambda pack: order_of(pack)[1] < token)

    def _delete_packs(self, of_no_use: Callable[[str], bool]) -> None:
        """Deletes packs that no copy needs, of those that are `of_no_use` without one."""
        names, copies = self._listed(), list(self._all())
        # one of another version needs packs, too
        if len(copies) < len(names):
            return
        for pack in self._packs().difference(*(copy.packs for copy in copies)):
            if of_no_use(pack):
                self._bucket.delete(self._pack(pack))

    def sweep(self) -> None:
        """Deletes what killed processes of this host have left. Their links would keep files that Spark has deleted."""
        for left in release_folder(self._settings, self._release).glob(f"{_WORK}*"):
            if parent(int(left.name.removeprefix(_WORK).partition("-")[0])) is None:
                shutil.rmtree(left, ignore_errors=True)

    def delete(self, upto: int | None = None) -> None:
        """Deletes all copies of the generation. `upto`: only if no driver with a newer token has written one."""
        if upto is None or all(order_of(name)[1] <= upto for name in self._listed()):
            self._bucket.delete_all(self._home)

    # -- reading

    def bring(self, token: int) -> None:
        """Makes the newest copy a checkpoint of this host, for a driver with `token`, unless this host has one that is as new.

        Raises CopyDamaged if no copy is whole.
        """
        self._bring_newer(token, newest_folder(self._settings, self._release, self._generation))

    def for_reading(self) -> Path | None:
        """A checkpoint of this host that is as new as the newest copy, wherever its driver ran; None: there is none.

        A copy gets a token that no driver has. So it takes the place of no folder into which one writes. Raises as `bring`.
        """
        self._bring_newer(_READ, self._best_here())
        return self._best_here()

    def _best_here(self) -> Path | None:
        """The whole checkpoint of this host that has most batches."""
        whole = filter(is_whole, release_folder(self._settings, self._release).glob(f"g{self._generation}.t*"))
        return max(whole, key=last_of, default=None)

    def _bring_newer(self, token: int, here: Path | None) -> None:
        self.sweep()
        have = last_of(here) if here is not None and is_whole(here) else -1
        for _ in range(_TRIES):
            newest = self.newest()
            if newest is None or have >= newest or self._bring_any(token, have) or have >= 0:
                return
        raise CopyDamaged(
            f"no copy of the checkpoint of {self._release} in the bucket is whole",
            fix=f"`switchyard reset {self._release} --to-earliest --execute` reads history again",
        )

    def _bring_any(self, token: int, have: int) -> bool:
        """Brings the newest copy that is whole and newer than batch `have`. Returns whether there was one."""
        for copy in itertools.takewhile(lambda copy: copy.batch_id > have, self._all()):
            try:
                self._bring(copy, token)
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
                if not self._bucket.get(self._pack(pack), Path(work) / "pack"):
                    raise CopyDamaged(f"pack {pack} of the copy after batch {copy.batch_id} is missing")
                unpack(copy, pack, Path(work) / "pack", made)
            require_all(copy, made)
            if mine.exists():
                # older than the copy
                shutil.rmtree(set_aside(mine))
            os.replace(made, mine)
        log.info("%s: its checkpoint after batch %d comes from the bucket", self._release, copy.batch_id)


def copies_of(settings: Settings, release: str, generation: int) -> Copies | None:
    """The copies of a generation; None: the store is a folder, and the checkpoints in it need no copy."""
    bucket = object_store(settings)
    return None if bucket is None else Copies(bucket, settings, release, generation)


def take_over_checkpoint(settings: Settings, release: str, generation: int, token: int) -> None:
    """Brings the newest copy for a driver with `token`. Does nothing if the store is a folder.

    If the bucket doesn't answer, or refuses the login, a checkpoint of this host does: it may be older, but then the driver
    catches up. Raises as `Copies.bring` does; Unavailable and Refused only without such a checkpoint.
    """
    copies = copies_of(settings, release, generation)
    if copies is None:
        return
    try:
        copies.bring(token)
    except (Unavailable, Refused) as error:
        if whole_folder(settings, release, generation) is None:
            raise
        log.warning("%s: it starts with the checkpoint of this host, which may be older: %s", release, error.what)


def whole_checkpoint(settings: Settings, release: str, generation: int) -> Path | None:
    """The checkpoint of a generation, wherever its driver ran. None: there is none, or it is incomplete."""
    copies = copies_of(settings, release, generation)
    return whole_folder(settings, release, generation) if copies is None else copies.for_reading()


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


def has_state(settings: Settings, release: str, generation: int) -> bool:
    """Whether a checkpoint of a generation, here or in the bucket, has state."""
    here = newest_folder(settings, release, generation)
    if here is not None and (here / "state").is_dir():
        return True
    copies = copies_of(settings, release, generation)
    copy = copies.read() if copies is not None else None
    return copy is not None and any(path.startswith("state/") for path in copy.files)


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
