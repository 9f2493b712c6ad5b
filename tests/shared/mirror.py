"""A mirror of packages or jars on this machine, which is a proxy, too: it answers for every host, and notes what it is
asked.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@dataclass(kw_only=True)
class Mirror:
    """`files`: path -> content. `login`, `proxy_login`: what it asks for as a mirror, and as a proxy. `asked`: the hosts
    that it was asked for as a proxy, and for which the login was right; a mirror's own paths.
    """

    files: Mapping[str, bytes]
    login: str | None = None
    proxy_login: str | None = None
    asked: list[str] = field(default_factory=list)
    port: int = 0


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, *arguments: object, mirror: Mirror) -> None:
        self._mirror = mirror
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.netloc and not self._let_in("Proxy-Authorization", self._mirror.proxy_login, 407, "Proxy-Authenticate"):
            return
        if not self._let_in("Authorization", self._mirror.login, 401, "WWW-Authenticate"):
            return
        self._mirror.asked.append(f"{url.netloc}{url.path}")
        content = self._mirror.files.get(url.path)
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", "text/html" if url.path.endswith("/") else "application/octet-stream")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET

    def do_CONNECT(self) -> None:
        """Lets nobody through: that they ask is what a test wants to know."""
        if self._let_in("Proxy-Authorization", self._mirror.proxy_login, 407, "Proxy-Authenticate"):
            self._mirror.asked.append(self.path)
            self.send_error(502)

    def _let_in(self, header: str, wanted: str | None, status: int, ask: str) -> bool:
        if wanted is None or self.headers.get(header) == wanted:
            return True
        self.send_response(status)
        self.send_header(ask, 'Basic realm="tests"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def serving(mirror: Mirror) -> Iterator[Mirror]:
    with ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: _Handler(*a, mirror=mirror)) as server:
        mirror.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield mirror
        finally:
            server.shutdown()
            thread.join()
