"""The same command finds the operation that it began by what was asked for, whatever the plan says in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.plans import positions
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.older_requests import in_words
from orchestration.operations.plans.plan import Plan, Table, request_of
from orchestration.operations.plans.requests import AskedPosition, PlanRequest, ResetRequest, UndoRequest, to_journal
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.plans.stages.releases import Want
from pipelines.errors import Refused, SwitchyardError
from pipelines.model.entries import Closed, Opened, decode, encode
from pipelines.model.names import REGISTRY_TOPIC
from pipelines.model.reset import Target
from tests.operations.builders import POSITION, Log, context_of, staged

EARLIEST = Target(kind="earliest", text="--to-earliest")
LATER_MS = 1_800_000_000_000
ANEW = ResetRequest(to=AskedPosition(kind="earliest"), state="clear", output="new")
STAGES = (
    Want(release="a.v1", wanted="stopped", before="running"),
    BeginGeneration(release="a.v1", generation=2, start=POSITION, old=1, links=0),
)
RESET = Plan(
    id="reset-1", operation=Kind.RESET, releases=("a.v1",), stages=STAGES, request=ANEW, reason="wrong since noon",
    facts={"asked": Request(target=EARLIEST).words(), "to read": "400 records"}, undo="switchyard undo reset-1",
)  # fmt: skip
# the same plan as a later version may word it
REWORDED = replace(
    RESET, facts={"what": "everything, anew"}, tables=(Table(title="t", columns=("c",), rows=(("r",),)),), warnings=("oh",),
    undo="no way back",
)  # fmt: skip


def opened(plan: Plan, **changes: Any) -> Opened:
    """The plan's operation as whoever reads the registry gets it. `changes`: of the journaled plan; None leaves out."""
    journaled = {name: value for name, value in {**plan.for_journal(), **changes}.items() if value is not None}
    entry = Opened(id=plan.id, name=plan.operation.value, releases=plan.releases, deadline_ms=2**50, plan=journaled,
                   reason=plan.reason)  # fmt: skip
    found = decode(encode(entry))
    assert isinstance(found, Opened)
    return found


def under_way(*entries: Opened | Closed) -> Log:
    return Log(*staged("a.v1"), *entries)


# -- the same command


@pytest.mark.parametrize("plan", [RESET, REWORDED], ids=["as it is worded", "worded otherwise"])
def test_a_reset_is_gone_on_with_by_the_same_command(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "steps", lambda plan: ["something else"])
    monkeypatch.setattr(Request, "words", lambda self: "in other words")
    log = under_way(opened(plan))
    # how it is carried out is no part of what it is
    request = Request(target=EARLIEST, stop=True, force=True, timeout_s=9.0, accept_missing=True)
    found = plan_reset(context_of(log), "a.v1", request)
    assert (found.id, found.stages, found.request, found.operation) == ("reset-1", STAGES, ANEW, Kind.RESET)
    for other in (Request(target=EARLIEST, state="keep"), Request(target=Target(kind="latest", text="--to-earliest"))):
        with pytest.raises(Refused, match="is under way on"):
            plan_reset(context_of(log), "a.v1", other)


