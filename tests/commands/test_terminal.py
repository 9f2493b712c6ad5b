from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from orchestration import cli
from orchestration.commands import reset as commands
from orchestration.commands.show import what_failed_shown
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.releases import Want
from orchestration.operations.procedures.examine import ChecksFailed
from pipelines.errors import Refused
from tests.operations.builders import failed_checks


def test_an_error_of_kafka_s_that_nobody_foresaw_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))

    monkeypatch.setattr("orchestration.commands.broker.load_settings", fail)
    monkeypatch.setattr(sys, "argv", ["switchyard", "down"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert "error: Kafka failed: " in said and "in-sync replicas" in said and "switchyard status" in said


def test_a_mistake_of_the_program_s_own_is_not_dressed_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("orchestration.commands.broker.load_settings", fail)
    monkeypatch.setattr(sys, "argv", ["switchyard", "down"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and said.endswith("AssertionError: a bug\n")


@pytest.mark.parametrize(("as_json", "shown"), [(False, True), (True, False)])
def test_what_was_found_of_a_release_that_fails_its_checks_is_shown(
    as_json: bool, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ChecksFailed), what_failed_shown(as_json):
        raise failed_checks()
    said = capsys.readouterr().out
    assert ("changed" in said and "between 9 and 11" in said) is shown
    assert bool(said) is shown


PLAN = Plan(
    id="reset-1", operation=Kind.RESET, releases=("sums.v2",), stages=(Want(release="sums.v2", wanted="stopped"),)
)


@pytest.fixture
def did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was exported when a reset was executed: nothing yet."""
    did: list[str] = []
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: None)
    monkeypatch.setattr("orchestration.operations.planning.reset.plan.plan_reset", lambda *_, **__: PLAN)
    monkeypatch.setattr("orchestration.operations.planning.reset.export.new_positions", lambda *_: {"numbers": {0: 7}})
    monkeypatch.setattr(
        "orchestration.operations.execute.execute", lambda *_: did.append((tmp_path / "there.csv").read_text())
    )
    return did


def truncate(folder: Path, **options: Any) -> None:
    commands.reset("sums.v2", to_earliest=True, output="truncate", export=folder / "there.csv", execute=True, **options)


def test_who_is_asked_whether_to_delete_a_result_has_seen_the_plan(
    did: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(Refused, match="you can't confirm that because this is not a terminal"):
        truncate(tmp_path)
    assert "ask sums.v2 to stop" in capsys.readouterr().out
    with pytest.raises(Refused, match="you can't confirm that because --json asks no question"):
        truncate(tmp_path, as_json=True)
    assert not (tmp_path / "there.csv").exists() and did == []
    truncate(tmp_path, yes=True)
    assert did == ["numbers,0,7\n"]


class Typed(io.StringIO):
    """A terminal at which this was typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("typed", ["no", "sums.v1", "sums"])
def test_a_result_is_not_deleted_unless_the_release_s_name_is_typed(
    typed: str, did: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Typed(f"{typed}\n"))
    with pytest.raises(Refused, match=f"'{typed}' is not sums.v2, so nothing was changed") as error:
        truncate(tmp_path)
    assert "type sums.v2" in error.value.fix
    assert "this deletes the result of sums.v2 for good; type sums.v2 to continue" in capsys.readouterr().err
    assert not (tmp_path / "there.csv").exists() and did == []


def test_it_is_once_the_name_is_typed(did: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Typed(" sums.v2 \n"))
    truncate(tmp_path)
    assert did == ["numbers,0,7\n"]
