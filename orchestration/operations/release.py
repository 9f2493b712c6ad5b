"""Releases: staged, started, stopped, waited for, retired. Each function makes a plan; `execute` applies it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from expectations.names import require_suite
from orchestration.operations import journal
from orchestration.operations.apply import Applier
from orchestration.operations.context import Context
from orchestration.operations.costs import replay_rate, room_of, time_of
from orchestration.operations.generations import begun, cut_off, moved_by_hand, processed, progress_of
from orchestration.operations.history import ACCEPT, accept_now, compaction_notes, history_of, history_of_staging
from orchestration.operations.in_use import refuse_live, refuse_needed
from orchestration.operations.lifecycle import (
    find_release,
    live_release,
    owned_topics,
    refuse_blocked,
    starting_state,
    wanting,
)
from orchestration.operations.parts import losses, lost_parts, refuse_lost
from orchestration.operations.plans.kind import RESETS, Kind
from orchestration.operations.plans.plan import Plan, join, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.plans.stages.releases import (
    AwaitStopped,
    CreateTopic,
    DeleteFiles,
    DeleteGroup,
    DeleteTopic,
    Launch,
    RecordRelease,
    SetState,
    StoreCode,
    Want,
)
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.code import FrozenCode, freeze, frozen
from pipelines.engine.lease import held_by
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.kafka.registry import now_ms
from pipelines.kafka.topics import PROGRESS, RESULT_STREAM, RESULT_TABLE
from pipelines.model.names import dead_letter_topic, progress_topic, release_name, result_topic
from pipelines.model.parts import Loss
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import (
    Entry,
    EvidenceRecorded,
    GenerationStarted,
    HistoryAccepted,
    InputSpec,
    ReadyRecorded,
    RegistryState,
    Release,
    ReleaseSpec,
    Staged,
    StateSet,
    TopicsKnown,
    WantedSet,
)

log = logging.getLogger(__name__)

# what a candidate has lost of these it begins anew without
_BEGUN_ANEW = {"result", "progress", "checkpoint", "input"}
# journaled: others on these releases wait until they are closed
_JOURNALED = RESETS | {Kind.DIFF, Kind.PROMOTE, Kind.ROLLBACK, Kind.RETIRE, Kind.CLEAN}


def execute(context: Context, plan: Plan) -> None:
    """Applies a plan. A journaled one blocks its releases meanwhile, and is resumed by applying it again."""
    applier = Applier(context, plan)
    if plan.operation in _JOURNALED:
        # a generation that is begun can only be finished, or undone: whoever fails on the way leaves it to `resume`
        try:
            journal.journaled(
                context,
                plan,
                applier.run,
                applier.orders(),
                stays_open=lambda s: begun(s, plan.id),
                give_up=_as_before(plan),
            )
        except BaseException:
            _run_again(context, plan)
            raise
    else:
        applier.run()


def _as_before(plan: Plan) -> list[WantedSet]:
    """What is wanted again of a release that a reset or an undo has stopped and then failed to change: it ran before."""
    if plan.operation not in RESETS:
        return []
    stopped = [s.release for s in plan.stages if isinstance(s, Want) and (s.wanted, s.before) == ("stopped", "running")]
    return [WantedSet(release=name, wanted="running") for name in stopped]


def _run_again(context: Context, plan: Plan) -> None:
    """Starts what a plan had stopped before it failed, or was ended, without a change.

    Only where the plan's own operation is over: one that was refused has stopped nothing, and what stands still may do so
    for whoever is at work on it.
    """
    for entry in _as_before(plan):
        try:
            state = context.registry.state()
            operation, release = state.operations.get(plan.id), state.releases[entry.release]
            if operation is None or operation.closed is None or state.blocking(release.name) is not None:
                continue
            if begun(state, plan.id) or release.wanted != "running" or context.holder(release) is not None:
                continue
            where = context.launcher.launch(release.name)
        except SwitchyardError as error:
            context.say(f"{entry.release} could not be started again: {error}")
            continue
        context.say(f"{release.name} is as it was, and started again: {where}")


def abandon(context: Context, operation_id: str, *, reason: str | None = None) -> None:
    """Ends an operation for whoever began it. What it had stopped, and has not changed, runs on.

    Where its plan can't be read, what it had stopped isn't known, and stays stopped. Raises as `journal.abandon` does.
    """
    state = context.registry.state()
    opened = journal.under_way(state, operation_id).opened
    if opened.name not in RESETS:
        journal.abandon(context, operation_id, reason=reason)
        return
    try:
        plan = Plan.from_journal(opened)
    except SwitchyardError as unreadable:
        log.warning("%s: %s", operation_id, unreadable.what)
        journal.abandon(context, operation_id, reason=reason)
        return
    journal.abandon(context, operation_id, reason=reason, also=() if begun(state, operation_id) else _as_before(plan))
    _run_again(context, plan)


def default_code_dir() -> Path:
    """The repository's own apps."""
    import pipelines.apps

    return Path(pipelines.apps.__path__[0])


