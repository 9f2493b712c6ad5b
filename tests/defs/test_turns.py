"""What sensors and schedules decide, by pure functions: from what the registry says to what Dagster is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    SkipReason,
    build_schedule_context,
    build_sensor_context,
)

from orchestration.defs import jobs, report, schedules, supervisor, watching
from orchestration.defs.jobs import promote_job
from orchestration.defs.resources import Alerts, Platform, SparkResource
from orchestration.defs.schedules import why_not
from orchestration.defs.supervisor import Memory, mirror, news
from orchestration.defs.watching import to_watch
from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.check import BeingReset
from orchestration.operations.procedures.refresh import Refreshed
from orchestration.operations.reading import Say
from orchestration.operations.supervising import alerts as alerting
from orchestration.operations.supervising.alerts import Alert, CheckNotRun, Send, told
from orchestration.operations.supervising.overview import ReleaseStatus
from orchestration.operations.supervising.watch import Watched
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model.entries import (
    Closed,
    Entry,
    GenerationStarted,
    Opened,
    Promoted,
    ReadyRecorded,
    ReleaseSpec,
    Staged,
    StateSet,
    Switch,
    VerdictRecorded,
    Via,
    WantedSet,
)
from pipelines.model.names import split_release
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import RegistryState, Release, fold
from pipelines.settings import get_settings
from tests.operations.builders import failed_checks

# Dagster's own, by this pydantic
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

NOW = 1_800_000_000_000
MINUTE = 60_000
NOWHERE = ResultPosition(topics={})


def staged(name: str, state: str = "ready", wanted: str = "running", schema_ddl: str = "`k` string") -> list[Entry]:
    """A release of the registry."""
    app, version = split_release(name) or ("", 0)
    spec = ReleaseSpec(
        release=name, app=app, version=version, module="m", code_digest="c" * 64, settings={}, inputs={}, table=True,
        key=("k",), partitions=1, schema_ddl=schema_ddl, suite="sums", watermark=None, comparable="exact",
        change="code",
    )  # fmt: skip
    start = SourcePosition(sources={})
    entries: list[Entry] = [Staged(spec=spec), GenerationStarted(release=name, generation=1, start=start)]
    return [*entries, StateSet(release=name, state=state), WantedSet(release=name, wanted=wanted)]  # type: ignore[arg-type]


def promoted(number: int, old: str | None, new: str, at_ms: int, operation: str = "promote") -> list[Entry]:
    """A switch of `sums`, by an operation of that name."""
    op = f"{operation}-{number}"
    switch = Switch(
        number=number, old=old, old_generation=1, old_end=NOWHERE, new=new, new_generation=1, new_start=NOWHERE
    )
    return [
        Opened(id=op, name=operation, releases=(new,), alias="sums", deadline_ms=NOW),
        Promoted(alias="sums", switch=switch, op=op, at_ms=at_ms),
        Closed(id=op, outcome="done"),
    ]


def world(*entries: list[Entry]) -> tuple[RegistryState, list[Entry]]:
    flat = [entry for some in entries for entry in some]
    return fold(RegistryState(), flat), flat


def beat(name: str) -> Heartbeat:
    return Heartbeat(release=name, generation=1, token=1, host="h", pid=1, at_ms=NOW, state="running", lag_records=7)


def status(release: Release, *, held: bool = True, live: bool = False) -> ReleaseStatus:
    return ReleaseStatus(
        release=release, beat=beat(release.name) if held else None, holder="process 1" if held else None, live=live
    )


# -- the supervisor


def test_the_memory_survives_the_cursor() -> None:
    memory = Memory(attempts={"sums.v1": (2, NOW)}, told={"x": NOW}, switches={"sums": 3}, mirrored={"y": 1})
    assert Memory.of(memory.model_dump_json()) == memory
    assert Memory.of(None) == Memory.of("of an older version") == Memory()


def test_each_is_told_of_at_most_once_a_minute() -> None:
    state, _ = world(staged("sums.v1"), promoted(1, None, "sums.v1", NOW))
    found = [status(state.releases["sums.v1"], live=True)]
    memory, told = Memory(), []
    for now in range(NOW, NOW + 10 * MINUTE, 10_000):
        told += news(memory, found, state, now)
    assert sum(isinstance(event, AssetMaterialization) for event in told) == 10
    assert sum(isinstance(event, AssetObservation) for event in told) == 10


def test_a_switch_is_told_at_once() -> None:
    state, _ = world(staged("sums.v1"), staged("sums.v2"), promoted(1, None, "sums.v1", NOW))
    memory = Memory()
    news(memory, [status(state.releases["sums.v1"], live=True)], state, NOW)
    state = fold(state, promoted(2, "sums.v1", "sums.v2", NOW))
    events = news(memory, [status(state.releases["sums.v2"], live=True)], state, NOW + 1_000)
    live = [event for event in events if isinstance(event, AssetMaterialization)]
    assert [event.metadata["switch"].value for event in live] == [2]
    assert live[0].metadata["lag_records"].value == 7


def test_events_show_the_columns_that_a_release_has() -> None:
    columns = "`k` string, `n` bigint, `s` struct<a:int,b:string>"
    state, _ = world(staged("sums.v1", schema_ddl=columns), promoted(1, None, "sums.v1", NOW))
    found = status(state.releases["sums.v1"], live=True)
    switch = state.live("sums")
    assert switch is not None
    for event in (report.ready_event(found.release, found.beat), report.live_event(found, switch)):
        schema = event.metadata["dagster/column_schema"].schema  # type: ignore[attr-defined]
        assert [(c.name, c.type, dict(c.tags)) for c in schema.columns] == [
            ("k", "string", {"switchyard/key": ""}), ("n", "bigint", {}), ("s", "struct<a:int,b:string>", {}),
        ]  # fmt: skip


def test_an_alias_whose_driver_is_not_heard_grows_stale() -> None:
    state, _ = world(staged("sums.v1"), promoted(1, None, "sums.v1", NOW))
    assert news(Memory(), [status(state.releases["sums.v1"], held=False, live=True)], state, NOW) == []


def recorded(actor: str, via: Via | None = None) -> RegistryState:
    verdict = VerdictRecorded(
        release="sums.v1", generation=1, evidence=None, upto=NOWHERE, passed=3, failed=1, errored=0, at_ms=NOW,
        actor=actor, failures=("volume: too few",), via=via,
    )  # fmt: skip
    ready = ReadyRecorded(release="sums.v1", generation=1, at_ms=NOW, actor=actor, via=via)
    return world(staged("sums.v1"), [ready, verdict])[0]


def test_what_the_terminal_recorded_is_mirrored_once() -> None:
    found, memory = [status(recorded("ann").releases["sums.v1"])], Memory()
    # a suite that is not in the repository: its verdict alone
    ready, verdict = mirror(memory, found, ["sums"], first=False)
    assert isinstance(ready, AssetMaterialization) and ready.partition == "sums.v1"
    assert isinstance(verdict, AssetCheckEvaluation) and verdict.partition == "sums.v1"
    assert not verdict.passed and verdict.check_name == "sums"
    assert mirror(memory, found, ["sums"], first=False) == []


@pytest.mark.parametrize("of_an_earlier_build", [False, True])
def test_each_expectation_of_a_verdict_is_told(of_an_earlier_build: bool) -> None:
    outcomes = (
        {}
        if of_an_earlier_build
        else {"word form": "failed", "key unique": "errored", "volume against live": "skipped"}
    )
    verdict = VerdictRecorded(
        release="sums.v1", generation=1, evidence=None, upto=NOWHERE, passed=6, failed=1, errored=1, at_ms=NOW,
        actor="ann", failures=("word form", "key unique"), outcomes=outcomes,
    )  # fmt: skip
    release = world(staged("sums.v1"), [verdict])[0].releases["sums.v1"]
    release = replace(release, spec=release.spec.model_copy(update={"suite": "word_count"}))
    events = {event.check_name: event for event in report.verdict_events(release, verdict)}
    assert set(events) == {"word_count", "not_empty", "schema", "word_not_null", "count_not_null", "key_unique",
                           "word_form", "the_not_counted", "count_in_range", "volume_against_live"}  # fmt: skip
    assert {name for name, event in events.items() if not event.passed} == {"word_count", "word_form", "key_unique"}
    assert {event.partition for event in events.values()} == {"sums.v1"}
    if not of_an_earlier_build:
        told = {name: events[name].description for name in ("schema", "word_form", "key_unique", "volume_against_live")}
        assert told == {"schema": "passed", "word_form": "failed", "key_unique": "could not be evaluated",
                        "volume_against_live": "skipped"}  # fmt: skip


def test_a_suite_that_fails_on_the_settings_of_a_release_stops_no_turn() -> None:
    state, verdict = recorded("ann"), recorded("ann").releases["sums.v1"].verdict
    assert verdict is not None
    release = state.releases["sums.v1"]
    spec = release.spec.model_copy(update={"suite": "stock_stats", "settings": {"window_s": "5s"}})
    [_, told] = mirror(Memory(), [status(replace(release, spec=spec))], ["sums"], first=False)
    assert isinstance(told, AssetCheckEvaluation) and told.check_name == "stock_stats"
    # with those that it knows, it names its checks
    spec = spec.model_copy(update={"settings": {}})
    assert len(mirror(Memory(), [status(replace(release, spec=spec))], ["sums"], first=False)) > 5


@pytest.mark.parametrize(("actor", "via"), [("ann", "dagster"), ("ann (dagster)", None)], ids=["now", "earlier-builds"])
def test_what_a_run_recorded_it_told_itself(actor: str, via: Via | None) -> None:
    found = [status(recorded(actor, via).releases["sums.v1"])]
    assert mirror(Memory(), found, ["sums"], first=False) == []
    # but a new Dagster instance knows nothing of what its like did
    assert len(mirror(Memory(), found, ["sums"], first=True)) == 2


def test_a_release_of_an_app_without_assets_is_not_mirrored() -> None:
    assert mirror(Memory(), [status(recorded("ann").releases["sums.v1"])], ["others"], first=True) == []


# -- the watch


def test_a_promotion_is_watched_for_what_is_left_of_its_time() -> None:
    state, _ = world(
        staged("sums.v1"), staged("sums.v2"), promoted(1, None, "sums.v1", NOW), promoted(2, "sums.v1", "sums.v2", NOW)
    )
    [watch] = to_watch(state, NOW + 4 * MINUTE, 600.0)
    assert (watch.app, watch.release, watch.number, watch.left_s) == ("sums", "sums.v2", 2, 360.0)
    assert to_watch(state, NOW + 10 * MINUTE, 600.0) == []


def test_a_watch_that_died_with_dagster_is_taken_up_again() -> None:
    watch = watching.Watch(app="sums", release="sums.v2", number=2, left_s=360.0)
    tags = {"switchyard/app": "sums", "switchyard/switch": "2"}
    with DagsterInstance.ephemeral() as instance:
        keys = [watching._run_key(instance, watch)]
        for others in ({"switchyard/switch": "1"}, {}):
            config = {"ops": {"watch": {"config": {"release": watch.release}}}}
            run = instance.create_run_for_job(watching.watch_job, run_config=config, tags={**tags, **others})
            keys.append(watching._run_key(instance, watch))
            instance.report_run_failed(run)
        keys.append(watching._run_key(instance, watch))
    assert keys == ["sums switch 2"] * 3 + ["sums switch 2, after 1 that failed"]


def test_a_rollback_happens_once() -> None:
    state, _ = world(
        staged("sums.v1"),
        staged("sums.v2"),
        promoted(1, None, "sums.v1", NOW),
        promoted(2, "sums.v1", "sums.v2", NOW),
        promoted(3, "sums.v2", "sums.v1", NOW, "rollback"),
    )
    assert to_watch(state, NOW, 600.0) == []


def test_a_first_promotion_has_nothing_to_go_back_to() -> None:
    state, _ = world(staged("sums.v1"), promoted(1, None, "sums.v1", NOW))
    assert to_watch(state, NOW, 600.0) == []


# -- scheduled reprocessing


def test_scheduled_reprocessing_waits_for_what_is_under_way() -> None:
    live = [*staged("sums.v1", "live"), *promoted(1, None, "sums.v1", NOW)]
    assert why_not(world(staged("sums.v1"))[0], "sums") == "no release of sums is live"
    assert why_not(world(live)[0], "sums") is None
    assert "sums.v2 is hydrating" in (why_not(world(live, staged("sums.v2", "hydrating"))[0], "sums") or "")
    diff = Opened(id="diff-1", name="diff", releases=("sums.v1",), deadline_ms=NOW)
    assert "diff-1 is under way" in (why_not(world(live, [diff])[0], "sums") or "")


class Standing(Platform):
    """A registry that holds what it is given."""

    @contextmanager
    def open(self, say: Say, spark: object = None) -> Iterator[Context]:
        yield SimpleNamespace(registry=SimpleNamespace(state=lambda: LIVE_AND_STANDBY))  # type: ignore[misc]


LIVE_AND_STANDBY = world(
    staged("sums.v1", "standby"),
    staged("sums.v2", "live"),
    promoted(1, None, "sums.v1", NOW),
    promoted(2, "sums.v1", "sums.v2", NOW),
)[0]


def test_scheduled_reprocessing_runs_the_code_of_the_live_release_again() -> None:
    [schedule] = schedules.reprocessing_schedules([SimpleNamespace(name="sums")])  # type: ignore[list-item]
    with DagsterInstance.ephemeral() as instance:
        answer: Any = schedule(build_schedule_context(instance, resources={"platform": Standing()}))
    config = answer.run_config["ops"]["reprocess"]["config"]
    assert config == {"app": "sums", "same_as": "sums.v2", "correction": "scheduled", "execute": True}


def test_the_janitor_ends_what_is_over_whatever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    overdue = Opened(id="stop-1", name="stop", releases=("sums.v1",), deadline_ms=1)
    under_way = Opened(id="stop-2", name="stop", releases=("sums.v2",), deadline_ms=2**60)
    entries: list[Entry] = [*staged("sums.v1"), *staged("sums.v2"), overdue, under_way]

    class Held(Platform):
        @contextmanager
        def open(self, say: Say, spark: object = None) -> Iterator[Context]:
            registry = SimpleNamespace(
                state=lambda: fold(RegistryState(), entries), step=step, now_ms=lambda: 2, knows_time=True
            )
            yield SimpleNamespace(registry=registry)  # type: ignore[misc]

    def step(decide: Callable[[RegistryState], Sequence[Entry]], **_: object) -> RegistryState:
        entries.extend(decide(fold(RegistryState(), entries)))
        return fold(RegistryState(), entries)

    def plan_clean(_: Context, name: str, *, reason: str | None = None) -> Plan:
        if name == "sums.v1":
            raise Refused("generation 1 is still needed by follower mails", fix="let it pass")
        return Plan(id="clean-1", operation=Kind.CLEAN, releases=(name,), stages=(), reason=reason)

    done: list[Plan] = []
    monkeypatch.setattr(jobs, "to_clean", lambda *_: ["sums.v1", "sums.v2"])
    monkeypatch.setattr(jobs, "plan_clean", plan_clean)
    monkeypatch.setattr(jobs, "apply_plan", lambda _, plan: done.append(plan))
    with DagsterInstance.ephemeral() as instance:
        result = jobs.janitor_job.execute_in_process(resources={"platform": Held()}, instance=instance)
        [metadata] = [e.step_output_data.metadata for e in result.all_events if e.event_type_value == "STEP_OUTPUT"]
        said = [e.user_message for e in instance.all_logs(result.run_id)]
    assert [(plan.releases, plan.reason) for plan in done] == [(("sums.v2",), "the archive has expired")]
    state = fold(RegistryState(), entries)
    closed = {o.id: o.closed.outcome if o.closed else None for o in state.operations.values()}
    assert closed == {"stop-1": "expired", "stop-2": None}
    assert {name: each.value for name, each in metadata.items()} == {
        "ended": 1, "operations": "stop-1", "cleaned": "sums.v2",
    }  # fmt: skip
    assert any("still needed by follower mails; let it pass" in line for line in said)


def test_where_one_diff_can_not_be_refreshed_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open(Platform):
        @contextmanager
        def open(self, say: Say, spark: object = None) -> Iterator[Context]:
            yield SimpleNamespace(registry=SimpleNamespace(state=RegistryState))  # type: ignore[misc]

    def refresh(_: Context, app: str) -> Refreshed:
        if app == "full":
            raise SwitchyardError("since.parquet can't be written", fix="make room")
        if app == "sums":
            raise Refused("rollback rollback-1 of someone is under way on sums.v1", fix="wait for it")
        return Refreshed(evidence="diff-1", releases=(f"{app}.v1", f"{app}.v2"), records=1200, keys=34)

    monkeypatch.setattr(jobs, "to_refresh", lambda _: ["full", "sums", "words"])
    monkeypatch.setattr(jobs, "refresh", refresh)
    with DagsterInstance.ephemeral() as instance:
        result = jobs.refresh_job.execute_in_process(
            resources={"platform": Open()}, instance=instance, raise_on_error=False
        )
        said = [e.user_message for e in instance.all_logs(result.run_id)]
        [failed] = [e for e in result.all_events if e.event_type_value == "STEP_FAILURE"]
    # of one that can't be kept up the run says so, when the others are
    assert "full: since.parquet can't be written; make room" in failed.step_failure_data.error.to_string()  # type: ignore[union-attr]
    assert any("1,200 result records read, 34 keys touched since the diff" in line for line in said)
    assert any("sums: rollback rollback-1" in line and "wait for it" in line for line in said)


# -- without a broker, and refused


@pytest.fixture
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHYARD_BROKER_PORT", "1")
    monkeypatch.setenv("SWITCHYARD_REQUEST_TIMEOUT_S", "0.5")
    get_settings.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_listens")
def test_without_a_broker_sensors_and_schedules_skip_and_say_why() -> None:
    with DagsterInstance.ephemeral() as instance:
        for each in (supervisor.supervisor_sensor(topics=["t"], apps=["sums"]), watching.watch_after_promotion):
            resources = {"platform": Platform(), "alerts": Alerts()}
            answer: Any = each(build_sensor_context(instance, resources=resources))
            assert isinstance(answer, SkipReason)
            assert "no Kafka broker answers" in (answer.skip_message or "")
        before = Memory(attempts={"sums.v1": (2, NOW)}, silent={"sums.v1": NOW})
        told = build_sensor_context(
            instance, cursor=before.model_dump_json(), resources={"platform": Platform(), "alerts": Alerts()}
        )
        supervisor.supervisor_sensor(topics=["t"], apps=["sums"])(told)
        # a driver that could not be heard is not one that hangs
        assert Memory.of(told.cursor) == before.model_copy(update={"silent": {}})
        for schedule in (schedules.quality_checks_hourly, schedules.refresh_hourly, schedules.janitor_often):
            answer = schedule(build_schedule_context(instance, resources={"platform": Platform()}))
            assert "no Kafka broker answers" in (answer.skip_message or "")


class Refusing(Platform):
    """Every operation is refused."""

    @contextmanager
    def open(self, say: Say, spark: object = None) -> Iterator[Context]:
        raise Refused("sums.v2 can't be promoted: it isn't checked", fix="check it")
        yield


def test_a_refusal_fails_the_run_and_says_what_to_do() -> None:
    with DagsterInstance.ephemeral() as instance:
        result = promote_job.execute_in_process(
            run_config={"ops": {"promote": {"config": {"app": "sums"}}}},
            resources={"platform": Refusing(), "pyspark": SparkResource()},
            instance=instance,
            raise_on_error=False,
        )
    failed = result.failure_data_for_node("promote")
    assert failed is not None and failed.user_failure_data is not None
    assert failed.user_failure_data.description == "sums.v2 can't be promoted: it isn't checked\ncheck it"
    assert failed.user_failure_data.metadata["to do"].value == "check it"
    assert failed.user_failure_data.metadata["exit_code"].value == 3


class Failing(Platform):
    """Every release fails its checks."""

    @contextmanager
    def open(self, say: Say, spark: object = None) -> Iterator[Context]:
        raise failed_checks()
        yield


@pytest.mark.parametrize(
    ("job", "op", "config"),
    [
        (promote_job, "promote", {"app": "sums", "plan": "promote-1", "execute": True}),
        (jobs.reprocess_job, "reprocess", {"app": "sums", "execute": True}),
    ],
)
def test_the_run_of_a_release_that_fails_its_checks_has_what_was_found(
    job: Any, op: str, config: dict[str, Any]
) -> None:
    with DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(
            run_config={"ops": {op: {"config": config}}},
            resources={"platform": Failing(), "pyspark": SparkResource()},
            instance=instance,
            raise_on_error=False,
        )
    failed = result.failure_data_for_node(op)
    assert failed is not None and failed.user_failure_data is not None
    found = failed.user_failure_data.metadata
    assert "sums.v2 failed its checks: volume" in found["error"].value
    assert (found["changed"].value, found["failed"].value) == (3, 1)
    assert "between 9 and 11" in found["checks"].value


class Recording(Platform):
    """A registry that holds nothing."""

    @contextmanager
    def open(self, say: Say, spark: object = None) -> Iterator[Context]:
        assert isinstance(spark, SparkResource), "an approval may have to compare again"
        yield SimpleNamespace(registry=SimpleNamespace(known=RegistryState()), now_ms=lambda: 2)  # type: ignore[misc]


@pytest.mark.parametrize("execute", [False, True])
def test_an_approval_compares_again_only_where_it_is_carried_out(
    execute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def plan_approved(_: Context, plan_id: str, **options: Any) -> Plan:
        asked.update(options, plan_id=plan_id)
        raise Refused("sums.v2 differs in more than was shown", fix="approve promote-2")

    monkeypatch.setattr(jobs, "plan_approved", plan_approved)
    with DagsterInstance.ephemeral() as instance:
        result = promote_job.execute_in_process(
            run_config={"ops": {"promote": {"config": {"app": "sums", "plan": "promote-1", "execute": execute}}}},
            resources={"platform": Recording(), "pyspark": SparkResource()},
            instance=instance,
            raise_on_error=False,
        )
    assert (asked["plan_id"], asked["refresh"]) == ("promote-1", execute)
    failed = result.failure_data_for_node("promote")
    assert failed is not None and failed.user_failure_data is not None
    assert failed.user_failure_data.metadata["to do"].value == "approve promote-2"


def test_a_promotion_by_plan_is_told_all_that_the_run_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    class Open(Platform):
        @contextmanager
        def open(self, say: Say, spark: object = None) -> Iterator[Context]:
            yield SimpleNamespace(registry=SimpleNamespace(known=RegistryState()), now_ms=lambda: 2)  # type: ignore[misc]

    def plan_approved(_: Context, plan: str, **options: Any) -> None:
        asked.update(options, plan=plan)
        raise BadUsage("promote-1 promotes sums.v2, not tops", fix="name another plan")

    monkeypatch.setattr("orchestration.defs.jobs.plan_approved", plan_approved)
    given = {"app": "tops", "plan": "promote-1", "version": 3, "max_changed": 0.1, "max_evidence_age_s": 60.0}
    with DagsterInstance.ephemeral() as instance:
        result = promote_job.execute_in_process(
            run_config={"ops": {"promote": {"config": given}}},
            resources={"platform": Open(), "pyspark": SparkResource()},
            instance=instance,
            raise_on_error=False,
        )
    assert not result.success
    assert asked == {**given, "reason": None, "refresh": False}


def test_where_one_check_can_not_be_run_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live release without a result, and one whose check fails."""

    class Open(Platform):
        @contextmanager
        def open(self, say: Say, spark: object = None) -> Iterator[Context]:
            names = [("sums.v1", "sums"), ("tops.v1", "tops"), ("words.v1", "words")]
            found = {app: SimpleNamespace(name=name, spec=SimpleNamespace(suites={"": "all"})) for name, app in names}
            state = SimpleNamespace(chains=dict.fromkeys(found), found=found)
            registry = SimpleNamespace(state=lambda: state, known=RegistryState())
            yield SimpleNamespace(registry=registry, now_ms=lambda: 2)  # type: ignore[misc]

    def run_gate(_: Context, name: str) -> Any:
        if name == "sums.v1":
            raise Refused("sums.v1 has no result yet", fix="start it")
        if name == "words.v1":
            raise BeingReset("words.v1 is in the middle of reset-1", fix="wait")
        return SimpleNamespace(passed=1, failed=1, failures=("the key is not unique",))

    monkeypatch.setattr(jobs, "live_release", lambda state, app: state.found[app])
    monkeypatch.setattr(jobs, "run_gate", run_gate)
    with DagsterInstance.ephemeral() as instance:
        result = jobs.quality_job.execute_in_process(
            resources={"platform": Open(), "pyspark": SparkResource()}, instance=instance, raise_on_error=False
        )
    [failed] = [e.step_failure_data.user_failure_data for e in result.all_events if e.is_step_failure]
    assert failed is not None and failed.description is not None
    assert "sums.v1 has no result yet" in failed.description and "tops.v1: the key is not unique" in failed.description
    assert "words.v1" not in failed.description


