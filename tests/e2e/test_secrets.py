"""Plants secrets in an operator's settings and environment, then searches what commands, a driver and Dagster leave."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from demo.ledger.reader import read
from orchestration.local.process import ProcessRef
from pipelines import secrets
from pipelines.kafka.client import producer
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import INPUT, ensure_topic, topic_names
from pipelines.settings import Settings
from tests.shared.terminal import Terminal
from tests.shared.threads import Threads
from tests.shared.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
NAME, LINES = "tell.v1", "lines-of-tell"
# without a login, both clients accept them and use none
KAFKA = {"sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": "planted-password",
         "ssl.key.password": "planted-passphrase"}  # fmt: skip
SPARK = {"spark.hadoop.fs.s3a.secret.key": "planted-store-key"}
ENVIRONMENT = {"AWS_SECRET_ACCESS_KEY": "planted-cloud-key", "SWITCHYARD_ALERT_WEBHOOK": "http://127.0.0.1:9/planted-hook",
               "DATABASE_URL": "postgresql://planted-database", "GITHUB_TOKEN": "planted-token"}  # fmt: skip
APP = f'''
from __future__ import annotations

import json
import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Stream, Text, app

AT_IMPORT = dict(os.environ)


def told(line: str) -> str:
    """What a Python worker has, and what started it."""
    return json.dumps([dict(os.environ), Path(f"/proc/{{os.getppid()}}/environ").read_bytes().decode(errors="replace")])


@app(name="tell", inputs={{"lines": Stream(topic="{LINES}", value=Text("line"))}}, result=AppendStream(key=("line",), partitions=1))
def tell(lines: DataFrame, settings: AppSettings) -> DataFrame:
    own = json.dumps([AT_IMPORT, dict(os.environ)])
    return lines.select("line", F.udf(told)("line").alias("worker"), F.lit(own).alias("driver"))
'''


class Operator:
    """An operator with secrets in its environment. It runs commands and keeps their output."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder, self.said = settings, folder, ""
        self.home = folder / "dagster"
        self.home.mkdir()
        shown = {"DAGSTER_HOME": str(self.home), "DAGSTER_DISABLE_TELEMETRY": "yes", "COLUMNS": "200"}
        self.environment = {**settings.child_environment(), **ENVIRONMENT, **shown}

    def run(self, *command: str, cwd: Path, **changes: str) -> int:
        done = subprocess.run(
            [sys.executable, *command], env={**self.environment, **changes}, cwd=cwd, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        self.said += done.stdout
        return done.returncode

    def switchyard(self, *arguments: str, **changes: str) -> int:
        """Runs a command as a process."""
        return self.run("-m", "orchestration.cli", *arguments, cwd=self.folder, **changes)

    def ask(self, *arguments: str) -> int:
        """Runs a command that only shows something in this process, with the same environment."""
        # as in a new process: the command has to find out itself what is secret
        secrets._known.clear()
        secrets._pattern = None
        said = Terminal(self.settings, self.folder, Threads(self.settings)).run(*arguments, **self.environment)
        self.said += said.text
        return said.code

    def dagster(self, job: str, **changes: str) -> int:
        """Runs a job as a process of Dagster's own."""
        load = ["-m", "orchestration.definitions", "-a", "defs"]
        return self.run("-m", "dagster", "job", "execute", *load, "-j", job, cwd=ROOT, **changes)


@pytest.fixture
def operator(broker: Settings, tmp_path: Path) -> Iterator[Operator]:
    changes: dict[str, Any] = {
        # its state is in a folder of its own, so the broker is not part of it
        "bootstrap_servers": broker.bootstrap, "state_dir": tmp_path / "state", "kafka": KAFKA,
        "driver_heap_mb": 512, "trigger_s": 0.25, "heartbeat_s": 0.5, "boot_timeout_s": 300,
        "spark": {**SPARK, "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"},
    }  # fmt: skip
    settings = Settings(**{**broker.model_dump(), **changes})
    ensure_topic(settings, LINES, 1, INPUT)
    client = producer(settings, linger_ms=0)
    client.produce(LINES, b"one line")
    assert client.flush(30) == 0
    yield Operator(settings, tmp_path)
    with Registry(settings) as registry:
        release = registry.state().releases.get(NAME)
    if release is not None and release.lease is not None and not release.lease_ended:
        driver = ProcessRef.of(release.lease.holder.pid)
        if driver is not None:
            driver.terminate(20)


def planted(text: bytes) -> list[str]:
    """The secrets in a text. They all start with the same word, which nothing else contains."""
    return [text[at - 40 : at + 40].decode(errors="replace") for at in _places(text, b"planted-")]


def _places(text: bytes, word: bytes) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, without itself."""
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return found + [below for child in found for below in descendants(child)]


def hold_nothing(pids: list[int]) -> int:
    """Looks for secrets in the arguments and environments of these processes. Returns how many of these it could read."""
    looked = 0
    for pid in pids:
        # a worker may just end; the JVM stays
        with suppress(FileNotFoundError, ProcessLookupError):
            for name in ("cmdline", "environ"):
                found = Path(f"/proc/{pid}/{name}").read_bytes()
                assert planted(found) == [], (pid, name)
                looked += bool(found)
    return looked


def test_planted_secrets_appear_nowhere(operator: Operator) -> None:
    settings = operator.settings
    (operator.folder / "apps").mkdir()
    (operator.folder / "apps" / "tell.py").write_text(APP)
    # it prints the plan, too
    stage = ("stage", "tell", "--version", "1", "--from", "apps", "--execute")
    assert operator.switchyard(*stage) == 0, operator.said
    assert operator.switchyard("start", NAME, "--execute") == 0, operator.said
    log = settings.state_dir / "logs" / f"{NAME}.log"
    result = f"{NAME}.g1"
    records = until(
        "no result", lambda: list(read(settings.bootstrap, result)) if result in topic_names(settings) else [], 240
    )

    # the app's environment at import, in the driver and in a worker: what it needs, and no secret
    row = json.loads(records[0].value or b"")
    assert planted(records[0].value or b"") == []
    at_import, in_driver = json.loads(row["driver"])
    in_worker, above = json.loads(row["worker"])
    assert all("PATH" in environment for environment in (at_import, in_driver, in_worker))
    assert "PATH=" in above

    # processes: only the driver has its login, in its environment; none has a secret in its arguments
    with Registry(settings) as registry:
        lease = registry.state().releases[NAME].lease
    assert lease is not None
    assert planted(Path(f"/proc/{lease.holder.pid}/cmdline").read_bytes()) == []
    assert hold_nothing(descendants(lease.holder.pid)) >= 2

    # commands, and their errors
    for arguments in (["status", NAME], ["status", "--json"], ["log"], ["log", "--json"], ["operations"]):
        assert operator.ask(*arguments) == 0, operator.said
    wrong = {"SWITCHYARD_KAFKA": '{"sasl.password": ["planted-list"]}'}
    assert operator.switchyard("status", **wrong) == 2
    assert operator.switchyard("stop", NAME, "--execute") == 0, operator.said

    # Dagster: a run that works, and one that fails because of the settings
    assert operator.dagster("janitor") == 0, operator.said
    assert operator.dagster("janitor", **wrong) != 0
    events = [path for path in operator.home.rglob("*") if path.is_file()]
    assert any(b"janitor" in path.read_bytes() for path in events)

    assert planted(operator.said.encode()) == []
    assert log.stat().st_size > 0
    for path in operator.folder.rglob("*"):
        if path.is_file():
            assert planted(path.read_bytes()) == [], path
    # others can't even read what drivers and commands have written
    for path in (settings.state_dir, *settings.state_dir.rglob("*")):
        assert path.is_symlink() or not path.stat().st_mode & 0o077, path
    for topic in topic_names(settings):
        for record in read(settings.bootstrap, topic):
            assert planted((record.key or b"") + (record.value or b"")) == [], (topic, record.offset)
