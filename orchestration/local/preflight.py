"""Checks what the machine must have before anything is installed. Uses only the standard library and nothing of the
project, so `python3.11 orchestration/local/preflight.py python java disk port=19092` runs without a virtual
environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PYTHON_VERSION = (3, 11)
# Spark 4.0 and Kafka 4.3 were tested with this version
JAVA_VERSION = 17
# packages 2.0 GB, jars 0.2 GB, and room for the broker's first segments
DISK_FREE_GIB = 3.0


class Problem(NamedTuple):
    """What is wrong, and what to do, in one line each."""

    what: str
    fix: str


class Java(NamedTuple):
    """The Java that Spark and the broker use. If none fits, `path` is empty and `problem` is set."""

    path: str
    problem: Problem | None


def check_python(version: tuple[int, int] = (sys.version_info[0], sys.version_info[1])) -> Problem | None:
    """Checks that this is the Python version of the lock file, and that it can create a virtual environment."""
    want = ".".join(map(str, PYTHON_VERSION))
    if version != PYTHON_VERSION:
        got = ".".join(map(str, version))
        return Problem(
            f"this is Python {got}, but Python {want} is needed",
            f"install Python {want} and run `make PYTHON=/path/to/python{want} setup`",
        )
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        return Problem(
            f"Python {want} can't create a virtual environment: its venv module is not installed",
            f"install it (Debian: `apt-get install python{want}-venv`)",
        )
    return None


def find_java(environment: dict[str, str] | None = None) -> Java:
    """The Java of `JAVA_HOME`, or otherwise of the path, as Spark looks for it. Checks its version."""
    env = dict(os.environ if environment is None else environment)
    home = env.get("JAVA_HOME")
    fix = f"install Java {JAVA_VERSION} (Debian: `apt-get install openjdk-{JAVA_VERSION}-jre-headless`)"
    path = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java", path=env.get("PATH", ""))
    if path is None:
        where = f"JAVA_HOME is {home}, but has no bin/java" if home else "there is no `java` on the path"
        return Java("", Problem(f"no Java: {where}", fix + (", or unset JAVA_HOME" if home else "")))
    # these make Java print extra lines, or change its output
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        env.pop(name, None)
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, errors="replace", env=env, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Java("", Problem(f"{path} does not run: {error}", fix))
    major = parse_java_version(done.stderr + done.stdout)
    if major is None:
        said = (done.stderr + done.stdout).strip().splitlines()
        return Java("", Problem(f"{path} does not print its version: {said[0] if said else 'it prints nothing'}", fix))
    if major != JAVA_VERSION:
        return Java(
            "",
            Problem(f"{path} is Java {major}, but Java {JAVA_VERSION} is needed", f"{fix}, and set JAVA_HOME to it"),
        )
    return Java(path, None)


def parse_java_version(text: str) -> int | None:
    """The major version in what `java -version` prints: 8 of "1.8.0_402", 17 of "17.0.15"; None if it has none."""
    found = re.search(r'^\S+ version "(\d+)(?:\.(\d+))?', text, re.MULTILINE)
    if found is None:
        return None
    first, second = int(found[1]), found[2]
    return int(second) if first == 1 and second is not None else first


def check_java() -> Problem | None:
    """Checks that there is a Java of the right version."""
    return find_java().problem


def check_disk(folder: Path = Path("."), free_gib: float = DISK_FREE_GIB) -> Problem | None:
    """Checks that `folder`, or its first parent that exists, has room for the installation."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 2**30
    if free < free_gib:
        return Problem(
            f"only {free:.1f} GiB are free in {folder}, but {free_gib:.1f} GiB are needed",
            "free some disk space, or move the project to a larger disk",
        )
    return None


def check_port(port: int, setting: str = "SWITCHYARD_BROKER_PORT") -> Problem | None:
    """Checks that nothing listens on `port` of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # a port with old connections in TIME_WAIT is free; one with a listener is not
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            owner = listener(port)
            return Problem(
                f"port {port} is busy: {f'process {owner} listens on it' if owner else error.strerror}",
                f"stop that process, or choose another port: {setting}=<port>",
            )
    return None


def listener(port: int, proc: Path = Path("/proc")) -> str | None:
    """The process that listens on a TCP port, as "pid (command)"; None if that can't be seen."""
    found = listening(port, proc)
    if found is None:
        return None
    command = " ".join(found[1])
    return f"{found[0]} ({command if len(command) <= 60 else command[:57] + '...'})"


def listening(port: int, proc: Path = Path("/proc")) -> tuple[int, list[str]] | None:
    """The process that listens on a TCP port: its pid and the words of its command; None if that can't be seen."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = (proc / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in (line.split() for line in rows):
            # 0A: listening
            if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{row[9]}]")
    if not inodes:
        return None
    for folder in proc.glob("[0-9]*"):
        try:
            if any(_target(link) in inodes for link in (folder / "fd").iterdir()):
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                return int(folder.name), command.rstrip("\0").split("\0")
        except OSError:
            continue  # has ended in the meantime, or belongs to another user
    return None


def _target(link: Path) -> str | None:
    """What a link leads to; None if it no longer exists, because a file may be closed while this looks at other files
    of its process.
    """
    try:
        return os.readlink(link)
    except OSError:
        return None


def main(arguments: list[str]) -> int:
    """Runs the checks named by `arguments` and prints every problem. Returns 1 if there is one, 2 for an unknown check."""
    checks: dict[str, Callable[[], Problem | None]] = {
        "python": check_python,
        "java": check_java,
        "disk": check_disk,
    }
    problems = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "port" and value.isdigit():
            problems.append(check_port(int(value)))
        elif name == "ui-port" and value.isdigit():
            problems.append(check_port(int(value), "UI_PORT"))
        elif argument in checks:
            problems.append(checks[argument]())
        else:
            print(
                f"error: unknown check {argument}\n  use one of {', '.join(checks)}, port=<port>, ui-port=<port>",
                file=sys.stderr,
            )
            return 2
    found = [problem for problem in problems if problem is not None]
    for problem in found:
        print(f"error: {problem.what}\n  {problem.fix}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