@pytest.mark.parametrize("facts", [{"asked": "reset-1"}, {"asked": "reset-7"}, {}])
def test_an_undo_is_gone_on_with_by_the_same_command(facts: dict[str, str]) -> None:
    plan = replace(RESET, id="undo-1", operation=Kind.UNDO, request=UndoRequest(reset="reset-1"), facts=facts)
    others = [replace(RESET, id=name) for name in ("reset-1", "reset-7")]
    done = [e for other in others for e in (opened(other), Closed(id=other.id, outcome="done"))]
    log = under_way(*done, opened(plan))
    found = plan_undo(context_of(log), "reset-1")
    assert (found.id, found.stages) == ("undo-1", STAGES)
    with pytest.raises(Refused, match="is under way on"):
        plan_undo(context_of(log), "reset-7")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (positions.before_now("PT60M", LATER_MS), positions.before_now("PT1H", LATER_MS + 9_000), True),
        (positions.before_now("PT1H", LATER_MS), positions.before_now("PT2H", LATER_MS + 3_600_000), False),
        # the very time that it comes to now is another request: in an hour it comes to another
        (positions.before_now("PT1H", LATER_MS), Target(kind="datetime", text="", at_ms=LATER_MS - 3_600_000), False),
        (positions.at_time("2026-11-21T12:00:00Z"), positions.at_time("2026-11-21T13:00:00+01:00"), True),
        (positions.at_time("2026-11-21T12:00:00Z"), positions.at_time("2026-11-21T12:00:00.001Z"), False),
        (positions.to_offset(7), positions.to_offset(8), False),
        (Target(kind="shift", text="", number=7), positions.to_offset(7), False),
        (positions.one_record("trades:0:7"), positions.one_record("trades:1:7"), False),
        (Target(kind="file", text="one", offsets={"a": {0: 1, 1: 2}}), Target(kind="file", text="b", offsets={"a": {1: 2, 0: 1}}), True),
        (Target(kind="file", text="one", offsets={"a": {0: 1}}), Target(kind="file", text="one", offsets={"a": {0: 2}}), False),
        (EARLIEST, Target(kind="latest", text="--to-earliest"), False),
    ],
)  # fmt: skip
def test_two_positions_are_the_same_where_they_ask_for_the_same(one: Target, other: Target, same: bool) -> None:
    assert (Request(target=one).asked() == Request(target=other).asked()) is same
    assert (Request(target=EARLIEST, until=one).asked() == Request(target=EARLIEST, until=other).asked()) is same


@pytest.mark.parametrize(
    "other",
    [
        {"state": "keep"}, {"output": "truncate"}, {"inputs": {"trades": None}}, {"until": positions.until_of("latest")},
        {"max_records_per_batch": 5}, {"stay_stopped": True},
    ],
)  # fmt: skip
def test_every_choice_is_part_of_a_request(other: Mapping[str, Any]) -> None:
    assert Request(target=EARLIEST, **other).asked() != ANEW


def test_the_order_of_partitions_is_none() -> None:
    one, other = ({"trades": partitions, "orders": None} for partitions in ((1, 0), (0, 1)))
    assert Request(target=EARLIEST, inputs=one).asked() == Request(target=EARLIEST, inputs=other).asked()


# -- in the journal

REQUESTS: list[PlanRequest] = [
    UndoRequest(reset="reset-1"),
    *(
        Request(target=target).asked()
        for target in (
            EARLIEST, positions.at_time("2026-11-21T12:00:00Z"), positions.before_now("PT1H", LATER_MS), positions.to_offset(7),
            Target(kind="shift", text="", number=-7), positions.one_record("trades:0:7"),
            Target(kind="file", text="", offsets={"trades": {0: 7}}),
        )
    ),
    Request(
        target=EARLIEST, inputs={"trades": (0, 1), "orders": None}, until=positions.until_of("current"), state="keep",
        output="tombstone", max_records_per_batch=5, stay_stopped=True,
    ).asked(),
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: json.dumps(to_journal(r)))
def test_a_request_is_read_back_as_it_was_journaled(request_: PlanRequest) -> None:
    kind = Kind(request_.kind)
    assert request_of(opened(replace(RESET, operation=kind, request=request_))) == request_


def test_what_says_nothing_new_has_nothing_that_an_older_version_would_not_read() -> None:
    assert to_journal(ANEW) == {"kind": "reset", "to": {"kind": "earliest"}, "state": "clear", "output": "new"}
    # nor has the plan of an operation that no command finds again
    assert "request" not in replace(RESET, request=None).for_journal()


@pytest.mark.parametrize(
    "newer",
    [
        {**to_journal(ANEW), "consumers": "stay"},
        {**to_journal(ANEW), "to": {"kind": "tomorrow"}},
        {"kind": "reset"}, {"kind": "teleport"}, {"kind": "undo", "reset": "reset-1"}, {"kind": "undo", "reset": "../.."},
        "--to-earliest --state clear --output new", [], 7,
    ],
)  # fmt: skip
def test_a_request_that_can_not_be_read_is_nobodys_and_is_resumed_by_its_id(newer: object) -> None:
    log = under_way(opened(RESET, request=newer))
    with pytest.raises(Refused, match="is under way on") as error:
        plan_reset(context_of(log), "a.v1", Request(target=EARLIEST))
    assert "`switchyard resume reset-1`" in error.value.fix
    again = Plan.from_journal(log.state().operations["reset-1"].opened)
    assert (again.stages, again.request) == (STAGES, None)


