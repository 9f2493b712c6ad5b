"""Dagster's web server and the pages of other sites: they can neither act nor read, whatever a browser sends for them."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from orchestration.defs.guarded import OwnPages, guarded, why_not
from orchestration.local.data_docs import names_of
from pipelines.settings import Settings
from tests.shared.ports import port_of

NAMES = names_of(Settings(data_docs_url="https://switchyard.example.com/data-docs"))
HERE, PROXY = "127.0.0.1:3000", "switchyard.example.com"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        # a program, such as curl, says nothing of a page
        ("/graphql", {"host": HERE}),
        ("/graphql", {"host": "localhost:3001", "origin": "http://localhost:3001", "sec-fetch-site": "same-origin"}),
        ("/graphql", {"host": HERE, "sec-fetch-site": "none"}),
        ("/graphql", {"host": PROXY, "origin": f"https://{PROXY}", "sec-fetch-site": "same-origin"}),
        # a proxy that doesn't pass its name on
        ("/graphql", {"host": HERE, "origin": f"https://{PROXY}", "sec-fetch-site": "same-origin"}),
        # a link from a chat to a run
        ("/runs/1", {"host": HERE, "sec-fetch-site": "cross-site"}),
    ],
)
def test_its_own_pages_and_programs_may(path: str, headers: dict[str, str]) -> None:
    assert why_not(path, headers, NAMES) is None


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/graphql", {"host": HERE, "sec-fetch-site": "cross-site"}),
        ("/graphql", {"host": HERE, "sec-fetch-site": "same-site"}),
        ("/graphql", {"host": HERE, "origin": "http://evil.example"}),
        # another program's page on this machine
        ("/graphql", {"host": HERE, "origin": "http://127.0.0.1:8888"}),
        # a page in a sandbox, as those of the Data Docs are
        ("/graphql", {"host": HERE, "origin": "null"}),
        ("/report_asset_materialization/x", {"host": HERE, "sec-fetch-site": "cross-site"}),
        # a name that leads to this machine
        (
            "/graphql",
            {"host": "evil.example:3000", "origin": "http://evil.example:3000", "sec-fetch-site": "same-origin"},
        ),
        ("/logs/1", {"host": "evil.example"}),
        ("/logs/1", {"host": "[::"}),
        ("/logs/1", {}),
    ],
)
def test_pages_of_other_sites_may_not(path: str, headers: dict[str, str]) -> None:
    assert why_not(path, headers, NAMES) is not None


def test_a_refusal_of_a_name_tells_the_setting_and_fits_into_a_closed_websocket() -> None:
    said = why_not("/graphql", {"host": "evil.example"}, NAMES)
    assert said is not None and "SWITCHYARD_DATA_DOCS_URL" in said and len(said.encode()) <= 123


@pytest.mark.parametrize(("origin", "passed"), [("http://127.0.0.1:3000", True), ("http://evil.example", False)])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_websocket_is_refused_as_a_request_is(kind: str, origin: str, passed: bool) -> None:
    reached, sent = list[str](), list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["type"])

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "path": "/graphql", "headers": [(b"Host", HERE.encode()), (b"Origin", origin.encode())]}
    asyncio.run(OwnPages(app, NAMES)(scope, receive, send))
    assert bool(reached) is passed and bool(sent) is not passed
    if sent:
        assert sent[0].get("status") == 403 or sent[0]["type"] == "websocket.close"


def test_dagster_dev_starts_the_server_by_the_command_that_is_replaced() -> None:
    from dagster._cli import dev

    assert '[sys.executable, "-m", "dagster_webserver"]' in inspect.getsource(dev)
    assert guarded(["python", "-m", "dagster_webserver", "--port", "1"]) == [
        "python", "-P", "-m", "orchestration.defs.guarded", "webserver", "--port", "1",
    ]  # fmt: skip
    other = ["python", "-m", "dagster._daemon", "run"]
    assert guarded(other) == other


@pytest.mark.long
def test_a_link_on_another_site_changes_nothing(tmp_path: Path) -> None:
    port = port_of("guarded web server")
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    (tmp_path / "dagster.yaml").touch()
    url = f"http://127.0.0.1:{port}/graphql?{urllib.parse.urlencode({'query': 'mutation { setNuxSeen }'})}"

    def asked(**headers: str) -> str:
        """The answer, or the status of a refusal."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, headers={"Accept": "image/*", **sent}), timeout=60
            ) as said:
                return str(said.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.code)

    command = [sys.executable, "-m", "orchestration.defs.guarded", "webserver", "-h", "127.0.0.1", "-p", str(port), "--empty-workspace"]  # fmt: skip
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    answer = asked()
                    break
                except OSError:
                    assert server.poll() is None and time.monotonic() < deadline
                    time.sleep(0.2)
            # a program may
            assert answer == '{"data":{"setNuxSeen":true}}'
            assert asked(Sec_Fetch_Site="cross-site") == "403"
            assert asked(Origin="http://evil.example") == "403"
            assert asked(Host="evil.example") == "403"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)
