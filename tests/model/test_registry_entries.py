"""Every kind of registry entry, written and read back."""

from __future__ import annotations

from typing import get_args

import pytest

from pipelines.model.entries import (
    AlignOrdered,
    AnyEntry,
    Carried,
    Closed,
    DeltaSegment,
    Entry,
    EvidenceRecorded,
    FollowerRegistered,
    FollowerRemoved,
    GenerationStarted,
    HistoryAccepted,
    Holder,
    LeaseEnded,
    LeaseTaken,
    MarkOrdered,
    Opened,
    Promoted,
    Proposed,
    ReadyRecorded,
    Repaired,
    ResultSpec,
    Staged,
    StateSet,
    StaticTableSpec,
    Switch,
    SwitchAborted,
    TopicsKnown,
    VerdictRecorded,
    WantedSet,
    decode,
    encode,
)
from pipelines.model.missing import Gap
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import Boundary, Progress
from pipelines.model.registry import RegistryState, fold
from tests.engine.test_lease import SPEC

NAME, OP = "sums.v1", "promote-1"
AT = SourcePosition(sources={"lines": {0: 5, 11: 7}})
RESULT = ResultPosition(topics={"sums.v1.g1": {0: 3}})
GAP = Gap(topic="lines", partition=0, start=0, end=5, why="deleted")
SUMMARY = {"only_live": 1, "only_new": 0, "changed": 2, "identical": 9, "samples": [{"key": "a"}], "ratio": 0.25}
SEGMENT = DeltaSegment(topic="sums.delta.diff-1", start=0, end=4)
OLD_END = ResultPosition(topics={"sums.v0.g1": {0: 3}})
SWITCH = Switch(number=2, old="sums.v0", old_generation=1, old_end=OLD_END, new=NAME, new_generation=1, new_start=RESULT,
                delta=(SEGMENT,), cut=AT, allowed="gap")  # fmt: skip

RATES = StaticTableSpec(
    topic="rates", topic_id="an-id", position={0: 5, 11: 7}, rows=3, size_bytes=99, digest="1" * 64, malformed=2
)
PROGRESS = Progress(
    release=NAME, generation=1, token=1, boundary=Boundary(batch_id=3, position=AT), result=RESULT, at_ms=1
)

ENTRIES: list[Entry] = [
    Staged(spec=SPEC.model_copy(update={"static_tables": {"rates": RATES}}), at_ms=1, actor="me", reason="because"),
    GenerationStarted(release=NAME, generation=1, start=AT),
    StateSet(release=NAME, state="hydrating"),
    WantedSet(release=NAME, wanted="running"),
    LeaseTaken(release=NAME, token=4, holder=Holder(host="h", boot_id="b", pid=1, started=2)),
    LeaseEnded(release=NAME, token=4),
    Opened(id=OP, name="promote", releases=(NAME,), alias="sums", deadline_ms=9, plan={"facts": {"a": "b"}}),
    AlignOrdered(id=OP, release=NAME, other="sums.v0", switch=2),
    MarkOrdered(id=OP, release="sums.v0", past=AT, switch=2, alias="sums", deadline_ms=9),
    EvidenceRecorded(
        id="diff-1",
        live="sums.v0",
        live_generation=1,
        new=NAME,
        new_generation=1,
        cut=AT,
        live_result=OLD_END,
        new_result=RESULT,
        summary=SUMMARY,
        forward=SEGMENT,
    ),
    VerdictRecorded(
        release=NAME,
        generation=1,
        evidence="diff-1",
        upto=RESULT,
        passed=3,
        failed=1,
        errored=0,
        failures=("a",),
        docs="index.html",
    ),
    ReadyRecorded(release=NAME, generation=1, facts={"behind_records": 0}, via="dagster"),
    Carried(id=OP, holder=Holder(host="h", boot_id="b", pid=1, started=2)),
    Proposed(id="promote-2", name="promote", releases=(NAME,), alias="sums", plan={"facts": {"a": "b"}}),
    Staged(spec=SPEC.model_copy(update={"release": "sums.v0", "version": 0})),
    Promoted(alias="sums", switch=SWITCH, op=OP),
    SwitchAborted(alias="sums", id="promote-2"),
    FollowerRegistered(alias="sums", group="reader"),
    FollowerRemoved(alias="sums", group="gone"),
    Repaired(offsets=(3, 5)),
    HistoryAccepted(release=NAME, missing=(GAP,)),
    TopicsKnown(release=NAME, generation=1, inputs={"lines": "4f-_x"}, own={"sums.v1.g1": "5a"}),
    Closed(id=OP, outcome="done", detail="fine"),
    GenerationStarted(
        release="sums.v0",
        generation=2,
        start=AT,
        result=1,
        ended=PROGRESS,
        seed=PROGRESS,
        meet=True,
        cleared=True,
        until=AT,
        then=AT,
        processed=(Span(start=AT, end=AT),),
        max_records_per_batch=5,
        op="reset-1",
    ),
]


