"""The server of the Data Docs: what a browser gets, and what nobody gets."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestration.local.data_docs import server_of, url_of
from orchestration.local.process import ProcessRef
from pipelines.settings import Settings
from tests.shared.ports import port_of
from tests.shared.waiting import until

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A state folder with two pages and, beside the pages, what no browser gets."""
    docs = tmp_path / "state" / "data-docs"
    (docs / "validations" / "sums" / "sums.v1.g1").mkdir(parents=True)
    (docs / "index.html").write_text("all pages")
    (docs / "validations" / "sums" / "sums.v1.g1" / "a page#1.html").write_text("one page")
    (tmp_path / "state" / "secret").write_text("a secret")
    (docs / "link.html").symlink_to(tmp_path / "state" / "secret")
    return Settings(state_dir=tmp_path / "state", data_docs_port=port_of("data docs"))


@pytest.fixture
def server(settings: Settings) -> Iterator[ThreadingHTTPServer]:
    with server_of(settings, 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def get(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str, http.client.HTTPMessage]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    try:
        client.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = client.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        client.close()


def test_the_address_of_a_page_leads_to_it(settings: Settings, server: ThreadingHTTPServer) -> None:
    page = settings.state_dir.resolve() / "data-docs" / "validations" / "sums" / "sums.v1.g1" / "a page#1.html"
    url = url_of(settings.model_copy(update={"data_docs_port": server.server_port}), page)
    assert url is not None and url.startswith(f"http://127.0.0.1:{server.server_port}/")
    status, text, headers = get(server.server_port, url.removeprefix(f"http://127.0.0.1:{server.server_port}"))
    assert (status, text) == (200, "one page")
    # of what a record might bring into a page, nothing can act as this server or send anything
    assert headers["Content-Security-Policy"].startswith("sandbox ")
    assert get(server.server_port, "/")[:2] == (200, "all pages")


@pytest.mark.parametrize(
    "path",
    ["/validations/", "/validations", "/link.html", "/../secret", "/%2e%2e/secret", "//etc/passwd", "/none", "/%00"],
)
def test_nothing_else_is_served(server: ThreadingHTTPServer, path: str) -> None:
    assert get(server.server_port, path)[0] == 404


def test_nothing_can_be_changed(server: ThreadingHTTPServer) -> None:
    assert {get(server.server_port, "/index.html", method=method)[0] for method in ("POST", "PUT", "DELETE")} == {501}


def test_a_page_of_another_site_can_not_read_by_a_name_of_its_own(
    settings: Settings, server: ThreadingHTTPServer
) -> None:
    assert get(server.server_port, "/", "evil.example.com")[0] == 403
    assert get(server.server_port, "/", "localhost:1234")[0] == 200


def test_a_proxy_gives_the_address(settings: Settings) -> None:
    behind = settings.model_copy(update={"data_docs_url": "https://switchyard.example.com/data-docs/"})
    page = settings.state_dir.resolve() / "data-docs" / "index.html"
    assert url_of(behind, page) == "https://switchyard.example.com/data-docs/index.html"
    assert url_of(behind, Path("/elsewhere/data-docs/index.html")) is None
    assert url_of(settings.model_copy(update={"data_docs_port": 0}), page) is None
    with server_of(behind, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        assert get(server.server_port, "/", "switchyard.example.com")[0] == 200
        server.shutdown()
        thread.join()


# starts the server as `switchyard ui` does, says which process it is, and waits
PARENT = """
import os, subprocess, sys
server = subprocess.Popen([sys.executable, "-m", "orchestration.cli", "data-docs", "--beside", str(os.getpid())])
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_it_lives_as_long_as_what_started_it_and_waits_for_its_port(settings: Settings) -> None:
    port = settings.data_docs_port
    environment = {**os.environ, **settings.environment(), "PYTHONPATH": str(ROOT)}

    def answers() -> bool:
        try:
            return get(port, "/")[:2] == (200, "all pages")
        except ConnectionError:
            return False

    def start() -> tuple[subprocess.Popen[str], ProcessRef]:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert parent.stdout is not None
        server = ProcessRef.of(int(parent.stdout.readline()))
        assert server is not None
        return parent, server

    first, one = start()
    with first:
        until("no pages come", answers, WITHIN_S)
        second, other = start()
        with second:
            # whatever ends the first
            first.kill()
            until("the first server lives on", lambda: not one.alive(), WITHIN_S)
            until("no pages come from the second server", answers, WITHIN_S)
            assert other.alive()
            second.kill()
            until("the second server lives on", lambda: not other.alive(), WITHIN_S)
            assert not answers()
