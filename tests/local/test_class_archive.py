"""The archive of Spark's classes saves time, and nothing depends on it: its failure is said, and stops no set-up."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

import pipelines.engine.jars
from orchestration.local import class_archive
from orchestration.local.preflight import Problem
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings

FAILURES = [
    SwitchyardError("port 19132 is busy", "end that process"),
    KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer")),
    subprocess.TimeoutExpired("java", 10),
    OSError("no space left"),
    KeyError("JAVA_HOME"),
]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the archive goes; an old one is there."""
    monkeypatch.setenv("SWITCHYARD_JARS_DIR", str(tmp_path))
    path = pipelines.engine.jars.class_archive()
    path.write_bytes(b"old")
    return path


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_whatever_fails_is_said_and_stops_nothing(
    archive: Path, failure: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(_: Path) -> None:
        raise failure

    monkeypatch.setattr(class_archive, "build", build)
    class_archive.main()
    said = capsys.readouterr().out
    assert "no class archive, drivers will start slower: " in said
    assert str(failure.args[0]) in said or type(failure).__name__ in said
    assert not archive.exists(), "one that is out of date must not stay"


class Fakes:
    """A broker and a driver that are none; `did`: what was asked of them, `fails`: by what their end is spoilt."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.settings: Settings | None = None
        self.dumped: Path | None = None
        self.fails: Exception | None = None

    def broker(self, settings: Settings) -> Fakes:
        self.settings = settings
        return self

    def dumping(self, settings: Settings, dumped: Path) -> Fakes:
        self.dumped = dumped
        return self

    def start(self, timeout_s: float) -> None:
        self.did.append("started")

    def stop(self) -> None:
        self.did.append("stopped")

    def await_end(self) -> None:
        assert self.dumped is not None
        self.dumped.write_bytes(b"new")

    def kill(self) -> None:
        self.did.append("killed")
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    monkeypatch.setattr(class_archive, "EmbeddedBroker", made.broker)
    monkeypatch.setattr(class_archive, "_Dumping", made.dumping)
    monkeypatch.setattr(class_archive, "_work", lambda *_: None)
    return made


def test_a_new_archive_takes_the_place_of_the_old_one(
    archive: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    class_archive.main()
    assert archive.read_bytes() == b"new"
    assert fakes.did == ["started", "killed", "stopped"]
    assert "class archive written" in capsys.readouterr().out
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


def test_the_broker_is_stopped_though_the_driver_can_not_be_ended(archive: Path, fakes: Fakes) -> None:
    fakes.fails = subprocess.TimeoutExpired("driver", 10)
    class_archive.main()
    assert fakes.did == ["started", "killed", "stopped"]


@pytest.mark.parametrize(
    ("port", "busy", "expected"),
    [
        (None, [], 19132),
        ("20000", [], 20040),
        # another set-up's broker, and its controller; somebody else's where a controller would be
        ("20000", [20040, 20041, 20043], 20044),
        ("20000", range(20040, 20060), 20000),
        ("65500", [], 65500),
    ],
)
def test_its_broker_has_a_port_that_is_free_beside_the_settings(
    archive: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch, port: str | None, busy: Sequence[int], expected: int
) -> None:
    if port is not None:
        monkeypatch.setenv("SWITCHYARD_BROKER_PORT", port)
    monkeypatch.setattr(class_archive, "check_port", lambda port: Problem("busy", "") if port in busy else None)
    class_archive.main()
    assert fakes.settings is not None and fakes.settings.broker_port == expected


def test_the_installation_has_its_archive() -> None:
    # a set-up goes on without; here it would mean that no set-up writes one any more
    assert pipelines.engine.jars.class_archive().is_file()
