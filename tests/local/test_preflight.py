from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration.local import preflight

SCRIPT = preflight.__file__


def fake_java(folder: Path, prints: str) -> dict[str, str]:
    """An environment whose JAVA_HOME holds a Java that prints this to stderr, as a real one does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{prints}\nEND\n")
    java.chmod(0o755)
    return {**os.environ, "JAVA_HOME": str(folder)}


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "17-ea" 2021-09-14', 17),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion="8"\nopenjdk version "17.0.1" 2021-10-19', 17),
        ("no such thing", None),
        ("", None),
    ],
)
def test_java_version_is_read_from_what_java_prints(text: str, major: int | None) -> None:
    assert preflight.parse_java_version(text) == major


def test_a_java_of_the_right_version_is_found(tmp_path: Path) -> None:
    env = fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')
    assert preflight.find_java(env) == preflight.Java(str(tmp_path / "bin" / "java"), None)


def test_java_options_in_the_environment_do_not_hide_the_version(tmp_path: Path) -> None:
    env = fake_java(tmp_path, 'openjdk version "17.0.15"')
    (tmp_path / "bin" / "java").write_text(
        '#!/bin/sh\n[ -z "$JAVA_TOOL_OPTIONS" ] || { echo nonsense >&2; exit 1; }\n'
        "echo 'openjdk version \"17.0.15\"' >&2\n"
    )
    assert preflight.find_java({**env, "JAVA_TOOL_OPTIONS": "-Dx=1"}).problem is None


def test_another_java_is_named_with_what_to_do(tmp_path: Path) -> None:
    found = preflight.find_java(fake_java(tmp_path, 'openjdk version "11.0.2" 2019-01-15'))
    assert found.problem is not None
    assert "is Java 11, but Java 17 is needed" in found.problem.what
    assert "openjdk-17-jre-headless" in found.problem.fix


def test_a_java_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    found = preflight.find_java(fake_java(tmp_path, "Segmentation fault"))
    assert found.problem is not None
    assert "does not print its version: Segmentation fault" in found.problem.what


def test_no_java_at_all(tmp_path: Path) -> None:
    on_path = preflight.find_java({"PATH": str(tmp_path)})
    assert on_path.problem is not None
    assert "no `java` on the path" in on_path.problem.what
    at_home = preflight.find_java({"JAVA_HOME": str(tmp_path)})
    assert at_home.problem is not None
    assert f"JAVA_HOME is {tmp_path}" in at_home.problem.what
    assert "unset JAVA_HOME" in at_home.problem.fix


def test_another_python_is_named_with_what_to_do() -> None:
    assert preflight.check_python((3, 11)) is None
    problem = preflight.check_python((3, 13))
    assert problem is not None
    assert "Python 3.13" in problem.what
    assert "install Python 3.11" in problem.fix


def test_a_full_disk_is_told_by_its_numbers(tmp_path: Path) -> None:
    assert preflight.check_disk(tmp_path / "not" / "there" / "yet", free_gib=0.0) is None
    problem = preflight.check_disk(tmp_path, free_gib=1e9)
    assert problem is not None
    assert "GiB are free" in problem.what
    assert "free some disk" in problem.fix


def test_a_busy_port_names_its_owner_and_the_setting() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert preflight.listener(port) is None
        server.listen()
        problem = preflight.check_port(port)
        assert problem is not None
        assert f"port {port} is busy: process {os.getpid()} (" in problem.what
        assert "SWITCHYARD_BROKER_PORT" in problem.fix
    assert preflight.check_port(port) is None


def test_a_file_that_is_closed_meanwhile_does_not_hide_its_process(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    row = "0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1 0 100 0 0 10 0"
    (tmp_path / "net" / "tcp").write_text(f"header\n{row}\n")
    folder = tmp_path / "42" / "fd"
    folder.mkdir(parents=True)
    # no links any more by the time they are read; some of them come first, in whatever order the folder is listed
    for closed in range(50):
        (folder / str(closed)).write_text("")
    (folder / "50").symlink_to("socket:[77]")
    (tmp_path / "42" / "cmdline").write_bytes(b"serve\0--here\0")
    assert preflight.listening(0x1F90, tmp_path) == (42, ["serve", "--here"])


def test_the_script_runs_by_itself_and_tells_every_problem(tmp_path: Path) -> None:
    env = fake_java(tmp_path, 'openjdk version "11.0.2"')
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        done = subprocess.run(
            # -S: no installed package can be imported, as before `make setup`
            [sys.executable, "-S", SCRIPT, "python", "java", f"port={port}"],
            capture_output=True,
            text=True,
            env=env,
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 2
    assert "Java 11" in done.stderr
    assert f"port {port} is busy" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_check_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight.main(["nonsense"]) == 2
    assert "unknown check nonsense" in capsys.readouterr().err
