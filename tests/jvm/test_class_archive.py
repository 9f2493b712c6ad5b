"""The archives of classes save time and memory. Nothing depends on them: a failure is said, and leaves its logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException

import pipelines.engine.jvm.jars
from orchestration.jvm import class_archive
from orchestration.local.broker import EmbeddedBroker
from orchestration.local.ports import claim
from orchestration.local.server_config import ports
from orchestration.sources import Faults, Options
from pipelines.engine.jvm.jars import broker_archive
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# where Java maps an archive that it doesn't move: SharedBaseAddress, by default 32 GiB (`java -XX:+PrintFlagsFinal`)
WRITTEN_FOR, GIB = 32 << 30, 1 << 30
FAILURES = [
    SwitchyardError("port 19132 is busy", "end that process"),
    KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")),
    subprocess.TimeoutExpired("java", 10),
    OSError("no space left"),
    KeyError("JAVA_HOME"),
]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the archive goes; one of an earlier pyspark is there."""
    monkeypatch.setenv("SWITCHYARD_JARS_DIR", str(tmp_path))
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "kafka-1.0.jar").touch()
    path = pipelines.engine.jvm.jars.class_archive()
    path.write_bytes(b"old")
    os.utime(path, (0, 0))
    return path


class Fakes:
    """A broker and a driver that are none; `did`: what was asked of them, `fails`: by what the driver's work is spoilt,
    `unending`: by what its end is.
    """

    def __init__(self) -> None:
        self.did: list[str] = []
        self.settings: Settings | None = None
        self.dumped: Path | None = None
        self.fails: Exception | None = None
        self.unending: Exception | None = None

    def broker(self, settings: Settings, *, archive_to: Path | None) -> Fakes:
        self.settings, self.archive_to = settings, archive_to
        return self

    def dumping(self, settings: Settings, dumped: Path) -> Fakes:
        self.dumped = dumped
        return self

    def start(self, timeout_s: float) -> None:
        assert self.settings is not None
        self.did.append("started")
        for name in ("logs/broker.log", "broker/server.properties", "broker/data/meta.properties", "spark/jar"):
            path = self.settings.state_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("said by the broker")
        port = self.settings.broker_port
        with pytest.raises(SwitchyardError, match="no 2 ports in a row are free"):
            claim(2, range(port, ports(port)[-1] + 1))

    def stop(self, timeout_s: float = 30.0) -> None:
        self.did.append("stopped")
        if self.archive_to is not None and self.archive_to.parent.is_dir():
            self.archive_to.write_bytes(b"of the broker")

    def work(self, settings: Settings, launcher: object) -> None:
        assert self.dumped is not None
        self.dumped.write_bytes(b"half")
        if self.fails is not None:
            raise self.fails

    def await_end(self) -> None:
        assert self.dumped is not None
        self.dumped.write_bytes(b"new")

    def kill(self) -> None:
        self.did.append("killed")
        if self.unending is not None:
            raise self.unending


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    monkeypatch.setattr(class_archive, "EmbeddedBroker", made.broker)
    monkeypatch.setattr(class_archive, "_Dumping", made.dumping)
    monkeypatch.setattr(class_archive, "_work", made.work)
    return made


def fail() -> SwitchyardError:
    with pytest.raises(SwitchyardError) as caught:
        class_archive.write()
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_whatever_fails_is_said_and_leaves_its_logs(archive: Path, fakes: Fakes, failure: Exception) -> None:
    fakes.fails = failure
    error = fail()
    logs = archive.parent / "class-archive" / "logs"
    assert error.what.startswith("no class archive, so drivers will start more slowly: ")
    assert str(failure.args[0]) in error.what or type(failure).__name__ in error.what
    assert error.fix.startswith(f"its logs: {logs}; `switchyard jars` tries again")
    assert (logs / "broker.log").read_text() == "said by the broker"
    assert "raise self.fails" in (logs / "set-up.log").read_text()
    # Java ignores one that is out of date
    assert archive.read_bytes() == b"old" and not class_archive.up_to_date()
    left = {str(path.relative_to(logs.parent)) for path in logs.parent.rglob("*") if path.is_file()}
    assert left == {"logs/broker.log", "logs/set-up.log", "broker/server.properties"}, "the rest is not worth its room"
    assert fakes.did == ["stopped", "started", "killed", "stopped"]


