"""Objects in a bucket: whole or not at all, and what is said if the bucket is not there."""

from __future__ import annotations

import gc
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines import objects
from pipelines.errors import Refused, SwitchyardError, Unavailable
from pipelines.objects import ObjectStore
from tests.objects.conftest import Host, store_of

pytestmark = pytest.mark.slow

WITHIN_S = 60.0
# three parts of the client's
LARGE = os.urandom(1 << 20) * 25


def test_what_was_written_is_read_listed_and_deleted(store: ObjectStore, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(LARGE)
    store.put("tables/a.jsonl", b"12345")
    store.put("evidence/diff-1/fold.parquet/sums/part-0.parquet", file)
    store.put("evidence/diff-10/since.parquet", b"")
    assert store.list("evidence/diff-1") == {"evidence/diff-1/fold.parquet/sums/part-0.parquet": len(LARGE)}
    assert store.list("tables") == {"tables/a.jsonl": 5} and store.list("tabl") == {}
    assert store.read("tables/a.jsonl") == b"12345" and store.read("evidence/diff-10/since.parquet") == b""
    assert store.get("evidence/diff-1/fold.parquet/sums/part-0.parquet", tmp_path / "new" / "copy")
    copy = tmp_path / "new" / "copy"
    assert copy.read_bytes() == LARGE and stat.S_IMODE(copy.stat().st_mode) == 0o600
    store.put("tables/a.jsonl", b"1")
    assert store.read("tables/a.jsonl") == b"1"
    for _ in range(2):
        store.delete("tables/a.jsonl")
        store.delete_all("evidence/diff-1")
        assert store.list("tables") == {} and store.list("evidence") == {"evidence/diff-10/since.parquet": 0}
    assert store.read("tables/a.jsonl") is None and not store.holds("tables/a.jsonl")
    assert not store.get("tables/a.jsonl", tmp_path / "none") and not (tmp_path / "none").exists()
    # only what is under the prefix of the store
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


def test_half_a_file_never_takes_the_place_of_one(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", LARGE)
    path = tmp_path / "folder" / "a"
    path.parent.mkdir()
    path.write_text("the old one")

    def copy(key: str, target: io.BufferedWriter) -> None:
        target.write(b"half")
        raise Unavailable("the connection broke")

    monkeypatch.setattr(store, "_copy", copy)
    with pytest.raises(Unavailable, match="broke"):
        store.get("a", path)
    assert path.read_text() == "the old one" and [each.name for each in path.parent.iterdir()] == ["a"]


def test_two_versions_of_an_object_are_never_mixed(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_CHUNK_BYTES", 4)
    copied = store._copy
    versions: list[bytes | None] = [b"bbbbbbbb", b"cccc", b"dddddddddddd"]
    store.put("a", b"aaaaaaaa")

    def replace(by: bytes | None) -> None:
        if by is None:
            store.delete("a")
        else:
            store.put("a", by)

    class Slow(io.BytesIO):
        """While its first bytes are written, someone replaces the object."""

        def __init__(self, target: io.BytesIO) -> None:
            self._target = target

        def write(self, chunk: bytes) -> int:  # type: ignore[override]
            if versions:
                replace(versions.pop(0))
            return self._target.write(chunk)

        def seek(self, at: int, whence: int = 0) -> int:
            return self._target.seek(at, whence)

        def tell(self) -> int:
            return self._target.tell()

        def truncate(self, size: int | None = None) -> int:
            return self._target.truncate(size)

    monkeypatch.setattr(store, "_copy", lambda key, target: copied(key, Slow(target)))
    path = tmp_path / "a"
    assert store.get("a", path) and path.read_bytes() == b"dddddddddddd" and not versions
    versions[:] = [b"eeeeeeee", b"ffff"]
    assert store.read("a") == b"ffff"
    versions[:] = [None]
    assert store.read("a") is None
    store.put("a", b"gggggggg")
    versions[:] = [bytes([n]) for n in range(9)]
    with pytest.raises(Unavailable, match=r"store/a was replaced 5 times"):
        store.get("a", path)
    assert path.read_bytes() == b"dddddddddddd"


# -- uploads that end early


class Relay:
    """Passes the bytes of connections on to the server. `seen` is set once a request holds `at`; then nothing more passes,
    and if `breaks`, the connection ends.
    """

    def __init__(self, server: str, at: bytes, *, breaks: bool) -> None:
        self._server, self._at, self._breaks = server.split(":"), at, breaks
        self.seen = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open = list[socket.socket]()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection((self._server[0], int(self._server[1])))
                self._open += [client, server]
                threading.Thread(target=self._pass, args=(client, server, self._at), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, None), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, at: bytes | None) -> None:
        last = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if at is not None and at in last + data:
                    self.seen.set()
                    if not self._breaks:
                        return
                    break
                last = data[-len(at or b"") :]
                target.sendall(data)
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (self._listening, *self._open):
            # a thread that waits for bytes keeps what is only closed
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def relay(endpoint: str) -> Iterator[Callable[..., Relay]]:
    made = list[Relay]()

    def make(at: bytes, *, breaks: bool) -> Relay:
        made.append(Relay(endpoint, at, breaks=breaks))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("part", [1, 2, 3])
def test_of_an_upload_that_fails_nothing_appears(
    store: ObjectStore, host: Host, relay: Callable[..., Relay], part: int
) -> None:
    way = relay(f"partNumber={part}".encode(), breaks=True)
    through = store_of(host("through", endpoint_override=way.address))
    through.put("small", b"arrives")
    for before in (None, b"the old one"):
        if before is not None:
            store.put("a", before)
        with pytest.raises(Unavailable, match=f"can't be reached at {way.address}"):
            through.put("a", LARGE)
        gc.collect()
        assert way.seen.is_set() and store.read("a") == before
    assert store.read("small") == b"arrives"


def test_of_an_upload_that_is_interrupted_nothing_appears(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_CHUNK_BYTES", 12 << 20)
    path, over = tmp_path / "file", threading.Event()
    path.write_bytes(LARGE)
    over.set()
    with pytest.raises(SwitchyardError, match="interrupted"):
        store._put("a", path, over)
    gc.collect()
    assert store.read("a") is None


class Broken(io.RawIOBase):
    """A file on a disk that fails after 12 MiB."""

    def __init__(self) -> None:
        self._left = [b"x" * (12 << 20)]

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            raise OSError(5, "Input/output error")
        return self._left.pop()


def test_of_a_file_that_can_t_be_read_to_its_end_nothing_appears(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects.io, "BytesIO", lambda data: Broken())
    with pytest.raises(SwitchyardError, match=r"can't be read or written: .*Input/output error"):
        store.put("a", b"")
    monkeypatch.undo()
    gc.collect()
    assert store.read("a") is None


KILLED = """
import sys
from pathlib import Path
from pipelines.objects import object_store
from pipelines.settings import Settings
object_store(Settings()).put("a", Path(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_of_an_upload_whose_process_is_ended_nothing_appears(
    store: ObjectStore, host: Host, relay: Callable[..., Relay], tmp_path: Path, number: signal.Signals
) -> None:
    way = relay(b"partNumber=2", breaks=False)
    settings = host("killed", endpoint_override=way.address)
    (tmp_path / "file").write_bytes(LARGE)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "file")]
    with subprocess.Popen(command, env=settings.child_environment(), stderr=subprocess.DEVNULL) as child:
        assert way.seen.wait(WITHIN_S)
        child.send_signal(number)
        # one that is interrupted still tries to send the part
        way.close()
        assert child.wait(WITHIN_S) != 0
    assert store.read("a") is None and store.list("") == {}


# -- a bucket that isn't there


def calls(store: ObjectStore, folder: Path) -> list[Callable[[], object]]:
    return [
        lambda: store.put("a", b"1"),
        lambda: store.get("a", folder / "a"),
        lambda: store.read("a"),
        lambda: store.holds("a"),
        lambda: store.list("a"),
        lambda: store.delete("a"),
        lambda: store.delete_all("a"),
    ]


def test_an_endpoint_that_nobody_has_is_named_within_seconds(host: Host, silent: str, tmp_path: Path) -> None:
    for call in calls(store_of(host("one", endpoint_override=silent)), tmp_path):
        began = time.monotonic()
        with pytest.raises(Unavailable, match=f"can't be reached at {silent}") as caught:
            call()
        assert time.monotonic() - began < 20 and "endpoint_override" in caught.value.fix


def test_an_endpoint_that_says_nothing_is_named_after_a_while(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_ANSWER_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        store = store_of(host("one", endpoint_override=f"127.0.0.1:{mute.getsockname()[1]}"))
        with pytest.raises(Unavailable, match="Timeout"):
            store.read("a")


def test_a_bucket_that_does_not_exist_is_not_an_empty_one(host: Host, bucket: str, tmp_path: Path) -> None:
    settings = host("one").model_copy(update={"store_url": "s3://no-such-bucket/a"})
    for call in calls(store_of(settings), tmp_path):
        with pytest.raises(Refused, match="there is no bucket no-such-bucket at 127") as caught:
            call()
        assert "SWITCHYARD_STORE_URL" in caught.value.fix


class Answers(BaseHTTPRequestHandler):
    """Answers each request with the status and the error that the name of the bucket says: /403-AccessDenied/..."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, kind = self.path.split("/")[1].split("?")[0].split("-")
        text = f"<?xml version='1.0'?><Error><Code>{kind}</Code><Message>no</Message></Error>".encode()
        self.send_response(int(status))
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def answering() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "kind", "said", "fix"),
    [
        ("403-AccessDenied", Refused, "refuses access", "SWITCHYARD_STORE"),
        ("403-InvalidAccessKeyId", Refused, "refuses access", "access_key"),
        ("403-SignatureDoesNotMatch", Refused, "refuses access", "secret_key"),
        ("301-PermanentRedirect", Refused, "does not take requests", "region"),
        ("400-AuthorizationHeaderMalformed", Refused, "does not take requests", "region"),
        ("500-InternalError", Unavailable, "can't be reached", "endpoint_override"),
        ("503-SlowDown", Unavailable, "can't be reached", "endpoint_override"),
    ],
)
def test_a_refusal_is_no_outage(
    host: Host,
    answering: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    kind: type[SwitchyardError],
    said: str,
    fix: str,
) -> None:
    monkeypatch.setattr(objects, "_ATTEMPTS", 1)
    settings = host("one", endpoint_override=answering).model_copy(update={"store_url": f"s3://{answer}/a"})
    for call in calls(store_of(settings), tmp_path):
        with pytest.raises(kind, match=said) as caught:
            call()
        assert fix in caught.value.fix and "planted" not in str(caught.value)
    assert not list(tmp_path.rglob("a"))


class Full(io.BytesIO):
    """A file on a disk without room."""

    def write(self, chunk: bytes) -> int:  # type: ignore[override]
        raise OSError(28, "No space left on device")


def test_a_disk_that_is_full_is_not_the_bucket_s_fault(store: ObjectStore) -> None:
    store.put("a", LARGE)
    with pytest.raises(SwitchyardError, match=r"can't be read or written: .*No space left") as caught:
        store._copy("a", Full())
    assert not caught.value.retryable


def test_a_command_that_needs_no_bucket_does_not_load_its_client() -> None:
    program = (
        "import sys, orchestration.cli, pipelines.objects, pipelines.engine.code; sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=WITHIN_S).returncode == 0
