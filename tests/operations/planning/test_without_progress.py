"""What operations do about a live release whose progress topic is lost: its consumer group may tell where it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import pipelines.kafka.kept as kept_module
import pipelines.kafka.log as log_module
from orchestration.operations.applying import fencing
from orchestration.operations.comparing.backlog import backlog_of
from orchestration.operations.context import Context
from orchestration.operations.looking.costs import room_of
from orchestration.operations.looking.history import history_of
from orchestration.operations.looking.progress import processed
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.procedures.wait import _late_drops
from pipelines.errors import Unavailable
from pipelines.kafka.clock import now_ms
from pipelines.kafka.kept import Kept
from pipelines.kafka.progress import ProgressLost, newest_progress
from pipelines.model.entries import Entry, InputSpec, Opened, Staged, StateSet, TopicsKnown
from pipelines.model.missing import Gap, InputNow
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.settings import Settings
from tests.operations.builders import ENDED, POSITION, Kafka, Log, context_of, evidence, generation, spec, switched

LIVE, STANDBY = "a.v2", "a.v1"
PROGRESS, RESULT = f"{LIVE}.progress", f"{LIVE}.g1"
# as the driver of the live release has committed it with its batch 7 of generation 1
START = SourcePosition(sources={"trades": {0: 0}})
GROUP = {LIVE: {"trades": {0: (5, "1:7")}}}
RESET = f"switchyard reset {LIVE} --to-earliest --output new --execute"


def log_of(**changes: Any) -> Log:
    """`a.v2` is live and has failed; `a.v1` is its standby."""
    both = [e for name in (STANDBY, LIVE) for e in (Staged(spec=spec(name, **changes)), generation(name, start=START))]
    ids = TopicsKnown(release=LIVE, generation=1, inputs={}, own={PROGRESS: "old", RESULT: ""})
    compared = evidence(STANDBY, LIVE, at_ms=now_ms(), live_result=ResultPosition(topics={f"{STANDBY}.g1": {0: 0}}),
                        new_result=ResultPosition(topics={RESULT: {0: 0}}))  # fmt: skip
    switches: list[Entry] = [*switched(1, None, STANDBY), *switched(2, STANDBY, LIVE)]
    return Log(*both, *switches, ids, StateSet(release=LIVE, state="failed"), compared)


def kafka_of(committed: Mapping[str, Any] = GROUP, *, gone: str = PROGRESS, **also: Any) -> Kafka:
    return Kafka(
        ids=lambda topics: {t: "" for t in topics if t not in (gone, PROGRESS)},
        committed=committed, end={RESULT: {0: 9}}, **also,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def around(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby runs and has read what the live release had read; the topic of that one's progress is gone."""

    def progress(_: Context, name: str) -> Any:
        if name == LIVE:
            raise ProgressLost(LIVE)
        return ENDED

    beat = SimpleNamespace(at_ms=now_ms(), lag_records=0, batch_records=10)
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_, **__: {STANDBY: beat})
    monkeypatch.setattr("orchestration.operations.context.Context.progress", progress)
    monkeypatch.setattr("orchestration.operations.reading.held_by",
                        lambda release, *_, **__: "someone" if release.name == STANDBY else None)  # fmt: skip
    monkeypatch.setattr("orchestration.operations.looking.progress.ends_of", lambda *_, **__: {RESULT: {0: 9}})
    monkeypatch.setattr("orchestration.operations.planning.rollback.progress_history", lambda *_: [ENDED])


@pytest.mark.parametrize("table", [True, False], ids=["table", "stream"])
def test_consumers_go_back_to_a_standby_that_runs(table: bool) -> None:
    plan = plan_rollback(context_of(log_of(table=table), kafka_of()), "a")
    kinds = [type(stage).__name__ for stage in plan.stages]
    assert kinds == ["Fence", "ChooseStart", *(["WriteDelta"] if table else []), "AppendSwitch"]
    assert "exactly where the other ended" in plan.warnings[0]


TWICE = {name: InputSpec(topic="trades", partitions=1) for name in ("left", "right")}
MORE = {"trades": InputSpec(topic="trades", partitions=2)}


