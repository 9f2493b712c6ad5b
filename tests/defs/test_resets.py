"""Resets as jobs: the same options as the command's, and no result deleted without its release's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterInvalidConfigError, JobDefinition

from orchestration.defs import resets
from orchestration.defs.resets import reset_job, undo_job
from orchestration.defs.resources import Platform
from orchestration.operations.context import Context
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.positions import PositionOptions
from orchestration.operations.reading import Say

# Dagster's own, of the pydantic that goes with it
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

EARLIEST: dict[str, Any] = {"to_earliest": {}}
PLAN = Plan(id="reset-1", operation=Kind.RESET, releases=("sums.v2",), stages=(), facts={"asked": "--to-earliest"})


class Open(Platform):
    @contextmanager
    def open(self, say: Say, spark: object = None) -> Iterator[Context]:
        yield SimpleNamespace(registry=None)  # type: ignore[misc]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that were planned, and the plans that were carried out."""
    found: list[Any] = []

    def plan_reset(_: Context, name: str, request: Request, *, reason: str | None = None) -> Plan:
        found.append((name, request, reason))
        return PLAN

    monkeypatch.setattr(resets, "plan_reset", plan_reset)
    monkeypatch.setattr("orchestration.defs.shell.apply_plan", lambda _, plan: found.append(plan))
    return found


def run(job: JobDefinition = reset_job, **config: Any) -> Any:
    """What the run of a job that has one op of its name fails with; None: it doesn't."""
    given = {"release": "sums.v2", **config} if job is reset_job else config
    with DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            run_config={"ops": {job.name: {"config": given}}},
            resources={"platform": Open()},
            instance=instance,
            raise_on_error=False,
        )
        failure = None if result.success else result.failure_data_for_node(job.name)
        return failure.user_failure_data.description if failure and failure.user_failure_data else None


def test_the_default_shows_the_plan_and_changes_nothing(done: list[Any]) -> None:
    assert run(position=EARLIEST, stop=True, reason="late data") is None
    [(name, request, reason)] = done
    assert (name, reason) == ("sums.v2", "late data")
    assert (request.target.kind, request.stop, request.chosen_state, request.chosen_output) == (
        "earliest",
        True,
        "clear",
        "new",
    )


def test_the_positions_are_written_where_asked(
    done: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(resets, "new_positions", lambda *_: {"numbers": {0: 7, 1: 9}})
    there, told = tmp_path / "there.csv", "numbers,0,7\nnumbers,1,9\n"
    # a plan writes nothing
    assert run(position=EARLIEST, export=str(there)) is None and not there.exists()
    assert run(position=EARLIEST, export=str(there), execute=True) is None and there.read_text() == told
    assert "can't be written" in run(position=EARLIEST, export=str(tmp_path / "none" / "there.csv"), execute=True)


def test_no_file_is_written_over(done: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resets, "new_positions", lambda *_: {"numbers": {0: 7}})
    there, link = tmp_path / "there.txt", tmp_path / "link.csv"
    there.write_text("mine")
    link.symlink_to(tmp_path / "elsewhere")
    for path in (there, link):
        assert "can't be written: File exists" in run(position=EARLIEST, export=str(path), execute=True)
    assert there.read_text() == "mine" and not (tmp_path / "elsewhere").exists() and PLAN not in done


def test_it_is_carried_out_if_asked_to(done: list[Any]) -> None:
    assert run(position={"skip": {"record": "numbers:0:7"}}, execute=True) is None
    (_, request, _), plan = done
    assert (request.chosen_state, request.chosen_output) == ("keep", "keep") and plan is PLAN


def test_a_result_is_deleted_only_by_the_name_of_its_release(done: list[Any], tmp_path: Path) -> None:
    export = tmp_path / "there.csv"
    given: dict[str, Any] = {"position": EARLIEST, "output": "truncate", "execute": True, "export": str(export)}
    assert "set confirm: sums.v2" in run(**given)
    assert "set confirm: sums.v2" in run(**given, confirm="sums.v1")
    assert PLAN not in done and not export.exists()
    assert run(**{**given, "export": None}, confirm="sums.v2") is None and done[-1] is PLAN


def test_positions_are_refused_as_at_the_terminal(done: list[Any]) -> None:
    for at, what in (
        ({"to_datetime": {"time": "2026-11-01T00:00:00"}}, "has no time zone"),
        ({"by_duration": {"duration": "6 hours"}}, "is not a duration"),
        ({"skip": {"record": "numbers"}}, "numbers"),
    ):
        assert what in run(position=at)
    assert done == []


@pytest.mark.parametrize("position", [None, {}, EARLIEST | {"to_latest": {}}, {"to_offset": {}}, {"to_nowhere": {}}])
def test_dagster_launches_nothing_without_exactly_one_position(position: Any, done: list[Any]) -> None:
    given = {} if position is None else {"position": position}
    with pytest.raises(DagsterInvalidConfigError, match="position"):
        run(**given)
    assert done == []


CHOICE: list[tuple[dict[str, Any], PositionOptions]] = [
    (EARLIEST, PositionOptions(to_earliest=True)),
    ({"to_latest": {}}, PositionOptions(to_latest=True)),
    ({"to_current": {}}, PositionOptions(to_current=True)),
    ({"to_datetime": {"time": "2026-11-01T00:00:00Z"}}, PositionOptions(to_datetime="2026-11-01T00:00:00Z")),
    ({"by_duration": {"duration": "PT6H"}}, PositionOptions(by_duration="PT6H")),
    ({"shift_by": {"records": -3}}, PositionOptions(shift_by=-3)),
    ({"to_offset": {"offset": 5}}, PositionOptions(to_offset=5)),
    ({"from_file": {"path": "there.csv"}}, PositionOptions(from_file=Path("there.csv"))),
    ({"skip": {"record": "numbers:0:7"}}, PositionOptions(skip="numbers:0:7")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("position", "options"), CHOICE)
def test_each_choice_is_the_option_of_that_name(
    position: dict[str, Any], options: PositionOptions, done: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("numbers,0,7\n")
    assert run(position=position) is None
    [(_, request, _)] = done
    # a duration counts back from now
    assert (request.target.kind, request.target.text) == (options.target().kind, options.target().text)


def test_the_choice_has_each_position_that_a_command_has() -> None:
    [choice] = [field for name, field in _fields(reset_job).items() if name == "position"]
    assert set(choice.config_type.fields) == {name for at, _ in CHOICE for name in at}
    assert set(choice.config_type.fields) == {each.name for each in fields(PositionOptions)}
    assert all(field.description for field in choice.config_type.fields.values())


def _fields(job: JobDefinition) -> Any:
    return job.nodes[0].definition.config_schema.config_type.fields  # type: ignore[union-attr]


def test_a_reset_is_taken_back_only_if_asked_to(done: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def plan_undo(_: Context, reset_id: str, **options: Any) -> Plan:
        asked.append((reset_id, options["stop"], options["reason"]))
        return PLAN

    monkeypatch.setattr(resets, "plan_undo", plan_undo)
    assert run(undo_job, reset="reset-1", stop=True, reason="the wrong app") is None
    assert asked == [("reset-1", True, "the wrong app")] and done == []
    assert run(undo_job, reset="reset-1", execute=True) is None
    assert asked[-1] == ("reset-1", False, None) and done == [PLAN]
