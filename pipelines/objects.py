"""The store in a bucket, as S3 and what speaks its protocol have it. Files of the store are copied to it and from it.

What the bucket guarantees, and what this relies on (S3 since December 2020, MinIO, Ceph):

- An object appears whole or not at all. Of an upload that was killed, nothing is seen.
- Who reads or lists after a write or a deletion has ended sees it, on any host.

All that is written under one key is the same, except for the pages of Data Docs and the refresh of a diff. Those are
replaced whole, and `get` never mixes two of them.
"""

from __future__ import annotations

import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from pipelines.bucket import Bucket, bucket_of, login_of
from pipelines.bucket_failures import failure, no_bucket, where_of
from pipelines.errors import SwitchyardError, Unavailable
from pipelines.paths import below
from pipelines.private import private, temporary_beside
from pipelines.secrets import remember
from pipelines.settings import Settings, revealed

# a command must not hang: an endpoint that nobody has answers after 3 * 2 s, one that accepts and says nothing after 3 * 10 s
_CONNECT_S = 2.0
_ANSWER_S = 10.0
_ATTEMPTS = 3
# at least a part of the client's (10 MiB), which then needs no copy of it
_CHUNK_BYTES = 16 * 2**20
# an object that is replaced again and again while it is read
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """One version of an object. `tag`: the bucket's own mark of it. `at_ns`: when it was written."""

    tag: bytes
    size: int
    at_ns: int


class ObjectStore:
    """The bucket of `store_url`. Keys are relative to its prefix: `code/DIGEST.zip`. Threads may share it.

    Each method raises Unavailable if the bucket doesn't answer, and Refused if it is not there, or refuses the login.
    """

    def __init__(self, bucket: Bucket, options: dict[str, str]) -> None:
        """`options`: of the client, by its own names, including the login."""
        self._bucket, self._options = bucket, options
        self._where = where_of(options)

    @cached_property
    def _files(self) -> Any:
        # commands that need no bucket should not load it
        from pyarrow import fs

        with self._told():
            return fs.S3FileSystem(
                **self._options,
                connect_timeout=_CONNECT_S,
                request_timeout=_ANSWER_S,
                retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
                # a small object takes one request
                allow_delayed_open=True,
                # in order and in this thread: the memory of one part
                background_writes=False,
            )

    def put(self, key: str, data: bytes | Path) -> None:
        """Writes an object, or replaces it. It appears whole or not at all, also if this process is interrupted or killed."""
        over = threading.Event()
        # Python interrupts only the main thread: Ctrl-C between two calls of the client would leave half an object
        with ThreadPoolExecutor(1, "upload") as thread:
            try:
                thread.submit(self._put, key, data, over).result()
            finally:
                over.set()

    def _put(self, key: str, data: bytes | Path, over: threading.Event) -> None:
        with self._told(), io.BytesIO(data) if isinstance(data, bytes) else data.open("rb") as source:
            _upload(self._files.open_output_stream(self._place(key)), source, over)

    def get(self, key: str, path: Path) -> bool:
        """Copies an object to `path`, a private file (0600) with the object's time: whole or not at all. False: there is
        no such object.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = temporary_beside(path)
        try:
            with open(temporary, "wb", opener=_private) as target:
                copied = self._copy(key, target)
            if copied is None:
                return False
            os.utime(temporary, ns=(copied.at_ns, copied.at_ns))
            os.replace(temporary, path)
            return True
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, key: str) -> bytes | None:
        """The bytes of an object; None: there is no such object."""
        content = io.BytesIO()
        return None if self._copy(key, content) is None else content.getvalue()

    def list(self, prefix: str) -> dict[str, int]:
        """Key -> size in bytes, of all objects whose key starts with `prefix` and a slash."""
        from pyarrow import fs

        place = self._place(prefix)
        with self._told():
            found = self._files.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
        if not found:
            self._refuse_missing_bucket()
        mine = len(self._bucket.root) + 1
        # the client marks folders with objects of its own
        return {each.path[mine:]: each.size for each in found if each.is_file}

    def holds(self, key: str) -> bool:
        """Whether there is such an object."""
        return self._now(key) is not None

    def is_copied(self, key: str, path: Path) -> bool:
        """Whether the file has the size and the time of the object, so that `get` would change nothing. Also without an
        object.
        """
        seen, found = self._now(key), path.stat()
        # the bucket tells seconds
        return seen is None or (seen.size, seen.at_ns // 10**9) == (found.st_size, found.st_mtime_ns // 10**9)

    def delete(self, key: str) -> None:
        """Deletes an object. No error if it isn't there."""
        self._delete(lambda: self._files.delete_file(self._place(key)))

    def delete_all(self, prefix: str) -> None:
        """Deletes all objects that `list` names."""
        self._delete(lambda: self._files.delete_dir(self._place(prefix)))

    def _delete(self, call: Callable[[], None]) -> None:
        with self._told():
            try:
                call()
            except FileNotFoundError:
                self._refuse_missing_bucket()

    def _copy(self, key: str, target: BinaryIO) -> _Version | None:
        """What `target` is now a copy of; None: there is no such object."""
        for _ in range(_TRIES):
            target.seek(0)
            target.truncate()
            source = self._source(key)
            if source is None:
                return None
            version = _version(source.metadata())
            try:
                with self._told(), source:
                    while chunk := source.read(_CHUNK_BYTES):
                        target.write(chunk)
            except (Unavailable, FileNotFoundError):
                # the client fails at the end of an object that has become shorter, or is gone
                if self._now(key) == version:
                    raise
                continue
            if self._now(key) == version and target.tell() == version.size:
                return version
        raise Unavailable(
            f"{self._bucket.url}/{key} was replaced {_TRIES} times while it was read",
            fix="repeat the command in a minute",
        )

    def _now(self, key: str) -> _Version | None:
        source = self._source(key)
        if source is None:
            return None
        with self._told(), source:
            return _version(source.metadata())

    def _source(self, key: str) -> Any:
        """A stream of an object; None: there is no such object."""
        with self._told():
            try:
                return self._files.open_input_stream(self._place(key))
            except FileNotFoundError:
                self._refuse_missing_bucket()
                return None

    def _place(self, key: str) -> str:
        return f"{self._bucket.root}/{key}"

    def _refuse_missing_bucket(self) -> None:
        """The client says the same of an object that isn't there and of a bucket that isn't there. Raises Refused if it is
        the bucket.
        """
        from pyarrow import fs

        with self._told():
            found = self._files.get_file_info(self._bucket.name)
        if found.type == fs.FileType.NotFound:
            raise no_bucket(self._bucket, self._where)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Says in words what the client's errors mean. FileNotFoundError is for the caller."""
        import pyarrow as pa

        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise failure(self._bucket, self._where, error) from error