@pytest.mark.parametrize(
    ("committed", "changes"),
    [
        ({}, {}),
        # of another generation, or by another tool
        ({LIVE: {"trades": {0: (5, "9:7")}}}, {}),
        ({LIVE: {"trades": {0: (5, "")}}}, {}),
        # another tool has moved a partition; two sources share an offset
        (GROUP, {"table": False, "inputs": MORE}),
        (GROUP, {"table": False, "inputs": TWICE}),
    ],
)
def test_an_end_that_the_group_does_not_tell_is_not_guessed(
    committed: Mapping[str, Any], changes: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(**changes)
    with pytest.raises(ProgressLost, match=f"progress {PROGRESS} of {LIVE} is gone") as refused:
        plan_rollback(context_of(log, kafka_of(committed)), "a")
    assert RESET in refused.value.fix and refused.value.exit_code == 3
    # nor once it is fenced
    monkeypatch.setattr(fencing, "last_of", lost)
    with pytest.raises(ProgressLost):
        fencing.end_of(context_of(log, kafka_of(committed)), log.known.releases[LIVE])


def lost(*_: Any) -> None:
    raise ProgressLost(LIVE)


def test_without_a_result_up_to_its_end_consumers_do_not_leave_it() -> None:
    with pytest.raises(Exception, match=f"result {RESULT} of {LIVE} is gone") as refused:
        plan_rollback(context_of(log_of(), kafka_of(gone=RESULT)), "a")
    assert RESET in str(refused.value)


@pytest.mark.parametrize("last", [lost, lambda *_: None], ids=["gone", "recreated"])
def test_a_fenced_release_ends_where_its_group_does(last: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of()
    monkeypatch.setattr(fencing, "last_of", last)
    found = fencing.end_of(context_of(log, kafka_of()), log.known.releases[LIVE])
    assert found is not None and found.boundary.batch_id == 7
    assert (found.boundary.position, found.result) == (POSITION, ResultPosition(topics={RESULT: {0: 9}}))


def test_what_only_measures_goes_on_without_it() -> None:
    log, heard = log_of(), list[str]()
    context = context_of(log, kafka_of(), say=heard.append)
    state = log.known
    assert backlog_of(context, state.evidence[-1]).records == 2 * 9
    context.registry.cluster.first = {RESULT: {0: 2}}  # type: ignore[misc, attr-defined]
    assert f"the same as {LIVE}" in room_of(context, state.releases[LIVE])
    _late_drops(context, state, state.releases[STANDBY])
    assert heard == [f"progress {PROGRESS} of {LIVE} is gone: how many late rows it dropped is unknown"]


def test_what_the_live_release_has_read_is_told_by_its_group() -> None:
    log = log_of()
    log.entries += [Staged(spec=spec("a.v3")), generation("a.v3", start=START)]
    state, inputs = log.known, {"trades": InputNow(first={0: 0}, compacted=True)}
    context = context_of(log, kafka_of(inputs=inputs))
    [span] = processed(context, state, spec("a.v3"))
    assert span.end == POSITION
    found = history_of(context, state, state.releases["a.v3"])
    assert found.gaps == (Gap(topic="trades", partition=0, start=0, end=5, why="compacted"),)
    silent = context_of(log, kafka_of({}, inputs=inputs))
    with pytest.raises(ProgressLost):
        history_of(silent, state, state.releases["a.v3"])


def test_an_undo_names_the_reset_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of()
    log.entries += [
        Opened(id="reset-1", name="reset", releases=(LIVE,), deadline_ms=2**60),
        generation(LIVE, 2, op="reset-1", ended=ENDED.model_copy(update={"release": LIVE})),
    ]
    monkeypatch.setattr("orchestration.operations.planning.reset.undo._refuse_deleted_archive", lambda *_: None)
    monkeypatch.setattr("orchestration.operations.planning.reset.undo.refuse_blocked", lambda *_: None)
    monkeypatch.setattr("orchestration.operations.planning.reset.undo.under_way", lambda *_: None)
    with pytest.raises(ProgressLost, match=f"progress {PROGRESS} of {LIVE} is gone") as refused:
        plan_undo(context_of(log, kafka_of()), "reset-1")
    assert RESET in refused.value.fix


class Unled:
    """A client that does not know the topic."""

    def get_watermark_offsets(self, *_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    def unassign(self) -> None:
        """Nothing is assigned."""

    def close(self) -> None:
        """There is no connection."""


@pytest.mark.parametrize(("partitions", "kind"), [(None, ProgressLost), (1, Unavailable)])
def test_a_topic_that_is_gone_is_not_waited_for(
    partitions: int | None, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "tail_consumer", lambda _: Unled())
    monkeypatch.setattr(log_module, "partition_count", lambda *_: partitions)
    monkeypatch.setattr(log_module, "LED_S", 0.1)
    settings = Settings().model_copy(update={"request_timeout_s": 0.5})
    began = time.monotonic()
    with pytest.raises(kind):
        newest_progress(settings, LIVE, kept=Kept(settings))
    # one that is there may get a leader
    assert (time.monotonic() - began < 0.5) is (partitions is None)
