"""What a reprocess begins with: staging, or the start of a release that is staged already and is what is asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration import cli
from orchestration.commands import release as commands
from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.releases import Launch, Want
from orchestration.operations.procedures import reprocess
from orchestration.operations.procedures.reprocess import first_step
from pipelines.engine.code import freeze
from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import Staged, StateSet
from pipelines.model.registry import RegistryState, fold
from tests.operations.builders import Kafka, spec


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text("X = 1\n")
    return tmp_path


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def context(code: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Context:
    """A registry with two releases, the second of the code in `code`; staging another one is only noted."""
    digest = freeze(code).digest
    entries: list[Any] = [
        Staged(spec=spec("sums.v1", settings={"window_s": 5, "quick": False})),
        Staged(
            spec=spec("sums.v2", code_digest=digest, settings={"window_s": 6, "quick": True}, correction="late data")
        ),
        Staged(spec=spec("sums.v3")),
        StateSet(release="sums.v3", state="retired"),
    ]
    state = fold(RegistryState(), entries)

    def plan_stage(_: Context, app: str, **options: Any) -> Plan:
        return Plan(id="stage-1", operation=Kind.STAGE, releases=(f"{app}.v{options['version'] or 4}",), stages=())

    monkeypatch.setattr(reprocess, "plan_stage", plan_stage)
    return cast(
        Context,
        SimpleNamespace(
            registry=SimpleNamespace(state=lambda: state),
            state_for_planning=lambda: state,
            say=said.append,
            progress=lambda _: None,
            cluster=Kafka(),
            settings=None,
        ),
    )


@pytest.mark.parametrize("version", [None, 4])
def test_what_is_not_there_is_staged(context: Context, code: Path, said: list[str], version: int | None) -> None:
    plan = first_step(context, "sums", version=version, code_dir=code, settings={"window_s": "9"})
    assert (plan.operation, plan.releases) == ("stage", ("sums.v4",))
    assert said == []


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"settings": {}},
        {"settings": {"window_s": "6", "quick": "true"}},
        {"settings": {"window_s": 6}},
        {"correction": "late data"},
        {"same_as": "sums.v2"},
        {"same_as": "sums.v2", "settings": {"quick": "True"}, "correction": "late data"},
    ],
)
def test_what_is_staged_as_asked_for_is_gone_on_with(context: Context, said: list[str], given: dict[str, Any]) -> None:
    plan = first_step(context, "sums", version=2, **given)
    assert (plan.operation, plan.releases) == ("start", ("sums.v2",))
    assert [type(stage) for stage in plan.stages] == [Want, Launch]
    assert said == ["sums.v2 is already staged; continuing with it"]


def test_the_same_code_in_a_folder_is_gone_on_with(context: Context, code: Path) -> None:
    assert first_step(context, "sums", version=2, code_dir=code).operation == "start"


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({"settings": {"window_s": "7"}}, ["its window_s is 6, not 7"]),
        ({"settings": {"window_s": "6", "quick": "false"}}, ["its quick is True, not false"]),
        ({"settings": {"over": "1"}}, ["it has no setting over"]),
        ({"correction": "upstream fix"}, ["it has the correction 'late data', not 'upstream fix'"]),
        ({"same_as": "sums.v1"}, ["its code is ", "not 000000000000", "its window_s is 6, not 5", "its quick is True"]),
        ({"same_as": "sums.v1", "settings": {"window_s": "8"}}, ["its window_s is 6, not 8"]),
        ({"upstream": ("sums.v1",)}, ["it reads no result of an app, not sums.v1"]),
    ],
)
def test_what_is_staged_as_another_is_refused_and_says_in_what(
    context: Context, said: list[str], given: dict[str, Any], differs: list[str]
) -> None:
    with pytest.raises(Refused, match=r"sums\.v2 is already staged, and differs from what is asked for: ") as error:
        first_step(context, "sums", version=2, **given)
    for words in differs:
        assert words in error.value.what
    assert "`switchyard reprocess sums` with another --version" in error.value.fix
    assert said == []


def test_other_code_in_the_folder_is_refused_with_both_digests(context: Context, code: Path) -> None:
    before = freeze(code).digest
    (code / "sums.py").write_text("X = 2\n")
    with pytest.raises(Refused, match=f"its code is {before[:12]}, not {freeze(code).digest[:12]}"):
        first_step(context, "sums", version=2, code_dir=code)


def test_a_correction_of_what_was_staged_for_none_is_refused(context: Context) -> None:
    with pytest.raises(Refused, match="it has no correction, not 'late data'"):
        first_step(context, "sums", version=1, correction="late data")


def test_what_can_not_be_meant_is_bad_usage(context: Context, code: Path) -> None:
    with pytest.raises(BadUsage, match="setting window_s of sums is int, not 'much'"):
        first_step(context, "sums", version=2, settings={"window_s": "much"})
    with pytest.raises(BadUsage, match="can't be used together"):
        first_step(context, "sums", version=2, code_dir=code, same_as="sums.v1")


def test_a_retired_release_is_not_gone_on_with(context: Context) -> None:
    with pytest.raises(Refused, match=r"sums\.v3 is retired"):
        first_step(context, "sums", version=3)


# -- at the terminal


def reprocess_at_the_terminal(
    context: Context, monkeypatch: pytest.MonkeyPatch, *arguments: str, code: int = 0
) -> None:
    monkeypatch.setattr(commands, "_context", lambda: context)
    monkeypatch.setattr("sys.argv", ["switchyard", "reprocess", "sums", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert (end.value.code or 0) == code


def test_a_dry_run_shows_what_is_left(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reprocess_at_the_terminal(context, monkeypatch, "--version", "2", "--set", "window_s=6")
    out = capsys.readouterr().out
    assert "start the driver of sums.v2" in out
    assert "then: wait, diff, check; promote waits for approval" in out and "nothing is changed" in out
    reprocess_at_the_terminal(context, monkeypatch, "--version", "4")
    assert "then: start, wait, diff, check; promote waits for approval" in capsys.readouterr().out


def test_another_one_is_refused_dry_or_not(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--execute"]):
        reprocess_at_the_terminal(context, monkeypatch, "--version", "2", "--set", "window_s=7", *more, code=3)
        assert "its window_s is 6, not 7" in capsys.readouterr().err