def test_the_watch_sends_the_alerts_of_the_operation_and_no_line_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CheckNotRun(release="sums.v2", error="it has no result yet")
    sent: list[Alert] = []

    def watch(context: Context, name: str, *, alert: Send, **_: object) -> Watched:
        context.say("it could not be faster")
        alert(found)
        return Watched(rolled_back=False, checks=1, message="sums.v2 passed its watch: 1 checks")

    class Open(Platform):
        @contextmanager
        def open(self, say: Say, spark: object = None) -> Iterator[Context]:
            yield SimpleNamespace(say=say, registry=SimpleNamespace(known=RegistryState()), now_ms=lambda: 2)  # type: ignore[misc]

    monkeypatch.setattr(jobs.watch, "watch", watch)
    monkeypatch.setattr(alerting, "send", lambda *found, webhook_url: sent.extend(found))
    with DagsterInstance.ephemeral() as instance:
        result = jobs.watch_job.execute_in_process(
            run_config={"ops": {"watch": {"config": {"release": "sums.v2"}}}},
            resources={"platform": Open(), "pyspark": SparkResource(), "alerts": Alerts()},
            instance=instance,
        )
        lines = [e.user_message for e in instance.all_logs(result.run_id) if e.level == logging.WARNING]
    assert sent == [found]
    assert lines == ["it could not be faster"]


def test_an_alert_that_can_not_be_sent_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    alert = CheckNotRun(release="sums.v2", error="it has no result yet")
    Alerts(webhook_url="http://127.0.0.1:1/hook").send(alert)
    assert f"alert: {told(alert)}" in caplog.text
    assert "did not reach the webhook" in caplog.text
