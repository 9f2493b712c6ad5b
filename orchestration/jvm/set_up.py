"""Puts in place what Spark and the broker need besides Python's packages: the jars, our Scala classes, the class archive.

`switchyard jars` and `make setup` call it. It only does what is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestration.jvm import class_archive, scala
from orchestration.local import jars
from pipelines.engine.jvm.jars import class_archive as archive_path
from pipelines.engine.jvm.jars import jars_dir, scala_jar
from pipelines.errors import SwitchyardError

# jars hold no secret. On a server, one user may fetch them for the others
_READABLE = 0o022


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """What is in `folder`, and what of it is new. `archive`: None: there is none; then `trouble` says why, if it could not
    be written.
    """

    folder: Path
    fetched: bool
    compiled: bool
    archived: bool
    archive: Path | None
    trouble: SwitchyardError | None = None

    @property
    def changed(self) -> bool:
        return self.fetched or self.compiled or self.archived


def set_up(*, archive: bool = True, say: Callable[[str], None] = lambda _: None) -> Done:
    """Fetches, compiles and writes what is missing in the folder of the jars. `archive`: the class archive, too, which takes
    a minute. `say`: gets a line before each step that takes long. Of two at once, the second waits for the first.

    Raises SwitchyardError without Java, network or a folder that can be written, and for a wrong checksum. Without the
    class archive drivers only start more slowly, so whatever keeps it from being written is in `trouble`.
    """
    folder = jars_dir()
    # without the lock: whoever only reads the folder may not be able to take it
    if not _left(folder, archive):
        return _done(folder)
    try:
        return _set_up(folder, archive, say)
    except SwitchyardError as error:
        # the archive alone is missing, and only another user may write it
        if _left(folder, archive=False):
            raise
        return _done(folder, trouble=error)


def _set_up(folder: Path, archive: bool, say: Callable[[str], None]) -> Done:
    with _readable(), jars.one_at_a_time(folder):
        try:
            fetched = not jars.complete(folder)
            if fetched:
                say(f"fetching {len(jars.read_list())} jars (about 40 s)")
                jars.ensure(folder)
            compiled = not scala.compiled()
            if compiled:
                say("compiling the Scala classes (about 15 s)")
                scala.compile_to(scala_jar())
        except OSError as error:
            raise SwitchyardError(
                f"{error.filename or folder} can't be written: {error.strerror}",
                "free some disk space, or choose another folder: SWITCHYARD_JARS_DIR=<folder>",
            ) from error
        if not archive or class_archive.up_to_date():
            return _done(folder, fetched=fetched, compiled=compiled)
        say("running a driver once, so that later ones start in two thirds of the time (about a minute)")
        try:
            class_archive.write()
        except SwitchyardError as error:
            return _done(folder, fetched=fetched, compiled=compiled, trouble=error)
        return _done(folder, fetched=fetched, compiled=compiled, archived=True)


def _left(folder: Path, archive: bool) -> bool:
    """Whether something is left to do."""
    there = jars.complete(folder) and scala.compiled()
    return not there or (archive and not class_archive.up_to_date())


def _done(
    folder: Path,
    *,
    fetched: bool = False,
    compiled: bool = False,
    archived: bool = False,
    trouble: SwitchyardError | None = None,
) -> Done:
    path = archive_path()
    return Done(
        folder=folder,
        fetched=fetched,
        compiled=compiled,
        archived=archived,
        archive=path if class_archive.up_to_date() else None,
        trouble=trouble,
    )


@contextmanager
def _readable() -> Iterator[None]:
    """Other users can read what is written meanwhile."""
    before = os.umask(_READABLE)
    try:
        yield
    finally:
        os.umask(before)