def _upload(stream: Any, source: BinaryIO, over: threading.Event) -> None:
    """Writes all of `source`, and makes the object appear."""
    try:
        while chunk := source.read(_CHUNK_BYTES):
            if over.is_set():
                raise SwitchyardError("the upload was interrupted", fix="repeat the command")
            stream.write(chunk)
    except BaseException:
        import ctypes

        # the client has no way to give up: to close or to free this stream would make what came so far appear. So it is
        # kept for as long as this process lives
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))
        raise
    stream.close()


def _version(metadata: dict[str, bytes]) -> _Version:
    at = datetime.fromisoformat(metadata["Last-Modified"].decode())
    return _Version(
        tag=metadata.get("ETag", b""), size=int(metadata["Content-Length"]), at_ns=int(at.timestamp()) * 10**9
    )


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# -- the files of the store


def object_store(settings: Settings) -> ObjectStore | None:
    """The bucket of the store; None: the store is a folder."""
    bucket = bucket_of(settings.store_url)
    return None if bucket is None else _opened(bucket, tuple(sorted(revealed(settings.store).items())))


@lru_cache(maxsize=16)
def _opened(bucket: Bucket, options: tuple[tuple[str, str], ...]) -> ObjectStore:
    found = login_of(dict(options), os.environ)
    remember(found)
    return ObjectStore(bucket, found)


def publish(settings: Settings, path: Path) -> None:
    """Copies a file of the store, or all files of a folder, to the bucket. Does nothing if the store is a folder.

    An entry of the registry may name the file only after that. Raises as `ObjectStore` does.
    """
    store = object_store(settings)
    if store is None:
        return
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    for each in files:
        store.put(_key(settings, each), each)


def fetch(settings: Settings, path: Path, *, newest: bool = False) -> bool:
    """Copies a file of the store from the bucket if this host lacks it. Returns whether the file is there now.

    `newest`: of a file that may be replaced, also if this host has an older one. Raises as `ObjectStore` does.
    """
    store = object_store(settings)
    if store is None:
        return path.exists()
    key = _key(settings, path)
    if path.exists() and not (newest and not store.is_copied(key, path)):
        return True
    private(settings.store_dir)
    return store.get(key, path) or path.exists()


def fetch_folder(settings: Settings, path: Path) -> bool:
    """Copies a folder of the store from the bucket if this host lacks it: whole or not at all. Returns whether it is there
    now. Raises as `ObjectStore` does.
    """
    store = object_store(settings)
    if store is None or path.exists():
        return path.exists()
    key = _key(settings, path)
    keys = store.list(key)
    if not keys:
        return False
    private(settings.store_dir)
    temporary = temporary_beside(path)
    try:
        # a name from the bucket must not lead out of the folder
        targets = {each: below(temporary, *each.removeprefix(f"{key}/").split("/")) for each in keys}
        if not all(store.get(each, target) for each, target in targets.items()):
            # deleted meanwhile
            return False
        # another process of this host may have been faster
        with suppress(OSError):
            os.replace(temporary, path)
        return path.exists()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def holds(settings: Settings, path: Path) -> bool:
    """Whether a file or folder of the store is there, on this host or in the bucket. Raises as `ObjectStore` does."""
    store = object_store(settings)
    if store is None or path.exists():
        return path.exists()
    key = _key(settings, path)
    return store.holds(key) or bool(store.list(key))


def withdraw(settings: Settings, path: Path) -> None:
    """Deletes a file or folder of the store in the bucket. Does nothing if the store is a folder. Raises as `ObjectStore`
    does.
    """
    store = object_store(settings)
    if store is not None:
        key = _key(settings, path)
        store.delete(key)
        store.delete_all(key)


def _key(settings: Settings, path: Path) -> str:
    return path.relative_to(settings.store_dir.resolve()).as_posix()
