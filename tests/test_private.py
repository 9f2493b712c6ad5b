"""What others on the machine can read or reach: files, and ports."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestration import cli
from orchestration.launchers import local
from orchestration.launchers.local import LocalLauncher
from orchestration.local import server_config, ui
from orchestration.local.broker import EmbeddedBroker
from pipelines.engine import start
from pipelines.engine.code import freeze, store
from pipelines.engine.spark_conf import session_conf
from pipelines.private import private
from pipelines.settings import Settings, get_settings
from tests.shared.sockets import is_local, listening

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """As a shell has it: what a process makes, others may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_a_state_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    assert mode(private(tmp_path / "above" / "state")) == "0o700"


def test_one_of_an_older_version_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "state" / "checkpoints").mkdir(parents=True)
    assert mode(tmp_path / "state") == "0o755"
    assert mode(private(tmp_path / "state")) == "0o700"


def test_a_folder_with_something_else_in_it_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "home" / "letters").mkdir(parents=True)
    assert mode(private(tmp_path / "home")) == "0o755"
    assert "run chmod 700 on it" in caplog.text and str(tmp_path / "home") in caplog.text


def test_the_state_folder_is_private_whoever_creates_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setattr(local.subprocess, "Popen", lambda _, **how: started.update(how))
    of_driver, of_code, of_broker = (Settings(state_dir=tmp_path / name) for name in ("driver", "code", "broker"))
    LocalLauncher(of_driver).spawn("a.v1")
    store(of_code, freeze(ROOT / "pipelines" / "apps"))
    with EmbeddedBroker(of_broker)._locked():
        pass
    for settings in (of_driver, of_code, of_broker):
        assert mode(settings.state_dir) == "0o700"
    # and all that a driver writes
    assert started["umask"] == 0o077
    assert session_conf(of_driver, heap_mb=512, cores=1)["spark.hadoop.fs.permissions.umask-mode"] == "077"


@pytest.mark.parametrize("main", [lambda: cli.main(), lambda: start.main(["--help"])], ids=["command", "driver"])
def test_a_process_makes_files_for_its_user_alone(
    main: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["switchyard", "--version"])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        main()
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert (mode(tmp_path / "file"), mode(tmp_path / "folder")) == ("0o600", "0o700")


# -- ports


def test_where_a_process_listens_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("0.0.0.0", 0)) as anywhere:
        found = listening(os.getpid())
        for server, expected in ((here, True), (anywhere, False)):
            address, port = server.getsockname()
            assert (address, port) in found and is_local(address) is expected
    with socket.create_server(("::", 0), family=socket.AF_INET6) as anywhere:
        assert ("::", anywhere.getsockname()[1]) in listening(os.getpid()) and not is_local("::") and is_local("::1")


def test_the_broker_is_told_to_listen_here_alone(tmp_path: Path) -> None:
    text = server_config.write(tmp_path, data=tmp_path / "data", log=tmp_path / "log", port=19092).read_text()
    found = re.findall(r"[A-Z]+://([^:,]*):\d+", text)
    assert len(found) == 3 and all(is_local(address) for address in found)


def test_spark_is_told_to_listen_here_alone() -> None:
    conf = session_conf(Settings(spark_ui_port=4040), heap_mb=512, cores=1)
    assert conf["spark.ui.killEnabled"] == "false"
    assert is_local(conf["spark.driver.bindAddress"]) and is_local(conf["spark.driver.host"])


@pytest.mark.parametrize(
    ("given", "program"),
    [([], "dev"), (["READ_ONLY=0"], "dev"), (["READ_ONLY=1"], "webserver --read-only")],
)
def test_the_ui_listens_here_alone_and_can_be_read_only(
    given: list[str], program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        # nothing is older than the set-up: only the recipe itself is shown
        ["make", "-n", "ui", "UI_PORT=3999", *given], cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    [started] = [line for line in done.stdout.replace("\\\n", " ").splitlines() if "exec" in line]
    _, found, *options = started.partition("exec .venv/bin/switchyard ui ")
    assert found

    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path / "state"))
    get_settings.cache_clear()
    begun: list[list[str]] = []
    monkeypatch.setattr(ui, "limit", lambda environment, pool, runs: None)
    monkeypatch.setattr(ui.subprocess, "Popen", lambda command, **_: begun.append(command))
    monkeypatch.setattr(ui.os, "execve", lambda path, command, environment: begun.append([path, *command[1:]]))
    monkeypatch.setattr(ui, "check_port", lambda port, option: None)
    assert cli.run(["ui", *"".join(options).split()]) == 0
    get_settings.cache_clear()
    docs, dagster = begun
    assert docs[1:] == ["-P", "-m", "orchestration.cli", "data-docs", "--beside", str(os.getpid())]
    assert " ".join(dagster).endswith(
        f" -m orchestration.defs.guarded {program} -w {ui._WORKSPACE} -h 127.0.0.1 -p 3999"
    )
    assert mode(tmp_path / "state") == "0o700" and mode(tmp_path / "state" / "dagster" / "dagster.yaml") == "0o600"
    # and what Dagster writes
    assert os.umask(0o077) == 0o077
