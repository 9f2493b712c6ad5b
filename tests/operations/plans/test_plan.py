from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, Table, join, new_id
from orchestration.operations.plans.stages.base import Stage, from_journal, to_journal
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.plans.stages.releases import (
    CreateTopic,
    DeleteTopic,
    Launch,
    RecordRelease,
    SetState,
    StoreCode,
    Want,
)
from orchestration.operations.plans.stages.switching import Align, AppendSwitch
from pipelines.errors import SwitchyardError
from pipelines.model.entries import GenerationStarted, Opened, Staged, StateSet
from pipelines.model.positions import Span
from tests.operations.builders import POSITION, spec

STAGES: tuple[Stage, ...] = (
    Want(release="a.v1", wanted="running"),
    Launch(release="a.v1", force=True),
    SetState(release="a.v1", state="retired"),
    Align(release="a.v2", other="a.v1", switch=2, timeout_s=60),
    AppendSwitch(alias="a", number=2, old="a.v1", new="a.v2", evidence="diff-1"),
    DeleteTopic(name="a.v1.g1"),
)


def plan(**changes: Any) -> Plan:
    return Plan(
        **{"id": "promote-1", "operation": Kind.PROMOTE, "releases": ("a.v2", "a.v1"), "stages": STAGES, **changes}
    )


def test_each_stage_is_one_step_in_words() -> None:
    steps = plan().steps()
    assert len(steps) == len(STAGES)
    assert steps[0] == "ask a.v1 to run"
    assert "take over from a running one" in steps[1]
    assert all("\n" not in step and "{" not in step for step in steps)


def test_a_generation_ends_or_leaves_out_input_as_its_entry_does() -> None:
    begin: dict[str, Any] = {"release": "a.v1", "generation": 2, "start": POSITION}
    whole = BeginGeneration(**begin)
    bounded = BeginGeneration(**begin, until=POSITION)
    skipping = BeginGeneration(**begin, until=POSITION, then=POSITION)
    assert [(each.end, each.left_out) for each in (whole, bounded, skipping)] == [
        (None, None),
        (POSITION, None),
        (None, Span(start=POSITION, end=POSITION)),
    ]
    assert [each.describe().removeprefix("start generation 2 of a.v1 with an empty state") for each in (whole, bounded, skipping)] == [
        "", ", up to the given end", ", and skip the given record",
    ]  # fmt: skip
    for each in (whole, bounded, skipping):
        entry = GenerationStarted(**begin, until=each.until, then=each.then)
        assert (entry.end, entry.left_out) == (each.end, each.left_out)


def test_the_journal_gives_back_the_plan_that_was_begun() -> None:
    table = Table(title="positions", columns=("input", "old"), rows=(("trades[0]", "5"), ("trades[1]", "7")))
    begun = plan(
        alias="a", facts={"from": "a.v1"}, tables=(table,), warnings=("slow",), undo="roll back", reason="because"
    )
    kept = json.loads(json.dumps(begun.for_journal()))
    opened = Opened(
        id=begun.id, name="promote", releases=begun.releases, alias="a", deadline_ms=1, plan=kept, reason="because"
    )
    again = Plan.from_journal(opened)
    assert again.stages == begun.stages
    assert (again.id, again.operation, again.releases, again.alias) == ("promote-1", "promote", begun.releases, "a")
    assert (again.facts, again.undo, again.reason) == (begun.facts, begun.undo, "because")
    assert (again.tables, again.warnings) == (begun.tables, begun.warnings)
    assert again.markdown() == begun.markdown()


def test_a_stage_of_another_version_is_named_with_the_way_out() -> None:
    with pytest.raises(SwitchyardError, match="Teleport") as error:
        from_journal({"stage": "Teleport", "release": "a.v1"})
    assert "abandon" in error.value.fix


def test_every_kind_of_stage_can_be_told_apart_in_the_journal() -> None:
    assert to_journal(STAGES[0])["stage"] in Stage.kinds
    with pytest.raises(TypeError, match="two kinds of stages are called Want"):
        type("Want", (Stage,), {})


def test_markdown_shows_facts_tables_steps_and_the_way_back() -> None:
    table = Table(title="inputs", columns=("topic", "end"), rows=(("a|b", "5"),))
    shown = plan(
        facts={"from": "a.v1", "to": "a.v2"}, tables=(table,), warnings=("careful",), undo="rollback"
    ).markdown()
    assert shown.startswith("### promote a.v2, a.v1 (promote-1)")
    assert "| from | a.v1 |" in shown
    assert "| a\\|b | 5 |" in shown
    assert "1. ask a.v1 to run" in shown
    assert "> careful" in shown
    assert "To undo: rollback" in shown


def test_a_plan_without_stages_says_so() -> None:
    assert "nothing is left to do" in plan(stages=()).markdown()


def test_json_has_the_steps_and_can_be_written() -> None:
    data = json.loads(json.dumps(plan(alias="a").as_json()))
    assert data["stages"] == plan().steps()
    assert data["stage_ids"] == [
        "Want a.v1", "Launch a.v1", "SetState a.v1", "Align a.v2", "AppendSwitch a", "DeleteTopic a.v1.g1",
    ]  # fmt: skip
    assert data["request"] is None and data["operation"] == "promote"
    assert data["releases"] == ["a.v2", "a.v1"]
    assert data["alias"] == "a"


def test_the_frozen_code_is_neither_shown_nor_printed() -> None:
    stage = StoreCode(digest="abc" * 20, data=b"secret")
    assert "secret" not in stage.describe() and "secret" not in repr(stage)
    assert "6 bytes" in stage.describe()


def test_stages_of_a_new_release_say_what_is_created() -> None:
    entries = (Staged(spec=spec()), GenerationStarted(release="stock-stats.v1", generation=1, start=POSITION))
    assert RecordRelease(release="stock-stats.v1", entries=entries).describe() == "enter stock-stats.v1 in the registry"
    assert "compact" in CreateTopic(name="t", partitions=4, config={"cleanup.policy": "compact"}).describe()
    assert StateSet(release="a.v1", state="live").kind == "state"


def test_an_id_sorts_by_time_and_can_be_read_aloud() -> None:
    one = new_id("promote", now=datetime(2026, 11, 21, 11, 5, 32, tzinfo=UTC))
    assert re.fullmatch(r"promote-20261121-110532-[0-9a-f]{4}", one)
    assert new_id("promote", now=datetime(2026, 11, 21, 11, 5, 33, tzinfo=UTC)) > one


def test_join_says_none_for_nothing() -> None:
    assert join([]) == "none"
    assert join(["a", "b"]) == "a, b"
