from __future__ import annotations

import subprocess
import sys

import pytest

from orchestration import cli
from pipelines.errors import BadUsage, Refused, SwitchyardError, Unavailable
from pipelines.settings import Settings

HEAVY = ("pyspark", "dagster", "great_expectations", "pandas", "confluent_kafka")

SHOW_IMPORTS = """
import sys
from orchestration import cli
sys.argv = ["switchyard", *{arguments!r}]
try:
    cli.main()
except SystemExit as end:
    code = end.code
print("exit", code or 0, "imported", sorted({heavy!r} & sys.modules.keys()))
"""


def last_line(*arguments: str) -> str:
    code = SHOW_IMPORTS.format(arguments=arguments, heavy=set(HEAVY))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["up", "--help"], ["status", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert last_line(*arguments) == "exit 0 imported []"


@pytest.mark.broker
@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["log"], ["operations"]])
def test_what_is_asked_at_night_imports_neither_spark_nor_dagster(
    arguments: list[str], broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in broker.environment().items():
        monkeypatch.setenv(name, value)
    assert last_line(*arguments) == "exit 0 imported ['confluent_kafka']"


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["switchyard", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [(SwitchyardError("w", "f"), 1), (BadUsage("w", "f"), 2), (Refused("w", "f"), 3), (Unavailable("w", "f"), 1)],
)
def test_an_error_is_two_lines_and_an_exit_code(
    error: SwitchyardError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("orchestration.commands.broker.load_settings", fail)
    assert run(["down"], monkeypatch) == code
    assert capsys.readouterr().err == "error: w\n  f\n"


def test_an_unknown_command_or_option_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["no-such-command"], monkeypatch) == 2
    assert run(["up", "--no-such-option"], monkeypatch) == 2


@pytest.mark.parametrize("command", [["status"], ["produce", "stock-stats", "--rate", "1"]])
def test_a_wrong_setting_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_BROKER_PORT", "many")
    assert run(command, monkeypatch) == 2
    said = capsys.readouterr().err
    assert "broker_port" in said
    assert "SWITCHYARD_<NAME>" in said


def test_with_an_existing_cluster_there_is_nothing_to_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_BOOTSTRAP_SERVERS", "localhost:1")
    assert run(["down"], monkeypatch) == 0
    assert "nothing to stop" in capsys.readouterr().out


def test_an_existing_cluster_that_does_not_answer_is_an_error(
    silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_BOOTSTRAP_SERVERS", silent)
    monkeypatch.setenv("SWITCHYARD_REQUEST_TIMEOUT_S", "0.5")
    for command in ("up", "status"):
        assert run([command], monkeypatch) == 1
        assert f"no Kafka broker answers at {silent}" in capsys.readouterr().err
