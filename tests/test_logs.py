"""The log as JSON lines: of drivers, of commands, and what `switchyard log --json` prints."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from orchestration import cli
from orchestration.commands import overview
from orchestration.commands.terminal import say
from pipelines.engine.spark_conf import session_conf
from pipelines.errors import Refused
from pipelines.logs import JsonLines, LogFormat, configure_command
from pipelines.model.entries import Opened
from pipelines.secrets import remember
from pipelines.settings import Settings, get_settings
from tests.operations.builders import Log, context_of, staged

DRIVER = """
import logging
from pipelines.logs import configure_driver
configure_driver({form!r}, "sums.v1")
log = logging.getLogger("switchyard.driver")
log.debug("not told")
log.info("batch %d\\nis done", 7)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
"""


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SWITCHYARD_LOG_FORMAT", "json")
    get_settings.cache_clear()
    yield
    configure_command("text")


def test_a_driver_s_log_is_one_object_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER.format(form="json")], capture_output=True, text=True, check=True
    )
    batch, failed = lines_of(done.stdout)
    assert not done.stderr
    assert (batch["level"], batch["release"], batch["message"]) == ("INFO", "sums.v1", "batch 7\nis done")
    assert batch["time"].endswith("Z") and "exception" not in batch
    assert failed["level"] == "ERROR" and failed["message"] == "it failed"
    assert failed["exception"].startswith("Traceback") and "ZeroDivisionError" in failed["exception"]


def test_without_the_setting_it_is_text() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER.format(form="text")], capture_output=True, text=True, check=True
    )
    first = done.stdout.splitlines()[0]
    assert first.endswith(" INFO batch 7") and not first.startswith("{")


def test_a_line_break_or_another_control_character_starts_no_line() -> None:
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "a\nb\x1b[2J\u2028%s", ("c\r",), None)
    [line] = JsonLines().format(record).splitlines()
    assert json.loads(line)["message"] == "a\nb\x1b[2J\u2028c\r" and line.isascii() and line.isprintable()


@pytest.mark.usefixtures("as_json")
def test_what_a_command_says_beside_its_output_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    say("waits for\na boundary")
    [line] = lines_of(capsys.readouterr().err)
    assert line["level"] == "INFO" and line["message"] == "waits for\na boundary" and line["time"]


@pytest.mark.usefixtures("as_json")
def test_an_error_and_a_mistake_of_the_program_s_own_are_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> None:
        def load() -> None:
            raise error

        monkeypatch.setattr("orchestration.commands.broker.load_settings", load)

    fail(Refused("it is live", "promote another first"))
    assert cli.run(["down"]) == 3
    [line] = lines_of(capsys.readouterr().err)
    assert line["level"] == "ERROR" and line["message"] == "it is live\npromote another first"
    fail(AssertionError("a bug"))
    assert cli.run(["down"]) == 1
    [line] = lines_of(capsys.readouterr().err)
    assert line["level"] == "CRITICAL" and "AssertionError: a bug" in line["exception"]


@pytest.mark.usefixtures("as_json")
def test_a_module_s_warning_is_json_in_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_command("json")
    configure_command("json")
    logging.getLogger("orchestration.operations.comparing.upkeep").warning("nothing is kept")
    [line] = lines_of(capsys.readouterr().err)
    assert line["logger"] == "orchestration.operations.comparing.upkeep" and line["level"] == "WARNING"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_command_s_log_obeys_a_record_or_shows_a_secret(capsys: pytest.CaptureFixture[str], form: LogFormat) -> None:
    remember({"SWITCHYARD_ALERT_WEBHOOK": "https://hooks.example/planted-secret"})
    configure_command(form)
    logging.getLogger("pipelines.kafka.heartbeats").warning(
        "%s", "\x1b]0;owned\x07 https://hooks.example/planted-secret"
    )
    said = capsys.readouterr().err
    assert "owned" in said and "\x1b" not in said and "\x07" not in said and "planted-secret" not in said


def test_a_library_that_drops_what_it_says_is_not_heard_in_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("a-library")
    library.addHandler(logging.NullHandler())
    configure_command("text")
    logging.getLogger("a-library.module").error("of no interest")
    logging.getLogger("another-library").error("of interest")
    assert capsys.readouterr().err == "of interest\n"


def test_the_trail_is_shown_whole_whatever_an_entry_holds() -> None:
    odd = Opened(id="stop-1", name="stop", releases=("a.v1",), deadline_ms=1, plan={"facts": "none"}, at_ms=2**53 - 1)
    at, _, what, _ = overview._row(odd)
    assert at == f"{2**53 - 1} ms" and "can only be shown with --json" in what


def test_wrong_settings_are_told_in_the_format_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_BROKER_PORT", "many")
    monkeypatch.setenv("SWITCHYARD_LOG_FORMAT", "json")
    assert cli.run(["status"]) == 2
    [line] = lines_of(capsys.readouterr().err)
    assert "broker_port" in line["message"]


def test_spark_s_log_in_a_driver_is_json_too() -> None:
    def options(form: LogFormat) -> str:
        conf = session_conf(Settings(log_format=form), heap_mb=512, cores=1)
        return conf["spark.driver.extraJavaOptions"]

    assert "log4j2.properties" in options("json") and ",file:" in options("json")
    assert "log4j2-json.properties" in options("json") and "log4j2-json" not in options("text")


def test_the_audit_trail_as_json_is_an_entry_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(*staged("a.v1", "a.v2"))
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context_of(log))
    overview.log(limit=3, as_json=True)
    found = lines_of(capsys.readouterr().out)
    assert [entry["kind"] for entry in found] == ["generation", "staged", "generation"]
    assert found[1]["spec"]["release"] == "a.v2"


@pytest.mark.spark
def test_spark_s_own_lines_have_the_names_of_the_others(spark: Any) -> None:
    """By the very pattern of the file, in a JVM that is there already."""
    from pathlib import Path

    import pipelines.engine

    file = Path(pipelines.engine.__path__[0], "jvm", "log4j2-json.properties").read_text()
    # in a file of properties a backslash is written as two
    [pattern] = [
        line.partition(" = ")[2].replace("\\\\", "\\") for line in file.splitlines() if ".layout.pattern = " in line
    ]
    log4j = spark._jvm.org.apache.logging.log4j
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(pattern).withAlwaysWriteExceptions(False).build()
    event = (
        log4j.core.impl.Log4jLogEvent.newBuilder()
        .setLoggerName("org.apache.Loud").setLevel(log4j.Level.WARN)
        .setMessage(log4j.message.SimpleMessage('a "word"\nand another'))
        .setThrown(spark._jvm.java.lang.RuntimeException("no\nway"))
        .build()
    )  # fmt: skip
    [line] = layout.toSerializable(event).splitlines()
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("WARN", "org.apache.Loud", 'a "word"\nand another')
    assert "RuntimeException: no\nway" in found["exception"] and found["time"].endswith("Z")