def test_a_new_archive_takes_the_place_of_the_old_one(archive: Path, fakes: Fakes) -> None:
    assert not class_archive.up_to_date()
    class_archive.write()
    assert archive.read_bytes() == b"new" and class_archive.up_to_date()
    assert fakes.did == ["stopped", "started", "killed", "stopped"]
    assert broker_archive().read_bytes() == b"of the broker"
    left = {path.name for path in archive.parent.iterdir()}
    assert left == {archive.name, broker_archive().name, "broker"}
    # other users may share the folder
    assert {path.stat().st_mode & 0o777 for path in (archive, broker_archive())} == {0o644}


def test_the_logs_of_a_failure_stay_until_the_next_attempt(archive: Path, fakes: Fakes) -> None:
    fakes.fails = FAILURES[0]
    fail()
    logs = archive.parent / "class-archive" / "logs"
    (logs / "of-the-first").touch()
    fail()
    assert sorted(path.name for path in logs.iterdir()) == ["broker.log", "set-up.log"]
    fakes.fails = None
    class_archive.write()
    assert archive.exists() and not logs.parent.exists()


def test_both_are_written_if_that_of_the_broker_is_missing(archive: Path, fakes: Fakes) -> None:
    os.utime(archive)
    assert not class_archive.up_to_date()
    class_archive.write()
    assert (archive.read_bytes(), broker_archive().read_bytes()) == (b"new", b"of the broker")


def test_a_broker_that_writes_none_is_told_of(archive: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "stop", lambda timeout_s=30.0: None)
    with pytest.raises(SwitchyardError, match=f"Java wrote no {broker_archive().name}"):
        class_archive.write()
    assert not class_archive.up_to_date()


def test_that_of_earlier_jars_of_the_broker_is_made_anew(archive: Path, fakes: Fakes) -> None:
    class_archive.write()
    earlier = archive.with_name("broker-classes-0.jsa")
    earlier.touch()
    broker_archive().write_bytes(b"old")
    os.utime(broker_archive(), (0, 0))
    assert not class_archive.up_to_date()
    class_archive.write()
    assert broker_archive().read_bytes() == b"of the broker" and class_archive.up_to_date() and not earlier.exists()


def test_that_of_the_broker_is_kept(archive: Path, fakes: Fakes) -> None:
    broker_archive().write_bytes(b"old")
    class_archive.write()
    assert fakes.archive_to is None
    assert (archive.read_bytes(), broker_archive().read_bytes()) == (b"new", b"old")


def test_the_broker_is_stopped_though_the_driver_can_not_be_ended(archive: Path, fakes: Fakes) -> None:
    fakes.unending = subprocess.TimeoutExpired("driver", 10)
    fail()
    assert fakes.did == ["stopped", "started", "killed", "stopped"]


def test_its_input_needs_no_extra_and_is_that_of_its_app() -> None:
    """The prices of `switchyard produce stock-stats` are in an extra, which an installed package may not have."""
    block = next(class_archive._Trades(Options(faults=Faults.none())).blocks(None))
    assert len(block) == 200 and {len(json.loads(value or b"")) for _, value, _ in block} == {3}
    assert {json.loads(value or b"")["side"] for _, value, _ in block} == {"ask", "bid"}
    code = "import sys; sys.modules['bokeh_sampledata'] = None; from orchestration.jvm import class_archive as c"
    code += "; from orchestration.sources import Options; next(c._Trades(Options()).blocks(None))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_installation_has_its_archives() -> None:
    # a set-up goes on without; here it would mean that no set-up writes them any more
    assert pipelines.engine.jvm.jars.class_archive().is_file() and broker_archive().is_file()


def mapped_at(pid: int, archive: Path) -> int:
    """The lowest address at which a process maps the file."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    found = [int(line.partition("-")[0], 16) for line in lines if line.endswith(f"/{archive.name}")]
    assert found, "not mapped. If it was written for another Java, delete it and run `switchyard jars`"
    return min(found)


@pytest.mark.broker
def test_the_broker_maps_its_archive_where_others_can_share_it(broker: Settings) -> None:
    pid = EmbeddedBroker(broker).status().pid
    assert pid is not None
    assert WRITTEN_FOR <= mapped_at(pid, broker_archive()) < WRITTEN_FOR + GIB


@pytest.mark.spark
def test_a_session_maps_its_archive_where_others_can_share_it(spark: SparkSession) -> None:
    assert spark._jvm is not None
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    assert WRITTEN_FOR <= mapped_at(pid, pipelines.engine.jvm.jars.class_archive()) < WRITTEN_FOR + GIB