def test_every_kind_of_entry_is_tried_here() -> None:
    assert {type(each) for each in ENTRIES} == set(get_args(get_args(AnyEntry)[0]))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_is_read_back_as_it_was_written(entry: Entry) -> None:
    assert decode(encode(entry)) == entry


def test_a_release_without_static_tables_says_nothing_of_them_that_an_older_version_could_not_read() -> None:
    assert b"static_tables" not in encode(Staged(spec=SPEC))


def test_a_record_has_the_columns_of_its_result_but_those_that_name_its_source() -> None:
    ddl = "`n` decimal(8,2), `k` string, `topic` string, `partition` int, `offset` bigint"
    stream = ResultSpec(table=False, key=("k",), partitions=1, schema_ddl=ddl, suite=None)
    assert list(stream.written.items()) == [("k", "string"), ("n", "decimal(8,2)")]
    table = stream.model_copy(update={"table": True})
    assert list(table.written) == ["k", "n", "topic", "partition", "offset"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_about_something_unknown_changes_nothing_that_is_known(entry: Entry) -> None:
    state = fold(RegistryState(), [entry])
    assert NAME not in state.releases or isinstance(entry, Staged)
    assert OP not in state.operations or isinstance(entry, Opened)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"kind":"none"}', b'{"kind":"state","release":"a","state":"odd"}'])
def test_anything_else_is_not_an_entry(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_the_entries_fold_to_what_they_say_whether_read_at_once_or_one_by_one() -> None:
    whole = fold(RegistryState(), ENTRIES)
    stepwise = RegistryState()
    for entry in ENTRIES:
        stepwise = fold(stepwise, [decode(encode(entry))])
    assert stepwise == whole
    release, operation = whole.releases[NAME], whole.operations[OP]
    assert (release.state, release.wanted, release.generation, release.token) == ("hydrating", "running", 1, 4)
    assert release.lease_ended and release.start == AT and release.staged_ms == 1
    assert release.ready is not None and release.verdict is not None and release.verdict.failures == ("a",)
    assert operation.promoted is not None and operation.closed is not None and operation.resolved
    assert whole.chains["sums"] == (SWITCH,) and whole.live("sums") == SWITCH
    assert whole.followers["sums"] == ("reader",)
    assert [e.id for e in whole.evidence] == ["diff-1"]
    assert whole.open_align(NAME) is None and whole.blocking(NAME) is None


def test_orders_stand_until_their_operation_is_resolved() -> None:
    upto = fold(RegistryState(), ENTRIES[:9])
    assert upto.open_align(NAME) == ENTRIES[7]
    assert upto.open_mark("sums.v0") == ENTRIES[8]
    assert upto.blocking(NAME) is not None
    aborted = fold(upto, [SwitchAborted(alias="sums", id=OP)])
    assert aborted.open_align(NAME) is None and aborted.open_mark("sums.v0") is None


def test_a_lease_that_is_not_the_newest_ends_nothing() -> None:
    state = fold(RegistryState(), [*ENTRIES[:5], LeaseEnded(release=NAME, token=3)])
    assert not state.releases[NAME].lease_ended


def test_generations_end_and_are_begun_again() -> None:
    staged: list[Entry] = [Staged(spec=SPEC), GenerationStarted(release=NAME, generation=1, start=AT)]
    second = GenerationStarted(release=NAME, generation=2, start=AT, ended=PROGRESS, op="reset-1")
    release = fold(RegistryState(), [*staged, second]).releases[NAME]
    assert (release.generation, release.result_topics[""], release.ended) == (2, "sums.v1.g2", {1: PROGRESS})
    assert release.end_of("sums.v1.g1") == RESULT and release.end_of("sums.v1.g2") is None
    # a generation that keeps writing the first one's result
    third = GenerationStarted(release=NAME, generation=3, start=AT, result=1, ended=PROGRESS)
    kept = fold(RegistryState(), [*staged, third]).releases[NAME]
    assert kept.result_topics[""] == "sums.v1.g1" and kept.end_of("sums.v1.g1") is None
    # started again, the first is under way and the second has ended; its number is not used again
    newer = PROGRESS.model_copy(update={"generation": 2})
    again = GenerationStarted(release=NAME, generation=1, start=AT, ended=newer, seed=PROGRESS, op="undo-1")
    back = fold(RegistryState(), [*staged, second, again]).releases[NAME]
    assert (back.generation, back.ended, sorted(back.generations)) == (1, {2: newer}, [1, 2])
    assert back.under is not None and back.under.seed == PROGRESS and back.generations[1].seed is None


def test_a_new_generation_has_neither_readiness_nor_verdict() -> None:
    state = fold(RegistryState(), [*ENTRIES, GenerationStarted(release=NAME, generation=2, start=AT)])
    assert state.releases[NAME].ready is None and state.releases[NAME].verdict is None
