"""Shows the Data Docs of checks in a browser: a small server of static pages, because Dagster's server has no files."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from pipelines.errors import SwitchyardError
from pipelines.objects import fetch, object_store, publish
from pipelines.paths import below
from pipelines.settings import Settings

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
# by these names a browser on this machine, or at the other end of a tunnel, asks
LOCAL = frozenset({"127.0.0.1", "localhost"})
# the reason of a closed websocket has room for 123 bytes
OTHER_NAME = (
    "refused: this server does not answer to that host name; set SWITCHYARD_DATA_DOCS_URL to the proxy's address"
)
_INDEX = "index.html"
_HEADERS = {
    # the pages quote records: were a tag ever to get through, it could ask nobody and read nothing
    "Content-Security-Policy": "sandbox allow-scripts allow-popups; connect-src 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # a page can be written again under the same name, for example the index
    "Cache-Control": "no-cache",
}


def folder_of(settings: Settings) -> Path:
    """The folder of the Data Docs. Raises SwitchyardError if a link leads out of the store."""
    return below(settings.store_dir, "data-docs")


@contextmanager
def in_store(settings: Settings) -> Iterator[None]:
    """Around what adds pages: fetches those of other hosts first, which the index lists, too, and publishes what was added
    or replaced. Does nothing if the store is a folder. Raises as `ObjectStore` does.

    Two checks at once on two hosts leave an index without one of the two pages, until the next check.
    """
    store = object_store(settings)
    if store is None:
        yield
        return
    folder = folder_of(settings)
    known = store.list(folder.name)
    for key in known:
        fetch(settings, folder.parent / key)
    before = _times(folder)
    yield
    changed = [p for p, at in _times(folder).items() if before.get(p) != at or _key(folder, p) not in known]
    # the index last: what it leads to is there then
    for path in sorted(changed, key=lambda path: (path.name == _INDEX, path)):
        publish(settings, path)


def _times(folder: Path) -> dict[Path, int]:
    """Each page, and when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def _key(folder: Path, path: Path) -> str:
    return path.relative_to(folder.parent).as_posix()


def url_of(settings: Settings, page: Path) -> str | None:
    """Where a browser finds `page`, a file of the Data Docs. None if the file is not in this store, or if no
    server shows it.
    """
    base = settings.data_docs_url or (settings.data_docs_port and f"http://{_HOST}:{settings.data_docs_port}")
    try:
        below_folder = page.relative_to(settings.store_dir.resolve() / "data-docs")
    except ValueError:
        return None
    return f"{base.rstrip('/')}/{quote(below_folder.as_posix())}" if base else None


def names_of(settings: Settings) -> frozenset[str]:
    """The names of hosts by which browsers may ask: those of this machine, and that of `data_docs_url`."""
    url = urlsplit(settings.data_docs_url or "")
    return LOCAL | ({url.hostname} if url.hostname else set())


class _Pages(SimpleHTTPRequestHandler):
    """GET and HEAD of files in one folder; no listing, nothing outside of it."""

    server_version = "switchyard"
    sys_version = ""

    def __init__(
        self, *arguments: object, names: frozenset[str], newest: Callable[[Path], object], **options: object
    ) -> None:
        self._names, self._newest = names, newest
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def send_head(self):  # type: ignore[no-untyped-def]
        # a name of another site that leads to this address: its page would read ours (DNS rebinding)
        if urlsplit(f"//{self.headers.get('Host', '')}").hostname not in self._names:
            self.send_error(HTTPStatus.FORBIDDEN, OTHER_NAME)
            return None
        asked = unquote(urlsplit(self.path).path)
        root = Path(self.directory).resolve()
        try:
            found = Path(self.translate_path(self.path)).resolve()
        except (OSError, ValueError):
            found = root
        if asked.endswith("/"):
            found /= _INDEX
        if found.is_relative_to(root):
            try:
                self._newest(found)
            except SwitchyardError as error:
                # then the copy of this host, if there is one
                log.warning("can't fetch a page of the Data Docs: %s", error.in_one_line)
        if not found.is_relative_to(root) or not found.is_file():
            self.send_error(HTTPStatus.NOT_FOUND, "no such page")
            return None
        return super().send_head()

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the person who started the server is the one who reads the pages."""


def server_of(settings: Settings, port: int) -> ThreadingHTTPServer:
    """A server of the Data Docs on `port` of this machine (0: a free one), not serving yet. Raises OSError if the port
    is busy.
    """
    newest = partial(fetch, settings, newest=True)
    handler = partial(_Pages, directory=str(folder_of(settings)), names=names_of(settings), newest=newest)
    return ThreadingHTTPServer((_HOST, port), handler)


def serve_beside(settings: Settings, parent: int, *, look_s: float = 1.0) -> None:
    """Serves on the port of the settings for as long as `parent` is this process's parent.

    Waits for the port while it is busy. The UI of operators and that of readers each have such a server, and the one
    that remains works for both.
    """
    over = threading.Event()
    while os.getppid() == parent:
        try:
            server = server_of(settings, settings.data_docs_port)
        except OSError:
            over.wait(look_s)
            continue
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": look_s}, daemon=True)
        thread.start()
        while os.getppid() == parent and not over.wait(look_s):
            pass
        server.shutdown()
        server.server_close()