def test_an_operation_that_this_version_does_not_know_is_named_with_the_way_out() -> None:
    entry = opened(RESET).model_copy(update={"name": "teleport"})
    with pytest.raises(SwitchyardError, match="an operation teleport that this version does not know") as error:
        Plan.from_journal(entry)
    assert "abandon" in error.value.fix


# -- the journals of versions that kept no request: these words are theirs, and never change


def older(words: str, name: str = "reset") -> PlanRequest | None:
    return in_words(name, {"facts": {"asked": words}})


def digest(offsets: Mapping[str, Mapping[int, int]]) -> str:
    return positions.digest_of(offsets)


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        ("--to-earliest --state clear --output new", Request(target=EARLIEST)),
        ("--to-latest --state keep --output keep", Request(target=Target(kind="latest", text=""), state="keep")),
        ("--to-current --state clear --output truncate", Request(target=Target(kind="current", text=""), output="truncate")),
        ("--to-datetime 2026-11-21T12:00:00.000+01:00 --state clear --output new",
         Request(target=positions.at_time("2026-11-21T11:00:00Z"))),
        ("--by-duration PT6H --state clear --output new", Request(target=positions.before_now("PT6H", LATER_MS))),
        ("--shift-by -5 --state clear --output new", Request(target=Target(kind="shift", text="", number=-5))),
        ("--to-offset 99 --state clear --output tombstone", Request(target=positions.to_offset(99), output="tombstone")),
        ("--skip lines:2:532 --state keep --output keep", Request(target=positions.one_record("lines:2:532"))),
        (f"--from-file to --state x (1).csv ({digest({'trades': {0: 7}})}) --state clear --output new",
         Request(target=Target(kind="file", text="", offsets={"trades": {0: 7}}))),
        ("--to-earliest --state clear --output keep --input-topics orders,trades:1,0 --until 2026-11-21T12:00:00.000Z "
         "--max-records-per-batch 5 --stay-stopped",
         Request(target=EARLIEST, output="keep", inputs={"trades": (0, 1), "orders": None},
                 until=positions.until_of("2026-11-21T12:00:00Z"), max_records_per_batch=5, stay_stopped=True)),
        ("--to-earliest --state clear --output new --until current --stay-stopped",
         Request(target=EARLIEST, until=positions.until_of("current"), stay_stopped=True)),
        ("--to-earliest --state clear --output new --until 1500", Request(target=EARLIEST, until=positions.until_of("1500"))),
    ],
)  # fmt: skip
def test_what_an_older_version_kept_as_words_is_understood(words: str, request_: Request) -> None:
    assert older(words) == request_.asked()
    log = under_way(opened(RESET, request=None, facts={"asked": words}))
    assert plan_reset(context_of(log), "a.v1", request_).stages == STAGES


def test_an_undo_of_an_older_version_is_understood() -> None:
    assert older("reset-20261125-152902-bc48", "undo") == UndoRequest(reset="reset-20261125-152902-bc48")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--to-earliest --state clear --output new", "promote"), ("--to-earliest --state clear --output new", "undo"),
        ("reset-1", "reset"), ("", "reset"), ("--to-earliest", "reset"), ("--to-mars --state clear --output new", "reset"),
        ("--to-earliest --state odd --output new", "reset"), ("--to-offset x --state clear --output new", "reset"),
        ("--from-file a.csv --state clear --output new", "reset"), ("--by-duration x --state clear --output new", "reset"),
        ("--skip x --state clear --output new", "reset"), ("../..", "undo"),
        ("--to-earliest --state clear --output new --until x", "reset"),
    ],
)  # fmt: skip
def test_other_words_are_no_request(words: str, name: str) -> None:
    assert older(words, name) is None


@pytest.mark.parametrize("plan", [{}, {"facts": None}, {"facts": []}, {"facts": {"asked": 7}}, {"facts": {}}])
def test_a_plan_without_words_has_no_request(plan: dict[str, Any]) -> None:
    assert in_words("reset", plan) is None


def test_the_reset_in_the_journal_of_0_1_is_understood() -> None:
    records = Path(__file__).resolve().parents[2] / "upgrade" / "records-0.1.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    entries = [decode(line["value"].encode()) for line in lines if line["topic"] == REGISTRY_TOPIC]
    [reset] = [e for e in entries if isinstance(e, Opened) and e.name == "reset"]
    assert Plan.from_journal(reset).request == ANEW
