"""Entries, progress records and heartbeats that this version can't read are skipped and counted, or hold a driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestration.operations import journal
from orchestration.operations.execute import execute
from orchestration.operations.lifecycle import live_release, refuse_blocked
from orchestration.operations.looking.in_use import notes
from orchestration.operations.looking.unread import in_short
from orchestration.operations.planning.repair import plan_repair
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.supervising.overview import audit
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.snapshots import Folding
from pipelines.model import registry as model
from pipelines.model.entries import (
    DeltaSegment,
    Entry,
    EvidenceRecorded,
    Opened,
    Promoted,
    Repaired,
    WantedSet,
    decode,
    encode,
    read,
)
from pipelines.model.positions import ResultPosition
from pipelines.model.progress import Heartbeat, Progress, read_heartbeat, read_progress
from pipelines.model.registry import RegistryState, fold
from pipelines.model.switch import expired
from pipelines.model.unread import MAX_NUMBER, Unread, read_record
from tests.model.test_registry_entries import ENTRIES, PROGRESS
from tests.operations.builders import Log, context_of, evidence, generation, staged, switched

GARBAGE = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"kind": ["staged"]}',
    b'{"kind": "wanted"}',
    b'{"kind": "wanted", "release": "a.v1", "wanted": "running", "colour": "red"}',
    b'{"kind": "wanted", "release": "a.v1", "wanted": "running", "schema_version": "two"}',
    b'{"kind": "wanted", "release": "a.v1", "wanted": "running", "schema_version": true}',
    b'{"kind": "of-tomorrow", "release": "a.v1"}',
    b'{"kind": "wanted", "release": "a.v1", "wanted": "running", "at_ms": 1' + b"0" * 18 + b"}",
    b'{"kind": "ready", "release": "a.v1", "generation": 1, "facts": {"records_per_s": 1' + b"0" * 400 + b"}}",
    b'{"kind": "ready", "release": "a.v1", "generation": 1, "facts": {"records_per_s": 1e400}}',
    b'{"kind": "ready", "release": "a.v1", "generation": 1, "facts": {"records_per_s": NaN}}',
    b'{"kind": "ready", "release": "a.v1", "generation": ' + b"1" * 5_000 + b"}",
]


def written(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def unread(data: bytes, offset: int = 7) -> Unread:
    found = read(data, offset)
    assert isinstance(found, Unread)
    return found


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_a_record_that_is_no_entry_is_skipped_and_counted_and_holds_nothing(data: bytes) -> None:
    state = fold(RegistryState(), [*staged("a.v1"), unread(data), WantedSet(release="a.v1", wanted="running")])
    assert [u.offset for u in state.unread] == [7] and state.releases["a.v1"].wanted == "running"
    assert state.not_understood("a.v1") is None
    assert in_short(state) == "1 entry of the registry can't be read by this version"


@pytest.mark.parametrize(
    "changes",
    [
        {"changed": None},
        {"changed": "3"},
        {"identical": -1},
        {"samples": "none"},
        {"columns": {"price": "many"}},
        {"live_watermark_ms": "noon"},
        {"results": {"bids": {"changed": 1}}},
    ],
    ids=str,
)
def test_evidence_without_counts_is_not_read(changes: dict[str, Any]) -> None:
    good = evidence("a.v1", "a.v2").model_dump(mode="json", exclude_defaults=True)
    assert isinstance(read(written(kind="evidence", **good), 7), EvidenceRecorded)
    summary = {name: value for name, value in {**good["summary"], **changes}.items() if value is not None}
    assert "summary" in unread(written(kind="evidence", **{**good, "summary": summary})).reason


def test_a_number_that_json_holds_exactly_is_read() -> None:
    entry = decode(written(kind="wanted", release="a.v1", wanted="running", at_ms=MAX_NUMBER))
    assert entry.at_ms == MAX_NUMBER
    # digits in a text are not a number
    digest = "1" * 64
    assert decode(encode(entry.model_copy(update={"reason": digest}))).reason == digest


def test_an_entry_that_can_be_read_and_not_be_taken_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = model._apply

    def fails(draft: Any, entry: Any) -> None:
        if getattr(entry, "reason", None) == "a bug":
            raise ZeroDivisionError
        taken(draft, entry)

    monkeypatch.setattr(model, "_apply", fails)
    entries = [*staged("a.v1"), WantedSet(release="a.v1", wanted="stopped", reason="a bug"),
               WantedSet(release="a.v1", wanted="running")]  # fmt: skip
    folding = Folding()
    assert folding.take([(offset, encode(entry)) for offset, entry in enumerate(entries)])
    assert folding.state.releases["a.v1"].wanted == "running"
    [found] = folding.state.unread
    assert found.offset == len(entries) - 2 and "ZeroDivisionError" in found.reason


def test_a_generation_that_names_itself_as_its_seed_hangs_nobody() -> None:
    ended = PROGRESS.model_copy(update={"release": "a.v1", "generation": 2})
    entry = generation("a.v1", 2, seed=ended, ended=ended, at_ms=5)
    release = fold(RegistryState(), [*staged("a.v1"), entry]).releases["a.v1"]
    assert release.generation == 2 and (release.start, release.started_ms) == (entry.start, 5)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: type(e).__name__)
def test_an_entry_is_written_so_that_the_first_version_reads_it(entry: Entry) -> None:
    """That version refuses unknown fields: so no version, and nothing with its default value, is written."""
    said = json.loads(encode(entry))
    assert "schema_version" not in said and "must_understand" not in said
    assert None not in said.values() and decode(encode(entry)) == entry
    # the form that version wrote: every field
    assert decode(entry.model_dump_json().encode()) == entry


def test_of_a_newer_schema_what_is_known_is_read() -> None:
    entry = decode(written(kind="wanted", release="a.v1", wanted="running", colour="red", schema_version=2))
    assert entry == WantedSet(release="a.v1", wanted="running")
    newer = json.loads(PROGRESS.model_dump_json()) | {"schema_version": 2, "colour": "red"}
    newer["boundary"]["shape"] = "round"
    assert read_progress(json.dumps(newer).encode()) == PROGRESS
    beat = {"release": "a.v1", "generation": 1, "token": 1, "host": "h", "pid": 1, "at_ms": 1, "state": "running"}
    assert read_heartbeat(written(**beat, schema_version=9, mood="good")) == Heartbeat.model_validate(beat)


@pytest.mark.parametrize("reading", [read_progress, read_heartbeat])
@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_record_is_told_from_one(data: bytes, reading: Callable[[bytes], object]) -> None:
    with pytest.raises(ValueError):
        reading(data)


def test_a_record_that_must_be_understood_is_not_read_in_part() -> None:
    newer = json.loads(PROGRESS.model_dump_json()) | {"schema_version": 2, "must_understand": True}
    with pytest.raises(ValueError, match="schema version 2, but this version of Switchyard knows only 1"):
        read_record(Progress, json.dumps(newer).encode())
    newer |= {"must_understand": False, "token": "many"}
    # a field that this version doesn't know may be there: a newer version may have written it
    with pytest.raises(ValueError, match=r"^token: [^;]*$"):
        read_progress(json.dumps(newer | {"colour": "red"}).encode())
    newer |= {"schema_version": 1, "must_understand": True, "token": PROGRESS.token}
    assert read_progress(json.dumps(newer).encode()) == PROGRESS


MUST = written(kind="moved", release="a.v2", actor="ann", op="move-1", schema_version=1, must_understand=True)


@pytest.mark.parametrize(
    "data",
    [
        MUST,
        written(kind="wanted", release="a.v1", wanted="running", schema_version=2, must_understand=True),
        # kinds of the first version that decide who writes and where consumers read have no such mark
        written(kind="promoted", alias="a", switch={"number": 2}),
        written(kind="lease", release="a.v1", token=4, holder={}, colour="red"),
        written(kind="generation", release="a.v1", generation="two"),
    ],
)
def test_an_unreadable_entry_holds_the_app_that_it_names_and_no_other(data: bytes) -> None:
    log = Log(*staged("a.v1", "a.v2", "b.v1"))
    log.entries.append(unread(data))  # type: ignore[arg-type]
    state = log.state()
    for name in ("a", "a.v1", "a.v2"):
        assert state.not_understood(name) == state.unread[0]
    assert state.not_understood("b") is None and state.not_understood("b.v1") is None
    assert any(
        "held: this version of Switchyard can't read entry 7" in note for note in notes(state, state.releases["a.v1"])
    )
    refuse_blocked(state, "b.v1")
    with pytest.raises(Refused, match=r"a.v1 is held.*entry 7 of the registry"):
        refuse_blocked(state, "a.v1")
    plan = Plan(id="stop-1", operation=Kind.STOP, releases=("a.v1",), stages=())
    with pytest.raises(Refused, match=r"a.v1 is held"):
        journal.begin(context_of(log), plan)
    assert state == log.state()


def test_a_switch_that_leads_to_no_result_holds_its_app_and_stops_no_follower() -> None:
    [moved] = [json.loads(encode(e)) for e in switched(1, None, "a.v1") if isinstance(e, Promoted)]
    moved["switch"]["new_start"]["topics"] = {}
    folding = Folding()
    folding.take(list(enumerate([*map(encode, staged("a.v1", "b.v1")), written(**moved)])))
    state = folding.state
    assert "a" not in state.chains and state.not_understood("a") is not None and state.not_understood("b") is None


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "the number of the one before": {"number": 1},
    "a number that leaves one out": {"number": 3},
    "from a release that is not live": {"old": "a.v3"},
    "from another generation": {"old_generation": 2},
    "to another app": {"new": "b.v1", "new_start": {"topics": {"b.v1.g1": {"0": 0}}}},
    "to a topic of somebody else": {"new_start": {"topics": {"payroll": {"0": 0}}}},
    "to the results of the other release": {"new_start": {"topics": {"a.v1.g1": {"0": 0}}}},
    "to a partition that no client takes": {"new_start": {"topics": {"a.v2.g1": {str(2**31): 0}}}},
    "to a partition before the first": {"new_start": {"topics": {"a.v2.g1": {"-1": 0}}}},
    "to an offset before the first": {"new_start": {"topics": {"a.v2.g1": {"0": -7}}}},
    "until a topic of somebody else": {"old_end": {"topics": {"payroll": {"0": 5}}}},
    "by a topic of somebody else": {"delta": [{"topic": "payroll", "start": 0, "end": 5}]},
    "by the delta of another app": {"delta": [{"topic": "b.delta.diff-1", "start": 0, "end": 5}]},
    "by an offset before the first": {"delta": [{"topic": "a.delta.diff-1", "start": -1, "end": 5}]},
}


@pytest.mark.parametrize("changes", [{}, *IMPOSSIBLE.values()], ids=["as it is", *IMPOSSIBLE])
def test_a_switch_without_an_operation_moves_no_consumer_and_holds_its_app(changes: dict[str, Any]) -> None:
    known = [*staged("a.v1", "a.v2", "a.v3", "b.v1", "c.v1"), *switched(1, None, "a.v1")]
    [moved] = [json.loads(encode(e)) for e in switched(2, "a.v1", "a.v2") if isinstance(e, Promoted)]
    moved["switch"] |= changes
    folding = Folding()
    folding.take(list(enumerate([*map(encode, known), written(**moved)])))
    state = folding.state
    live = state.live("a")
    assert live is not None and live.new == ("a.v1" if changes else "a.v2")
    assert (state.not_understood("a") is not None) == bool(changes)
    assert state.not_understood("c") is None
    if changes:
        [found] = state.unread
        repaired = fold(state, [Repaired(offsets=(found.offset,))])
        assert repaired.not_understood("a") is None and repaired.live("a") == live


DELTA: dict[str, Any] = {"topic": "a.delta.diff-1", "start": 0, "end": 5}
ELSEWHERE: dict[str, dict[str, Any]] = {
    **{f"a delta to write into {topic}": {side: {**DELTA, "topic": topic}}
       for topic in ("payments", "switchyard.heartbeats", "a.v1.g1", "b.delta.diff-1", "a.delta.diff-2")
       for side in ("forward", "backward")},
    "a live result of somebody else": {"live_result": {"topics": {"payroll": {"0": 0}}}},
    "a new result of somebody else": {"new_result": {"topics": {"payroll": {"0": 0}}}},
    "the result of the other release": {"new_result": {"topics": {"a.v1.g1": {"0": 0}}}},
    "the result of another generation": {"live_result": {"topics": {"a.v1.g2": {"0": 0}}}},
    "a partition that the result does not have": {"live_result": {"topics": {"a.v1.g1": {"1": 0}}}},
    "an offset before the first": {"new_result": {"topics": {"a.v2.g1": {"0": -1}}}},
    "a release of another app": {"live": "b.v1", "live_result": {"topics": {"b.v1.g1": {"0": 3}}}},
    "a release that there is not yet": {"new": "a.v3", "new_result": {"topics": {"a.v3.g1": {"0": 3}}}},
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, *ELSEWHERE.values()], ids=["as it is", *ELSEWHERE])
def test_evidence_that_names_what_no_diff_does_is_not_taken(changes: dict[str, Any]) -> None:
    """A promotion writes into the topic of its delta, and reads its results."""
    made = evidence("a.v1", "a.v2", live_result=ResultPosition(topics={"a.v1.g1": {0: 3}}),
                    new_result=ResultPosition(topics={"a.v2.g1": {0: 3}}),
                    forward=DeltaSegment(**DELTA), backward=DeltaSegment(**DELTA))  # fmt: skip
    data = written(**{**json.loads(encode(made)), **changes})
    assert isinstance(read(data, 7), EvidenceRecorded)
    folding = Folding()
    folding.take(list(enumerate([*map(encode, staged("a.v1", "a.v2", "b.v1")), data])))
    state = folding.state
    assert (len(state.evidence), len(state.unread)) == ((0, 1) if changes else (1, 0))
    # a diff decides nothing, so nobody waits for it
    assert state.not_understood("a") is None


def test_evidence_of_a_reset_is_about_two_generations_of_one_release() -> None:
    """The third writes on in the topic of the first, as after a reset with `--output keep`."""
    began = [generation("a.v1", 2), generation("a.v1", 3, result=1)]
    made = evidence("a.v1", "a.v1", id="reset-1", live_generation=2, new_generation=3,
                    live_result=ResultPosition(topics={"a.v1.g2": {0: 3}}),
                    new_result=ResultPosition(topics={"a.v1.g1": {0: 3}}),
                    forward=DeltaSegment(topic="a.delta.reset-1", start=0, end=2))  # fmt: skip
    folding = Folding()
    folding.take(list(enumerate(map(encode, [*staged("a.v1"), *began, made]))))
    assert folding.state.evidence == (made,) and folding.state.unread == ()


@pytest.mark.parametrize("partitions", [0, -1, MAX_NUMBER])
def test_a_number_of_partitions_that_no_topic_has_is_not_read(partitions: int) -> None:
    """Whoever starts or resets the release would list them."""
    said = json.loads(encode(staged("a.v1")[0]))
    for place in (said["spec"], said["spec"]["inputs"]["trades"]):
        before, place["partitions"] = place["partitions"], partitions
        with pytest.raises(ValueError, match="partitions: "):
            decode(written(**said))
        place["partitions"] = before
    decode(written(**said))


def test_a_switch_to_an_unread_release_holds_its_app_until_it_is_repaired() -> None:
    newer = written(kind="staged", schema_version=9, spec={"release": "a.v2", "app": "a", "shape": "new"})
    moved = [encode(e) for e in switched(2, "a.v1", "a.v2") if isinstance(e, Promoted)]
    known = [*staged("a.v1", "b.v1"), *switched(1, None, "a.v1")]
    records = list(enumerate([*map(encode, known), newer, *moved, encode(WantedSet(release="b.v1", wanted="running"))]))
    whole, stepwise = Folding(), Folding()
    whole.take(records)
    for record in records:
        stepwise.take([record])
    assert whole.state == stepwise.state
    state = whole.state
    # neither is the switch passed over nor does anything fail by it
    assert [switch.number for switch in state.chains["a"]] == [1] and live_release(state, "a") == state.releases["a.v1"]
    found = state.not_understood("a.v1")
    assert found is not None and (found.offset, found.kind) == (len(records) - 2, "promoted")
    assert "it names release a.v2" in found.reason
    assert state.not_understood("b.v1") is None and state.releases["b.v1"].wanted == "running"
    with pytest.raises(Refused, match=r"a\.v1 is held"):
        refuse_blocked(state, "a.v1")
    repaired = fold(state, [Repaired(offsets=(found.offset,))])
    assert repaired.not_understood("a.v1") is None
    refuse_blocked(repaired, "a.v1")


def test_what_must_be_understood_and_names_nothing_holds_what_its_operation_is_on_or_all() -> None:
    opened = Opened(id="move-1", name="move", releases=("a.v1",), deadline_ms=1)
    nameless = written(kind="moved", op="move-1", must_understand=True)
    state = fold(RegistryState(), [*staged("a.v1", "b.v1"), opened, unread(nameless)])
    assert state.not_understood("a.v1") is not None and state.not_understood("b.v1") is None
    state = fold(RegistryState(), [*staged("a.v1", "b.v1"), unread(nameless)])
    assert state.not_understood("a.v1") is not None and state.not_understood("b.v1") is not None
    # an entry that decides and names nothing is from no version
    assert not unread(written(kind="promoted", switch=3)).must


def test_an_operation_of_which_something_is_not_understood_is_left_to_who_understands_it() -> None:
    opened = Opened(id="move-1", name="move", releases=("a.v1",), deadline_ms=1)
    assert expired(fold(RegistryState(), [opened]), 2) != []
    assert expired(fold(RegistryState(), [opened, unread(MUST)]), 2) == []


def test_what_must_be_understood_is_kept_and_of_the_others_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "UNREAD_KEPT", 3)
    entries = [unread(MUST, 0), *(unread(b"", n) for n in range(1, 12))]
    state = fold(RegistryState(), entries)
    assert (state.unread[0].offset, state.unread[-1].offset) == (0, 11)
    assert len(state.unread) + state.unread_before == 12 and len(state.unread) <= 7
    stepwise = RegistryState()
    for entry in entries:
        stepwise = fold(stepwise, [entry])
    assert stepwise == state
    assert "12 entries" in (
        in_short(state) or ""
    ) and "1 of them must not be ignored: the releases that it names are held" in (in_short(state) or "")


def test_a_repair_has_them_not_count_any_more_and_the_log_keeps_them() -> None:
    log = Log(*staged("a.v1"))
    log.entries += [unread(b"", 5), unread(MUST, 7)]  # type: ignore[list-item]
    context = context_of(log)
    with pytest.raises(BadUsage, match="no unread entry at offset 6"):
        plan_repair(context, (6,))
    plan = plan_repair(context, (5,))
    assert plan.warnings == ("this can't be undone; the entries stay in the registry",)
    execute(context, plan)
    assert [u.offset for u in log.state().unread] == [7]
    plan = plan_repair(context)
    assert any("if you can, upgrade instead" in each for each in plan.warnings)
    execute(context, plan)
    state = log.state()
    assert (state.unread, in_short(state)) == ((), None)
    refuse_blocked(state, "a.v1")
    assert [e.offset for e in audit(context, "a.v2") if isinstance(e, Unread)] == [7]
    assert [e.offset for e in audit(context) if isinstance(e, Unread)] == [5, 7]
    with pytest.raises(BadUsage, match="every entry of the registry can be read"):
        plan_repair(context)


def test_a_repair_is_an_entry_that_is_there_only_where_the_first_version_is_lost_anyway() -> None:
    entry = Repaired(offsets=(3,))
    assert decode(encode(entry)) == entry


def test_what_is_shown_of_an_entry_holds_no_control_characters() -> None:
    found = unread(written(kind="x\x1b[2J", actor="a\nb", release="r\x07", must_understand=True))
    assert all(c.isprintable() for c in f"{found}{found.kind}{found.writer}{found.about}")
    assert (found.kind, found.writer, found.about) == ("x\\x1b[2J", "a\\nb", ("r\\x07",))
    assert len(unread(written(kind="\x1b" * 1000)).kind or "") == 200
    # a follower logs it in its own program
    for record in (
        PROGRESS,
        Heartbeat(release="a.v1", generation=1, token=1, host="h", pid=1, at_ms=1, state="running"),
    ):
        with pytest.raises(ValueError, match=r"^\\x1b\[2J: Extra inputs") as error:
            read_record(type(record), json.dumps({**json.loads(record.model_dump_json()), "\x1b[2J": 1}).encode())
        assert str(error.value).isprintable()