def _how_to_fill(app: str) -> str:
    from orchestration.sources import app_names

    return f"create it{f', or fill it: `switchyard produce {app} --history 100000`' if app in app_names() else ''}"


def plan_stage(
    context: Context,
    app: str,
    *,
    version: int | None = None,
    code_dir: Path | None = None,
    same_as: str | None = None,
    settings: Mapping[str, Any] | None = None,
    correction: str | None = None,
    accept_missing: bool = False,
) -> Plan:
    """A new release of `app`: its code frozen, its function tried on empty frames, its topics its own.

    `version`: None for the next free one. `same_as`: a release whose frozen code and settings it takes, instead of a
    folder's; `settings` are on top. `correction`: why unchanged code runs again. `accept_missing`: it may
    lack input that the live release has read and Kafka has no more. Raises BadUsage for an unknown app, topic or setting and
    for what the author must mend; Refused for a version staged already or without a change; MissingHistory.
    """
    state = journal.standing(context.registry)
    known = state.of_app(app)
    number = version if version is not None else max((r.spec.version for r in known), default=0) + 1
    if number < 1:
        raise BadUsage(f"version {number} of {app} can't be", fix="versions are 1, 2, 3 ...; leave it out for the next")
    name = release_name(app, number)
    if name in state.releases:
        raise Refused(
            f"{name} is staged already ({state.releases[name].state})",
            fix="stage another version; a release never changes",
        )
    given = dict(settings or {})
    if same_as is not None:
        model = model_for(state, app, same_as, code_dir)
        code, given = frozen(context.settings, model.spec.code_digest, model.name), {**model.spec.settings, **given}
        origin = model.name
    else:
        code, origin = freeze(code_dir or default_code_dir()), str(code_dir or "pipelines/apps")
    facts = _probe(context, code, app, given)
    if facts["suite"] is not None:
        # not at its first check, after all of history is read
        require_suite(facts["suite"])
    inputs = {}
    for source, topic in facts["inputs"].items():
        partitions = context.cluster.partition_count(topic)
        if partitions is None:
            raise BadUsage(f"input {source} of {app}: there is no topic {topic}",
                           fix=_how_to_fill(app))  # fmt: skip
        inputs[source] = InputSpec(topic=topic, partitions=partitions)
    before = _predecessor(state, known, app)
    spec = ReleaseSpec(
        release=name,
        app=app,
        version=number,
        module=facts["module"],
        code_digest=code.digest,
        settings=facts["settings"],
        inputs=inputs,
        table=facts["table"],
        key=tuple(facts["key"]),
        partitions=facts["partitions"],
        schema_ddl=facts["schema_ddl"],
        suite=facts["suite"],
        watermark=facts["watermark"],
        comparable=facts["comparable"],
        reset_allowed=facts["reset_allowed"],
        change=_change(before, facts, code.digest),
        correction=correction,
        platform=_platform(),
    )
    _refuse_another_kind(live_release(state, app), spec)
    if spec.change == "none" and correction is None:
        raise Refused(
            f"{name} would be {before.name if before else ''} again: same code, same settings",
            fix="say why with --correction REASON (late data, an upstream fix), or change something",
        )
    topics = sorted({i.topic for i in inputs.values()})
    first, end = context.cluster.first_offsets(topics), context.cluster.end_offsets(topics)
    start = SourcePosition(sources={source: first[i.topic] for source, i in inputs.items()})
    replay = SourcePosition(sources={source: end[i.topic] for source, i in inputs.items()}).records_since(start)
    history, now = history_of_staging(context, state, app, name, spec.topics, start)
    history.require(accept=accept_missing)
    lacks = (HistoryAccepted(release=name, missing=history.left),) if history.left else ()
    # of the very topics whose first offsets it begins at
    known_topics = TopicsKnown(release=name, generation=1, inputs={t: k.id for t, k in now.items() if k.id})
    result_config = RESULT_TABLE if spec.table else RESULT_STREAM
    stages: tuple[Stage, ...] = (
        StoreCode(digest=code.digest, data=code.data),
        CreateTopic(name=result_topic(name, 1), partitions=spec.partitions, config=dict(result_config)),
        CreateTopic(name=progress_topic(name), partitions=1, config=dict(PROGRESS)),
        CreateTopic(name=dead_letter_topic(name), partitions=1, config=dict(RESULT_STREAM)),
        RecordRelease(
            release=name,
            entries=(
                Staged(spec=spec),
                GenerationStarted(release=name, generation=1, start=start, processed=processed(context, state, spec)),
                known_topics,
                *lacks,
            ),
        ),
    )
    return Plan(
        id=new_id("stage"),
        operation=Kind.STAGE,
        releases=(name,),
        stages=stages,
        reason=correction,
        facts={
            "app": app,
            "code": f"{code.digest[:12]} from {origin}",
            "change": spec.change + (f" against {before.name}" if before else ""),
            "settings": json.dumps(spec.settings),
            "result": f"{'table' if spec.table else 'stream'} by {', '.join(spec.key)}: {spec.schema_ddl}",
            "replay": f"{replay:,} records, {time_of(replay_rate(context, state, app, name), name, replay)}",
            "disk": room_of(context, before),
            **history.facts,
        },
        warnings=(*_schema_warnings(before, spec), *unchecked(spec), *compaction_notes(now)),
        undo=f"switchyard retire {name} --after 0s --execute",
    )


def model_for(state: RegistryState, app: str, same_as: str, code_dir: Path | None) -> Release:
    """The release of `app` whose frozen code is asked for. Raises BadUsage for another app's, or beside a folder."""
    if code_dir is not None:
        raise BadUsage(f"code of the folder {code_dir} and the same as {same_as} can't both be", fix="leave one out")
    model = find_release(state, same_as)
    if model.spec.app != app:
        raise BadUsage(f"{model.name} is a release of {model.spec.app}, not of {app}", fix=f"name one of {app}")
    return model


def _predecessor(state: RegistryState, known: list[Release], app: str) -> Release | None:
    live = live_release(state, app)
    usable = [r for r in known if r.state not in ("retired", "aborted")]
    return live or (usable[-1] if usable else None)


def _change(before: Release | None, facts: Mapping[str, Any], digest: str) -> Any:
    if before is None:
        return "first"
    if before.spec.schema_ddl != facts["schema_ddl"] or before.spec.key != tuple(facts["key"]):
        return "schema"
    if before.spec.code_digest != digest:
        return "code"
    return "none" if before.spec.settings == facts["settings"] else "settings"


def _schema_warnings(before: Release | None, spec: ReleaseSpec) -> tuple[str, ...]:
    if before is None or spec.change != "schema":
        return ()
    return (
        f"the result's schema changes from {before.spec.schema_ddl} to {spec.schema_ddl}: consumers must read both",
    )


def _measured_rate(release: Release) -> float | None:
    """Records per second that a release reached while it hydrated; None: it was not watched. Now it reads what comes."""
    return release.ready.rate if release.ready else None


def unchecked(spec: ReleaseSpec) -> tuple[str, ...]:
    """That nothing checks a release's result before consumers get it."""
    if spec.suite is not None:
        return ()
    return (f"{spec.app} names no suite: its result is checked by nothing before consumers get it",)


def _refuse_another_kind(live: Release | None, spec: ReleaseSpec) -> None:
    # not at its diff, after all of history is read
    if live is not None and live.spec.table != spec.table:
        one, other = (f"{r.release}, a {'table' if r.table else 'stream'}" for r in (live.spec, spec))
        raise Refused(
            f"consumers of {spec.app} can't be moved from {one}, to {other}",
            fix="stage it as an app with another name",
        )


def _platform() -> str:
    from importlib.metadata import version

    return f"switchyard {version('switchyard')}, pyspark {version('pyspark')}"


def _probe(context: Context, code: FrozenCode, app: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with TemporaryDirectory(prefix="switchyard-probe-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / f"{code.digest}.zip"
            path.write_bytes(code.data)
            command = [
                sys.executable,
                "-m",
                "pipelines.engine.probe",
                str(path),
                code.digest,
                app,
                json.dumps(dict(settings)),
            ]
            done = subprocess.run(
                command,
                cwd=folder,
                env=context.settings.environment_of_trial(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=context.settings.probe_timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise SwitchyardError(
            f"app {app} has not answered on empty frames within {context.settings.probe_timeout_s:g} s",
            fix="see that its module doesn't wait for anything; on a busy machine set SWITCHYARD_PROBE_TIMEOUT_S",
        ) from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise SwitchyardError(
            f"app {app} could not be tried on empty frames:\n{last}", fix="mend the module, or `make setup`"
        )
    answer = json.loads(lines[-1])
    if "error" in answer:
        kind = {2: BadUsage, 3: Refused}.get(answer["error"]["exit_code"], SwitchyardError)
        raise kind(answer["error"]["what"], fix=answer["error"]["fix"])
    facts: dict[str, Any] = answer["spec"]
    return facts


def plan_start(
    context: Context, name: str, *, force: bool = False, accept_missing: bool = False, reason: str | None = None
) -> Plan:
    """Starts a release's driver, or adopts the one that runs. `force` takes the lease from a driver that still lives.

    Raises Refused where retention has deleted what it has not read, as its first batch would fail; of a release that
    consumers have not followed MissingHistory, by which it begins anew where `accept_missing` is given.
    """
    state = journal.standing(context.registry)
    release = find_release(state, name)
    if release.state in ("retired", "aborted"):
        raise Refused(f"{release.name} is {release.state}", fix="stage a new version")
    if wanting(state, release, "running"):
        # a driver that died during an operation is started again all the same
        refuse_blocked(state, release.name)
    stages: tuple[Stage, ...] = (
        Want(release=release.name, wanted="running"),
        Launch(release=release.name, force=force),
    )
    generation = release.generation
    candidate = starting_state(state, release) == "hydrating"
    lost = losses(context, state, release)
    gone = lost_parts(lost)
    no_input = any(loss.part == "input" and loss.how == "gone" for loss in lost)
    if not candidate or no_input or gone - _BEGUN_ANEW:
        refuse_lost(lost)
    anew = candidate and (release.state == "failed" or bool(gone))
    history = history_of(context, state, release, anew=anew)
    if release.state == "failed":
        context.say(f"{release.name} failed before: {release.failure}")
    if candidate and not anew and history.unread and context.holder(release) is None:
        anew, history = True, history_of(context, state, release, anew=True)
    # a candidate never goes on from its own bad state, nor where what it stands at or was to read next is gone
    if anew:
        generation = max(release.generations) + 1
        stages = (*_fresh(context, release, generation, lost), *stages)
    if candidate:
        history.require(accept=accept_missing)
        stages = (*history.stages, *stages)
    if generation == release.generation:
        _refuse_cut_off(context, release)
    return Plan(
        id=new_id("start"),
        operation=Kind.START,
        releases=(release.name,),
        stages=stages,
        reason=reason,
        facts={"state": release.state, "generation": str(generation), **(history.facts if candidate else {})},
        # one that begins anew stands nowhere yet
        warnings=(
            *((moved,) if generation == release.generation and (moved := moved_by_hand(context, release)) else ()),
            *(f"{loss.what}; {loss.way}" for loss in lost if loss.part not in gone),
        ),
        undo=f"switchyard stop {release.name} --execute",
    )


def _refuse_cut_off(context: Context, release: Release) -> None:
    last = progress_of(context, release)
    stands = last.boundary.position if last is not None else release.start
    if stands is not None and context.holder(release) is None and (gone := cut_off(context, release, stands)):
        raise Refused(
            f"{release.name} can't go on where it stands: gone is {join(gone)}",
            fix=f"`switchyard reset {release.name} --to-earliest {ACCEPT}` reads what there is",
        )


def _fresh(context: Context, release: Release, generation: int, lost: Sequence[Loss]) -> tuple[Stage, ...]:
    """The stages by which a release begins anew, from where it began, or the first offsets that its inputs still have."""
    spec = release.spec
    first = context.cluster.first_offsets(sorted({i.topic for i in spec.inputs.values()}))
    # where it was told to begin, as far as that is there still
    replaced = {loss.name for loss in lost if (loss.part, loss.how) == ("input", "another")}
    begun_at = {
        source: offsets
        for source, offsets in release.generations[release.generation].start.sources.items()
        if spec.topics.get(source) not in replaced
    }
    start = SourcePosition(
        sources={
            source: {p: max(o, begun_at.get(source, {}).get(p, o)) for p, o in first[i.topic].items()}
            for source, i in spec.inputs.items()
        }
    )
    config = RESULT_TABLE if spec.table else RESULT_STREAM
    topic = result_topic(release.name, generation)
    return (
        CreateTopic(name=topic, partitions=spec.partitions, config=dict(config)),
        *lost_topics_again(release, lost),
        BeginGeneration(release=release.name, generation=generation, start=start),
    )


def lost_topics_again(release: Release, lost: Sequence[Loss]) -> tuple[Stage, ...]:
    """The stages that make a release's progress and dead letters again, where they are gone, for a generation to begin in."""
    configs = {"progress": PROGRESS, "dead letters": RESULT_STREAM}
    return tuple(
        CreateTopic(name=loss.name, partitions=1, config=dict(configs[loss.part]))
        for loss in lost
        if loss.part in configs and loss.how == "gone"
    )


def plan_stop(context: Context, name: str, *, timeout_s: float = 120.0, reason: str | None = None) -> Plan:
    """Stops a release's driver at a boundary."""
    state = journal.standing(context.registry)
    release = find_release(state, name)
    refuse_blocked(state, release.name)
    live = live_release(state, release.spec.app)
    return Plan(
        id=new_id("stop"),
        operation=Kind.STOP,
        releases=(release.name,),
        stages=(Want(release=release.name, wanted="stopped"), AwaitStopped(release=release.name, timeout_s=timeout_s)),
        reason=reason,
        facts={"state": release.state},
        warnings=(f"{release.name} is live: {release.spec.app} gets no new results until it is started",)
        if live is release
        else (),
        undo=f"switchyard start {release.name} --execute",
    )


def plan_retire(
    context: Context,
    name: str,
    *,
    after_s: float = 0.0,
    reason: str | None = None,
    clock_ms: Callable[[], int] | None = None,
) -> Plan:
    """Deletes topics, group, checkpoints and code of one release, only by its record.

    Raises Refused while it is live, younger out of use than `after_s`, or needed by a release or a follower, naming who.
    """
    state = journal.standing(context.registry)
    release = find_release(state, name)
    if release.state == "retired" and not _left_of(context, state, release):
        raise Refused(f"{release.name} is retired already", fix="nothing is left to do")
    refuse_live(state, release)
    refuse_blocked(state, release.name)
    idle_s = ((clock_ms or now_ms)() - _out_of_use_ms(release)) / 1000
    # one that was left half retired can't be used any more: the rest goes at once
    if idle_s < after_s and release.state != "retired":
        raise Refused(
            f"{release.name} has been out of use for {idle_s:,.0f} s only, less than --after {after_s:,.0f} s",
            fix="wait, or say a shorter one, as in --after 0s",
        )
    refuse_needed(context, state, release)
    others = [r for r in state.releases.values() if r is not release and r.state != "retired"]
    shared = any(r.spec.code_digest == release.spec.code_digest for r in others)
    # all that there were: the state knows the newest
    compared = [
        e for e in context.registry.history() if isinstance(e, EvidenceRecorded) and release.name in (e.live, e.new)
    ]
    topics = [*owned_topics(state, release.name), *_delta_topics(state, release, compared)]
    return Plan(
        id=new_id("retire"),
        operation=Kind.RETIRE,
        releases=(release.name,),
        stages=(
            Want(release=release.name, wanted="stopped"),
            AwaitStopped(release=release.name, timeout_s=120.0),
            SetState(release=release.name, state="retired"),
            *(DeleteTopic(name=topic) for topic in topics),
            DeleteGroup(group=release.name),
            DeleteFiles(
                release=release.name,
                code_digest=None if shared else release.spec.code_digest,
                evidence=tuple(e.id for e in compared),
            ),
        ),
        reason=reason,
        facts={"state": release.state, "topics": join(topics)},
        warnings=("this can't be undone: stage and reprocess to have it again",),
    )


def _left_of(context: Context, state: RegistryState, release: Release) -> bool:
    """Whether a retirement that was cut short has left a topic, the group or checkpoints."""
    topics = context.cluster.topic_names().intersection(owned_topics(state, release.name))
    group = context.cluster.group_offsets(release.name)
    return bool(topics or group) or release_folder(context.settings, release.name).exists()


def _out_of_use_ms(release: Release) -> int:
    """When the release's state was last set, or it was staged, milliseconds since the epoch."""
    return max(release.staged_ms, release.state_ms)


def _delta_topics(state: RegistryState, release: Release, compared: Sequence[EvidenceRecorded]) -> list[str]:
    mine = {e.forward.topic for e in compared if e.forward}
    # of a reset that cleared a result
    chain = state.chains.get(release.spec.app, ())
    mine |= {segment.topic for s in chain if s.old == s.new == release.name for segment in s.delta}
    return sorted(mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hydration:
    """How far a release is. `eta_s`: seconds to the end of the input as it is now, at the rate so far; None: unknown.

    `error`: what its driver is in trouble with, and tries again.
    """

    release: str
    position_records: int
    total_records: int
    records_per_s: float
    behind_records: int | None
    eta_s: float | None
    done: bool
    error: str | None = None


class CaughtUp:
    """Judges from heartbeats whether a release has caught up, and stayed so for `for_s`.

    It has caught up where the newest batch left at most `lag_records` of what was there when it was planned. That is a word
    of one moment: it has stayed so where a later batch says the same, or no more than that is left to read now.
    """

    def __init__(self, *, lag_records: int, for_s: float) -> None:
        self._lag_records = lag_records
        self._for_s = for_s
        # when it had caught up, and by which batch
        self._since: tuple[float, int] | None = None

    def lost(self) -> None:
        """It isn't heard."""
        self._since = None

    def by(self, beat: Heartbeat, behind_records: int | None, now_s: float) -> bool:
        """Whether it is so by this heartbeat, heard at `now_s`."""
        # while a batch is tried again, the figures are of the last good one
        tells = beat.state == "running" and beat.error is None and beat.batch_id >= 0 and behind_records is not None
        if not tells or (behind_records or 0) > self._lag_records:
            self._since = None
            return False
        if self._since is None:
            self._since = (now_s, beat.batch_id)
        since_s, batch_id = self._since
        if now_s - since_s < self._for_s:
            return False
        nothing_more = beat.lag_records is not None and beat.lag_records <= self._lag_records
        return nothing_more or self._for_s == 0 or beat.batch_id > batch_id


def wait_ready(
    context: Context,
    name: str,
    *,
    lag_records: int = 0,
    for_s: float = 10.0,
    timeout_s: float = 3600.0,
    accept_missing: bool = False,
    on_progress: Callable[[Hydration], None] = lambda _: None,
) -> Hydration:
    """Waits until a release has caught up and stayed so for `for_s`, then records it as ready.

    Caught up: as `CaughtUp` judges it. Raises SwitchyardError
    if it fails, ends, dropped more late rows than the live one, or doesn't get there within `timeout_s`; MissingHistory
    where it lacks input that the live one has read, unless that was accepted, or is now by `accept_missing`.
    """
    state = journal.standing(context.registry)
    release = find_release(state, name)
    accept_now(context, history_of(context, state, release), accept=accept_missing)
    began, caught_up = context.monotonic(), CaughtUp(lag_records=lag_records, for_s=for_s)
    again = release.ready is not None and release.ready.generation == release.generation
    fastest = (_measured_rate(release) or 0.0) if again else 0.0
    trouble: str | None = None
    while True:
        now = context.monotonic()
        if now - began > timeout_s:
            raise SwitchyardError(
                f"{release.name} has not caught up within {timeout_s:g} s", fix="give --timeout, or see its log"
            )
        beat = context.beats(30).get(release.name)
        current = context.registry.state().releases[release.name]
        if current.state == "failed":
            raise SwitchyardError(
                f"{release.name} failed: {current.failure}", fix="mend the app and stage a new version"
            )
        # the beat of a driver that has ended, or was superseded, says nothing of now
        heard = beat is not None and beat.token == current.token
        holder = held_by(current, beat, context.settings, at_ms=now_ms()) if heard else None
        trouble = beat.error if beat is not None else trouble
        if beat is None or holder is None or beat.state in ("failed", "stopped"):
            caught_up.lost()
            if now - began > context.settings.boot_timeout_s:
                raise SwitchyardError(
                    f"{release.name} isn't running" + (f": {trouble}" if trouble else ""),
                    fix=f"`switchyard start {release.name} --execute`",
                )
            context.sleep(0.25)
            continue
        found = _hydration(current, beat)
        fastest = max(fastest, beat.best_records_per_s)
        on_progress(found)
        if caught_up.by(beat, found.behind_records, now):
            break
        context.sleep(0.25)
    _late_drops(context, state, release)
    # retention may have passed meanwhile
    state = context.registry.state()
    history_of(context, state, state.releases[release.name]).require(accept=False)
    facts = {
        "behind_records": found.behind_records,
        "late_dropped": beat.total.late_dropped,
        "rows_in": beat.total.rows_in,
        "records_per_s": round(fastest),
    }

    def decide(s: RegistryState) -> list[Entry]:
        entries: list[Entry] = [ReadyRecorded(release=release.name, generation=release.generation, facts=facts)]
        if s.releases[release.name].state in ("hydrating", "staged"):
            entries.append(StateSet(release=release.name, state="ready"))
        return entries

    context.registry.step(decide)
    return found


def _hydration(release: Release, beat: Heartbeat) -> Hydration:
    lag = beat.lag_records or 0
    done = beat.total.rows_in
    rate = beat.processed_records_per_s
    return Hydration(
        release=release.name,
        position_records=done,
        total_records=done + lag,
        records_per_s=rate,
        # where the batch doesn't tell, the distance to the end: more than it left behind, never less
        behind_records=beat.lag_records if beat.behind_records is None else beat.behind_records,
        eta_s=lag / rate if rate > 0 else None,
        done=beat.lag_records == 0,
        error=beat.error,
    )


def _late_drops(context: Context, state: RegistryState, release: Release) -> None:
    live = live_release(state, release.spec.app)
    if live is None or live is release:
        return
    theirs, ours = context.progress(live.name), context.progress(release.name)
    if theirs and ours and ours.total.late_dropped > theirs.total.late_dropped:
        raise SwitchyardError(
            f"{release.name} dropped {ours.total.late_dropped} late rows, {live.name} dropped {theirs.total.late_dropped}",
            fix="partitions with different histories: hydrate in larger batches (SWITCHYARD_MAX_RECORDS_PER_BATCH), as within a batch no row is late",
        )
