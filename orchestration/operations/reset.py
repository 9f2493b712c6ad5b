"""Resetting a release: its position, its state and its result, planned, resumable, and undone by `plan_undo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from orchestration.operations import journal
from orchestration.operations.clean import followers_in, needing_result
from orchestration.operations.context import Context
from orchestration.operations.costs import Cost, as_size, cost_of, free_bytes, replay_rate, time_of
from orchestration.operations.generations import by_group, cut_off, progress_of
from orchestration.operations.history import history_of_reset
from orchestration.operations.in_use import left_behind, readers_of, refuse_unfinished
from orchestration.operations.lifecycle import find_release, refuse_blocked, starting_state
from orchestration.operations.parts import losses, lost_parts, refuse_lost
from orchestration.operations.plans.kind import RESETS, Kind
from orchestration.operations.plans.plan import Plan, Table, join, new_id, request_of
from orchestration.operations.plans.requests import PlanRequest, ResetRequest, UndoRequest, asked_inputs, asked_position
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import (
    AppendGeneration,
    AwaitFollowers,
    BeginGeneration,
    CompareGenerations,
    DeleteCheckpoint,
    FinishBatch,
    GiveBack,
    InheritState,
    Reach,
    Seize,
    Tombstone,
    WriteClearing,
)
from orchestration.operations.plans.stages.releases import AwaitStopped, CreateTopic, DeleteTopic, Launch, Want
from orchestration.operations.release import lost_topics_again
from pipelines.engine.checkpoint import newest_folder, release_folder
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.registry import now_ms
from pipelines.kafka.topics import RESULT_STREAM, RESULT_TABLE
from pipelines.model.names import result_topic
from pipelines.model.parts import Loss, Part
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from pipelines.model.registry import RegistryState, Release, Wanted
from pipelines.model.reset import (
    Choice,
    Objection,
    Output,
    Partitions,
    Seen,
    State,
    Target,
    around,
    in_one_piece,
    means_the_same,
    move,
    objections,
    resolve,
)

# a batch under way is finished before a release stops
_STOP_TIMEOUT_S = 120.0
# whoever goes on with a reset may come the next morning; until then nobody else may touch the release
_DEADLINE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A reset as asked for. `inputs`: topic -> partitions (None: all), of the scope; empty: every input."""

    target: Target
    inputs: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    until: Target | None = None
    state: State | None = None
    output: Output | None = None
    stop: bool = False
    stay_stopped: bool = False
    force: bool = False
    max_records_per_batch: int | None = None
    timeout_s: float = 3600.0
    # the new result may lack input that the old one has, and that Kafka has no more
    accept_missing: bool = False

    @property
    def chosen_state(self) -> State:
        """Only a record that is left out is left out under the state; else it begins anew."""
        return self.state or ("keep" if self.target.kind == "skip" else "clear")

    @property
    def chosen_output(self) -> Output:
        """A kept state goes on writing what it has written; a cleared one begins the next generation's topic."""
        return self.output or ("keep" if self.chosen_state == "keep" else "new")

    def asked(self) -> ResetRequest:
        """What was asked for, as data: by it the same command finds an operation that it began."""
        return ResetRequest(
            to=asked_position(self.target),
            state=self.chosen_state,
            output=self.chosen_output,
            inputs=asked_inputs(self.inputs),
            until=asked_position(self.until) if self.until is not None else None,
            max_records_per_batch=self.max_records_per_batch,
            stay_stopped=self.stay_stopped,
        )

    def words(self) -> str:
        """What was asked, as one line, for people; a version that keeps no request finds its operation by it."""
        named = sorted((t, ":" + ",".join(map(str, p)) if p else "") for t, p in self.inputs.items())
        scope = ",".join(f"{topic}{partitions}" for topic, partitions in named)
        parts = [self.target.text, f"--state {self.chosen_state}", f"--output {self.chosen_output}"]
        parts += [f"--input-topics {scope}"] if scope else []
        parts += [f"--until {self.until.text}"] if self.until else []
        parts += [f"--max-records-per-batch {self.max_records_per_batch}"] if self.max_records_per_batch else []
        parts += ["--stay-stopped"] if self.stay_stopped else []
        return " ".join(parts)


def plan_reset(context: Context, name: str, request: Request, *, reason: str | None = None) -> Plan:
    """Has a release read again from elsewhere, its state cleared or kept, its result as asked.

    Raises BadUsage for what is unknown; Refused while it runs (unless `stop`), while another operation has it, where a
    position is out of range, where position, state and output make no sense together, where its app forbids it, and
    where the disk is too small. Where the same request is under way, its plan, to go on with.
    """
    state = journal.standing(context.registry)
    release = find_release(state, name)
    if (open_plan := _under_way(state, release, request.asked())) is not None:
        return open_plan
    if release.state in ("retired", "aborted"):
        raise Refused(f"{release.name} is {release.state}", fix="stage a new version")
    if not release.spec.reset_allowed:
        raise Refused(
            f"{release.spec.app} states that it may not be reset",
            fix=f"reprocess it beside the live one: `switchyard reprocess {release.spec.app}`, or change reset_allowed in its definition",
        )
    refuse_blocked(state, release.name)
    # what consumers of a live release read: not what it writes, where an earlier reset left them behind
    behind = left_behind(state, release) is not None
    if behind and request.chosen_output != "truncate":
        _refuse_behind(state, release)
    runs = _must_stand(context, release, request)
    lost = losses(context, state, release)
    gone = _refuse_not_made_anew(lost, request)
    last = by_group(context, release) if "progress" in gone else progress_of(context, release)
    old = last.boundary.position if last else release.generations[release.generation].start
    seen = look(context, release, old)
    scope = scope_of(release, seen, request)
    # without a batch there is no state: keeping it is beginning anew
    fresh = last is None or last.boundary.batch_id < 0
    if request.chosen_state == "keep" and not fresh:
        _refuse_without_checkpoint(context, release)
    new, until, then = _where(context, request, seen, scope, old)
    if fresh and until is not None and until.same(old) and then is not None:
        new, until, then = then, None, None
    in_use = _is_read(state, release)
    choice = Choice(
        state=request.chosen_state,
        output=request.chosen_output,
        move=move(old, then or new),
        table=release.spec.table,
        stateful=has_state(context, release),
        scoped=scope != set(seen),
        bounded=until is not None and then is None,
        live=in_use,
    )
    _refuse(objections(choice), force=request.force)
    until_where = request.until is not None and request.until.kind in ("current", "shift")
    if runs and (until_where or not means_the_same(choice, request.target)):
        raise Refused(
            f"what {request.target.text} means depends on where {release.name} stands, and it reads on until it has stopped",
            fix=f"`switchyard stop {release.name} --execute` first",
        )
    _refuse_readers(context, state, release, choice)
    history = history_of_reset(context, release, old, new, read_anew(seen, scope, request, lost))
    history.require(accept=request.accept_missing)
    # what is lost can't be met: consumers go on at once
    meets = in_use and in_one_piece(choice) and not gone & {"result", "progress", "input"}
    plan_id = new_id("reset")
    stages = history.stages + _stages(
        context, state, release, request, choice, old=old, new=new, until=until, then=then, meets=meets, fresh=fresh,
        again=lost_topics_again(release, lost),
    )  # fmt: skip
    # of a record that is left out, what comes before and behind it
    left_out = then.records_since(until) if until is not None and then is not None else 0
    replay = (SourcePosition(sources=_ends(seen)) if until is None or then else until).records_since(new) - left_out
    rate = replay_rate(context, state, release.spec.app, release.name, request.max_records_per_batch)
    replay_s = rate.seconds(replay) if rate else None
    # whose result consumers read, where an earlier reset was left before it moved them
    read = _read_by_consumers(state, release)
    of_consumers = choice
    if (end := release.ended.get(read)) is not None and read != release.generation:
        of_consumers = replace(choice, move=move(_filled(end.boundary.position, seen), then or new))
    cost = cost_of(
        context, release, {release.generation, read} if choice.output == "truncate" else {release.generation}
    )
    # the replay writes one generation, whatever is deleted
    _must_fit(context, release, choice, cost_of(context, release, {release.generation}))
    # a generation that nothing was written in is not gone back to, nor one that has lost a part
    cleared = choice.output in ("truncate", "tombstone")
    undo = "" if cleared or last is None or gone else _undo(context, plan_id, same=choice.output == "keep")
    return Plan(
        id=plan_id,
        operation=Kind.RESET,
        releases=(release.name,),
        alias=release.spec.app if in_use and choice.output in ("new", "truncate") else None,
        request=request.asked(),
        stages=stages,
        reason=reason,
        facts={
            "asked": request.words(),
            "generation": f"{release.generation} -> {_next(release)}",
            "replay": f"{replay:,} records, {time_of(rate, release.name, replay)}",
            **_cost_facts(cost, choice),
            **history.facts,
            **_affected(context, state, release, of_consumers, meets),
        },
        figures={
            "replay_records": replay,
            "replay_s": replay_s,
            "rate_of": rate.of if rate else None,
            **asdict(cost),
            "positions": _figures(seen, new),
            "left_out": _left_out_record(request.target),
        },
        tables=(_positions(seen, scope, new, until, then),),
        warnings=(
            *_warnings(state, request, choice, release),
            *_left_out(release, choice, seen, new),
            *_not_cleared(choice, gone, in_use),
            *(f"{loss.what}" for loss in lost),
            *(_too_long(request, replay_s) if meets else ()),
        ),
        undo=undo,
        deadline_s=_DEADLINE_S + request.timeout_s,
    )


def _where(
    context: Context, request: Request, seen: Partitions, scope: set[tuple[str, int]], old: SourcePosition
) -> tuple[SourcePosition, SourcePosition | None, SourcePosition | None]:
    """Where a reset begins, where it stops, if it does, and, where a record is left out there, where it goes on."""
    if request.target.kind == "skip":
        _only_skips(request)
        return old, *around(request.target, seen)
    new = resolve(request.target, timed(context, seen, request.target), scope)
    if request.until is None:
        return new, None, None
    return new, _until(request, new, resolve(request.until, timed(context, seen, request.until), scope)), None


def _only_skips(request: Request) -> None:
    if request.chosen_state != "keep" or request.until is not None or request.inputs:
        raise BadUsage(
            "--skip leaves one record out under the state", fix="leave out --state, --until and --input-topics"
        )


def _under_way(state: RegistryState, release: Release, asked: PlanRequest) -> Plan | None:
    """The plan of the operation under way on `release`, if it was asked for the same."""
    blocking = state.blocking(release.name)
    if blocking is None or request_of(blocking.opened) != asked:
        return None
    return Plan.from_journal(blocking.opened)


def _refuse_behind(state: RegistryState, release: Release) -> None:
    """Raises Refused with both ways out: the one that loses nothing, and the one that is always there."""
    try:
        refuse_unfinished(state, release)
    except Refused as error:
        raise Refused(
            error.what,
            fix=f"{error.fix}; where that can't be, a reset with --output truncate deletes the old result once consumers have gone on",
        ) from None


def _must_stand(context: Context, release: Release, request: Request) -> bool:
    """Whether it runs, and is to be stopped first. Raises Refused where it runs and isn't."""
    holder = context.holder(release)
    if holder is not None and not request.stop:
        raise Refused(
            f"{release.name} is run by {holder}",
            fix=f"`switchyard stop {release.name} --execute` first, or add --stop",
        )
    return holder is not None


def look(context: Context, release: Release, at: SourcePosition) -> Partitions:
    """What is known of each partition of a release's inputs, which stands `at`."""
    spec, cluster = release.spec, context.cluster
    topics = sorted({i.topic for i in spec.inputs.values()})
    first, end = cluster.first_offsets(topics), cluster.end_offsets(topics)
    committed = cluster.group_offsets(release.name)
    return {
        (source, partition): Seen(
            topic=given.topic,
            first=first[given.topic][partition],
            end=limit,
            position=at.sources.get(source, {}).get(partition, first[given.topic][partition]),
            committed=committed.get(given.topic, {}).get(partition, (None, ""))[0],
        )
        for source, given in spec.inputs.items()
        for partition, limit in end[given.topic].items()
    }


def timed(context: Context, seen: Partitions, target: Target | None) -> Partitions:
    """`seen`, with the offsets of the time that `target` names, if it names one."""
    if target is None or target.kind != "datetime":
        return seen
    found = context.cluster.offsets_at(sorted({here.topic for here in seen.values()}), target.at_ms)
    return {
        (source, partition): replace(here, at_time=found.get(here.topic, {}).get(partition))
        for (source, partition), here in seen.items()
    }


def scope_of(release: Release, seen: Partitions, request: Request) -> set[tuple[str, int]]:
    """The (source, partition) pairs that move. Raises BadUsage for a topic or a partition that isn't an input's, and for a
    position of one that `inputs` leaves out.
    """
    given = {topic: tuple(offsets) for topic, offsets in (request.target.offsets or {}).items()}
    _refuse_unknown(release, seen, given)
    _refuse_unknown(release, seen, request.inputs)
    named = dict(request.inputs) or (given if request.target.kind in ("file", "skip") else {})
    if not named:
        return set(seen)
    moved = {
        (source, p)
        for (source, p), s in seen.items()
        if s.topic in named and (named[s.topic] is None or p in (named[s.topic] or ()))
    }
    within = {(seen[pair].topic, pair[1]) for pair in moved}
    left_out = sorted({(topic, p) for topic, partitions in given.items() for p in partitions} - within)
    if left_out:
        raise BadUsage(
            f"{request.target.text} has a position of {join([f'{t}[{p}]' for t, p in left_out])}, which --input-topics leaves out",
            fix="name it there, too, or leave the line out",
        )
    return moved


def _refuse_unknown(release: Release, seen: Partitions, named: Mapping[str, Sequence[int] | None]) -> None:
    topics = {seen_.topic for seen_ in seen.values()}
    unknown = sorted(set(named) - topics)
    if unknown:
        raise BadUsage(f"{release.name} does not read {join(unknown)}", fix=f"its inputs are {join(sorted(topics))}")
    for topic, partitions in named.items():
        has = {p for (_, p), s in seen.items() if s.topic == topic}
        wrong = sorted(set(partitions or ()) - has)
        if wrong:
            raise BadUsage(f"{topic} has no partition {join([str(p) for p in wrong])}",
                           fix=f"it has {join([str(p) for p in sorted(has)])}")  # fmt: skip


def _until(request: Request, new: SourcePosition, until: SourcePosition) -> SourcePosition:
    if not until.dominates(new) or until.same(new):
        raise BadUsage(
            f"--until {request.until.text if request.until else ''} lies at or before {request.target.text}",
            fix="name a later end",
        )
    return until


def _refuse_without_checkpoint(context: Context, release: Release) -> None:
    if newest_folder(context.settings, release.name, release.generation) is None:
        folder = release_folder(context.settings, release.name)
        raise Refused(
            f"the checkpoint of {release.name} is not in {folder}: there is no state to keep",
            fix="bring it back, from a backup say; or --state clear with --to-earliest reads history again",
        )


def has_state(context: Context, release: Release) -> bool:
    """Whether Spark keeps a state for this release, by its checkpoint; with no batch yet there is nothing to lose."""
    folder = newest_folder(context.settings, release.name, release.generation)
    return folder is not None and (folder / "state").is_dir()


def _is_read(state: RegistryState, release: Release) -> bool:
    """Whether consumers read this release's result now."""
    newest = state.live(release.spec.app)
    return newest is not None and newest.new == release.name


def _refuse_readers(context: Context, state: RegistryState, release: Release, choice: Choice) -> None:
    """Raises Refused where a result would be deleted that a release reads, or a follower that nothing leads on."""
    if choice.output != "truncate":
        return
    topics = {release.topic_of(g) for g in (release.generation, _read_by_consumers(state, release))}
    left = [
        who
        for topic in sorted(topics)
        # the followers of the live one are led on, and waited for
        for who in (
            [r.name for r in readers_of(state, topic)]
            if choice.live
            else needing_result(context, state, release, topic)
        )
    ]
    if left:
        raise Refused(
            f"{join(sorted(topics))} can't be deleted: still needed by {join(left)}",
            fix="--output new keeps it; or let them pass, or `switchyard forget-follower` one that is gone",
        )


def _refuse(found: list[Objection], *, force: bool) -> None:
    standing = [o for o in found if not (force and o.forced)]
    if standing:
        forced = " (--force goes over it)" if all(o.forced for o in standing) else ""
        raise Refused("; ".join(o.reason for o in standing), fix="; ".join(o.way_out for o in standing) + forced)


def _next(release: Release) -> int:
    return max(release.generations, default=0) + 1


def _stages(
    context: Context, state: RegistryState, release: Release, request: Request, choice: Choice, *,
    new: SourcePosition, until: SourcePosition | None, then: SourcePosition | None, meets: bool, old: SourcePosition, fresh: bool,
    again: tuple[Stage, ...] = (),
) -> tuple[Stage, ...]:  # fmt: skip
    name, generation, keeps = release.name, _next(release), choice.state == "keep" and not fresh
    own_topic = choice.output in ("new", "truncate")
    stages = _stop(name, release.wanted)
    if keeps:
        # nothing to be done but where its driver was killed between Kafka's commit and Spark's
        stages.append(FinishBatch(release=name, timeout_s=context.settings.boot_timeout_s))
    stages.append(Seize(release=name))
    stages += again
    if own_topic:
        config = RESULT_TABLE if release.spec.table else RESULT_STREAM
        stages.append(
            CreateTopic(name=result_topic(name, generation), partitions=release.spec.partitions, config=dict(config))
        )
    if keeps:
        stages.append(InheritState(release=name, old=release.generation, generation=generation, at=old, position=new))
    known = release.generations[release.generation].result or release.generation
    read = _read_by_consumers(state, release)
    stages.append(
        BeginGeneration(
            release=name,
            generation=generation,
            start=new,
            keeps=keeps,
            result=None if own_topic else known,
            meet=meets,
            until=until,
            then=then,
            cleared=choice.output == "tombstone",
            max_records_per_batch=request.max_records_per_batch,
            state=_state_after(state, release),
            old=release.generation,
            links=len(state.chains.get(release.spec.app, ())),
            # what lies behind, and was read on meanwhile, is read again; else the meaning would change
            at=None if means_the_same(choice, request.target) else old,
        )
    )
    if choice.output == "tombstone":
        stages.append(Tombstone(release=name, generation=generation))
    stages.append(GiveBack(release=name))
    switch = _is_read(state, release) and own_topic
    number = len(state.chains.get(release.spec.app, ())) + 1
    append = AppendGeneration(alias=release.spec.app, number=number, release=name, old=read, new=generation, met=meets)
    stays = release.wanted == "stopped" or request.stay_stopped
    # before what consumers are told: to read the keys of a large result takes longer than all the rest
    if not stays or meets:
        stages += [Want(release=name, wanted="running"), Launch(release=name)]
    if switch:
        # consumers are moved where the replay stands at the old end, or at once
        if meets:
            stages.append(Reach(release=name, timeout_s=request.timeout_s))
        if release.spec.table and meets:
            stages.append(CompareGenerations(release=name, old=release.generation, new=generation))
        elif release.spec.table:
            stages.append(WriteClearing(release=name, old=read))
        stages.append(append)
        stages += _stop(name) if stays and meets else []
    if choice.output == "truncate":
        if switch:
            stages.append(AwaitFollowers(alias=release.spec.app, number=number, timeout_s=request.timeout_s))
        for gone in sorted({read, release.generation}):
            stages += [DeleteTopic(name=release.topic_of(gone)), DeleteCheckpoint(release=name, generation=gone)]
    return tuple(stages)


def _stop(name: str, before: Wanted | None = None) -> list[Stage]:
    return [
        Want(release=name, wanted="stopped", before=before),
        AwaitStopped(release=name, timeout_s=_STOP_TIMEOUT_S),
    ]


def _read_by_consumers(state: RegistryState, release: Release) -> int:
    """The generation whose result consumers read: an earlier one, where a reset that was left in the middle left them behind."""
    newest = state.live(release.spec.app)
    if newest is None or left_behind(state, release) is None:
        return release.generation
    [topic] = newest.new_start.topics
    last = release.last_of(topic)
    # what was never written has no end
    return last if last is not None else newest.new_generation


def _state_after(state: RegistryState, release: Release) -> Any:
    """A release that consumers read stays live; another has to catch up again before it may be promoted."""
    return "staged" if release.state == "staged" else starting_state(state, release)


# -- what it costs, and whom it touches


def _cost_facts(cost: Cost, choice: Choice) -> dict[str, str]:
    state = {"clear": "archived", "keep": "kept, and archived as it is"}[choice.state]
    if choice.output == "truncate":
        state = "deleted, with its result"
    result = {
        "new": "archived, as a topic of its own",
        "truncate": "deleted, once its followers have passed it",
        "tombstone": "cleared by a tombstone per key",
        "keep": "kept, and written on",
    }[choice.output]
    return {"state": f"{cost.state}: {state}", "result": f"{cost.result}: {result}"}


def _must_fit(context: Context, release: Release, choice: Choice, cost: Cost) -> None:
    """The archive stays, so the replay needs as much again, of what this disk holds: a result elsewhere is not reckoned."""
    needed = (cost.state_bytes if choice.state == "clear" else 0) + (cost.result_bytes or 0)
    if (free := free_bytes(context.settings)) < needed:
        raise Refused(
            f"the replay of {release.name} needs about {as_size(needed)} beside the archive, {as_size(free)} are free",
            fix="make room, or retire a release that nobody needs",
        )


def _affected(context: Context, state: RegistryState, release: Release, choice: Choice, meets: bool) -> dict[str, str]:
    facts = {}
    if _is_read(state, release):
        own = choice.output in ("new", "truncate")
        if meets:
            what = "the old result stays until the new one stands at the same input; then they go on in it"
        elif own:
            cleared = ": rows that they have are deleted" if choice.table else ""
            what = f"they go on in the new result at once{cleared}{_replay(choice)}"
        elif choice.output == "tombstone":
            what = f"they see the tombstones{_replay(choice)}"
        else:
            what = f"they go on in the same result{_replay(choice)}"
        facts["alias"] = f"{release.spec.app} names this release: {what}"
    facts["followers"] = join(_followers(context, state, release))
    pinned = [r.name for r in readers_of(state, release.result_topic)]
    if pinned:
        facts["read by"] = f"{join(pinned)}: they read the result of this generation{_for_readers(choice)}"
    return facts


def _followers(context: Context, state: RegistryState, release: Release) -> list[str]:
    """Groups that read the release's result: of a live one, all of its app's."""
    if _is_read(state, release):
        return list(state.followers.get(release.spec.app, ()))
    return followers_in(context, state, release.spec.app, release.result_topic)


def _replay(choice: Choice) -> str:
    return ", and see the replay" if choice.move in ("back", "mixed") else ""


def _for_readers(choice: Choice) -> str:
    if choice.output in ("new", "truncate"):
        return ", which is written no more: each needs a version that reads the next one"
    if choice.output == "keep" and choice.move == "forward":
        return ", which goes on without what is left out"
    what = "the tombstones and the replay" if choice.output == "tombstone" else "what comes again"
    return f" and take {what} for news: each needs a reset of its own, which `switchyard status` goes on saying"


def _positions(
    seen: Partitions,
    scope: set[tuple[str, int]],
    new: SourcePosition,
    until: SourcePosition | None,
    then: SourcePosition | None,
) -> Table:
    """`until`: where it stops, or, with `then`, from where to where it leaves records out."""
    rows = []
    for (source, partition), here in sorted(seen.items()):
        to, end, out = new.sources[source][partition], here.end, 0
        name = f"{here.topic}[{partition}]"
        if until is not None and then is not None:
            first = until.sources[source][partition]
            if out := then.sources[source][partition] - first:
                name += f" (without {first:,})"
        elif until is not None:
            end = until.sources[source][partition]
        if (source, partition) not in scope:
            name += " (stays)"
        rows.append((name, f"{here.position:,}", f"{to:,}", f"{to - here.position:+,}", f"{max(0, end - to - out):,}"))
    return Table(title="positions", columns=("input", "old", "new", "delta", "to replay"), rows=tuple(rows))


def _filled(position: SourcePosition, seen: Partitions) -> SourcePosition:
    """A position, with the beginning of the partitions that there weren't any of then."""
    sources: dict[str, dict[int, int]] = {}
    for (source, partition), here in seen.items():
        known = position.sources.get(source, {}).get(partition, here.first)
        sources.setdefault(source, {})[partition] = known
    return SourcePosition(sources=sources)


def _figures(seen: Partitions, new: SourcePosition) -> list[dict[str, Any]]:
    return [
        {"topic": here.topic, "partition": partition, "old": here.position, "new": new.sources[source][partition]}
        for (source, partition), here in sorted(seen.items())
    ]


def _ends(seen: Partitions) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (source, partition), here in seen.items():
        found.setdefault(source, {})[partition] = here.end
    return found


def _warnings(state: RegistryState, request: Request, choice: Choice, release: Release) -> list[str]:
    found = [f"{o.reason}: --force goes over it" for o in objections(choice) if o.forced]
    if choice.output == "keep" and not choice.table and choice.move in ("back", "mixed"):
        found.append("records come again in the same result; they bear the header replay")
    if choice.bounded and choice.live:
        found.append(f"it stops there: consumers get nothing new until `switchyard start {release.name} --execute`")
    if choice.output in ("truncate", "tombstone"):
        found.append("what is cleared can't be brought back: there is no undo")
    if any(r.state == "standby" for r in state.of_app(release.spec.app) if r.name != release.name):
        found.append("a rollback needs another `switchyard diff` afterwards: what was compared is of the old result")
    if release.state == "failed" and request.chosen_state == "clear":
        found.append(f"{release.name} failed: {release.failure}; the same record, read again, fails it again")
    return found


def _left_out_record(target: Target) -> str | None:
    """The one record that `target` leaves out, as `--skip` names it; None: it leaves none out."""
    record = asked_position(target).record
    return ":".join(map(str, record)) if record is not None else None


def _left_out(release: Release, choice: Choice, seen: Partitions, new: SourcePosition) -> list[str]:
    """That a table read anew from the middle lacks what came of the input before, where the old one has that."""
    if not choice.table or choice.state == "keep" or release.generations[release.generation].start.dominates(new):
        return []
    earliest = all(new.sources[source][p] == here.first for (source, p), here in seen.items())
    what = "retention has left that input" if earliest else "--to-earliest reads that again, too"
    return [f"of the input before its new position nothing will be in the result: {what}"]


def read_anew(
    seen: Partitions, scope: Set[tuple[str, int]], request: Request, lost: Sequence[Loss]
) -> set[tuple[str, int]]:
    """Topic and partition of input that the new state must have whole, or someone accepts that it lacks some.

    All that goes back to its beginning; who names another position has chosen what is left out. But of an input that is
    another topic every partition counts: an offset of the old one means nothing there.
    """
    whole = request.target.kind == "earliest" and request.chosen_state == "clear"
    another = {loss.name for loss in lost if loss.part == "input" and loss.how == "another"}
    return {(here.topic, pair[1]) for pair, here in seen.items() if (whole and pair in scope) or here.topic in another}


def _refuse_not_made_anew(lost: list[Loss], request: Request) -> set[Part]:
    """The vital parts that are lost. Raises Refused where the reset wouldn't make them anew, with the way back."""
    gone = lost_parts(lost)
    anew = request.chosen_state == "clear" and request.chosen_output == "new"
    no_input = any(loss.part == "input" and loss.how == "gone" for loss in lost)
    if gone - {"checkpoint"} and (no_input or not anew or "registry" in gone):
        refuse_lost(lost)
    return gone


def _not_cleared(choice: Choice, gone: set[Part], live: bool) -> list[str]:
    if not live or not choice.table or "result" not in gone:
        return []
    return ["rows that only the lost result had stay with its consumers: nobody knows their keys any more"]


def _too_long(request: Request, replay_s: float | None) -> list[str]:
    if replay_s is None or replay_s < request.timeout_s:
        return []
    return [
        f"the replay takes about {replay_s:,.0f} s, and the reset waits {request.timeout_s:,.0f} s for it: give a longer --timeout"
    ]


def _undo(context: Context, plan_id: str, *, same: bool) -> str:
    """How `plan_id` is taken back, until its archive ends; `same`: it goes on writing the same result."""
    until = datetime.fromtimestamp(now_ms() / 1000 + context.settings.archive_keep_s, UTC)
    what = "; what was written into the same result meanwhile stays" if same else ""
    return f"switchyard undo {plan_id} --execute, until {until:%Y-%m-%d %H:%M} UTC{what}"


# -- undo --------------------------------------------------------------------------------------------------------------


def plan_undo(
    context: Context, reset_id: str, *, stop: bool = False, timeout_s: float = 3600.0, reason: str | None = None
) -> Plan:
    """Has a release go on in the generation that a reset ended: its position, its state and its result as they were.

    Consumers that had gone on in the reset's result go back where the old generation stands at the same input.
    Raises BadUsage for an unknown reset; Refused where it is under way, was followed by another one, or its archive is gone.
    """
    state = journal.standing(context.registry)
    operation = state.known_operations.get(reset_id)
    if operation is None or operation.opened.name not in RESETS:
        raise BadUsage(f"there is no reset {reset_id}", fix="`switchyard log RELEASE` names them")
    release = state.releases[operation.opened.releases[0]]
    asked = UndoRequest(reset=reset_id)
    if (open_plan := _under_way(state, release, asked)) is not None:
        return open_plan
    refuse_blocked(state, release.name)
    if release.state in ("retired", "aborted"):
        raise Refused(f"{release.name} is {release.state}", fix="stage a new version")
    under = release.under
    if under is None or reset_id not in (under.op, release.generations[release.generation].op):
        begun_by = under.op if under else None
        if not any(g.op == reset_id for g in release.generations.values()):
            raise Refused(f"{reset_id} has begun nothing", fix="nothing is to be undone")
        raise Refused(
            f"{release.name} was changed since {reset_id}, by {begun_by}",
            fix=f"undo that one first: `switchyard undo {begun_by}`",
        )
    generation = _ended_by(release, reset_id)
    if generation is None:
        raise Refused(f"{reset_id} ended nothing that had begun", fix="reset it again instead")
    _archive_stands(context, release, generation)
    holder = context.holder(release)
    if holder is not None and not stop:
        raise Refused(
            f"{release.name} is run by {holder}", fix=f"`switchyard stop {release.name} --execute`, or add --stop"
        )
    chain = state.chains.get(release.spec.app, ())
    newest = chain[-1] if chain else None
    same = release.topic_of(generation) == release.result_topic
    # whether consumers have gone on in the result that the reset began
    meets = newest is not None and release.result_topic in newest.new_start.topics and not same
    now, before = progress_of(context, release), release.ended[generation]
    if meets and now is not None and not now.boundary.position.dominates(before.boundary.position):
        raise Refused(
            f"{release.name} has not read again to where it stood before {reset_id}",
            fix=f"`switchyard start {release.name} --execute`, and undo it when it has caught up",
        )
    name = release.name
    stages: list[Stage] = [
        *_stop(name, release.wanted),
        Seize(release=name),
        BeginGeneration(
            release=name,
            generation=generation,
            start=release.generations[generation].start,
            again=True,
            result=release.generations[generation].result,
            meet=meets,
            state=starting_state(state, release),
            old=release.generation,
            links=len(chain),
        ),
        GiveBack(release=name),
    ]
    if release.wanted == "running" or meets:
        stages += [Want(release=name, wanted="running"), Launch(release=name)]
        if meets:
            stages.append(Reach(release=name, timeout_s=timeout_s))
            if release.spec.table:
                stages.append(CompareGenerations(release=name, old=release.generation, new=generation))
            stages.append(
                AppendGeneration(alias=release.spec.app, number=len(chain) + 1, release=name,
                                 old=release.generation, new=generation, met=True)
            )  # fmt: skip
            stages += _stop(name) if release.wanted == "stopped" else []
    warnings: tuple[str, ...] = ()
    if same and now is not None:
        written = _records(before, now)
        warnings = (f"at most {written:,} records that were written into the same result since stay in it",)
    if release.wanted == "stopped" and _is_read(state, release):
        warnings = (*warnings, f"consumers get nothing new until `switchyard start {name} --execute`: it stands still")
    plan_id = new_id("undo")
    old = now.boundary.position if now else release.generations[release.generation].start
    seen = look(context, release, old)
    to = _filled(before.boundary.position, seen)
    replay = SourcePosition(sources=_ends(seen)).records_since(to)
    rate = replay_rate(context, state, release.spec.app, name)
    cost = cost_of(context, release, {release.generation})
    again = move(old, to) in ("back", "mixed")
    return Plan(
        id=plan_id,
        operation=Kind.UNDO,
        releases=(name,),
        alias=release.spec.app if meets else None,
        request=asked,
        stages=tuple(stages),
        reason=reason,
        facts={
            "asked": reset_id,
            "generation": f"{release.generation} -> {generation}",
            "replay": f"{replay:,} records, {time_of(rate, name, replay)}",
            "state": f"{cost.state}: archived",
            "result": f"{cost.result}: {'kept, and written on' if same else 'archived, as a topic of its own'}",
            "consumers": "go back where both stand at the same input"
            if meets
            else "stay where they are"
            + (", and see the replay" if same and again and _is_read(state, release) else ""),
            "followers": join(_followers(context, state, release)),
        },
        figures={
            "replay_records": replay,
            "replay_s": rate.seconds(replay) if rate else None,
            "rate_of": rate.of if rate else None,
            **asdict(cost),
            "positions": _figures(seen, to),
        },
        tables=(_positions(seen, set(seen), to, None, None),),
        warnings=warnings,
        # a generation that nothing was written in is not gone back to, nor one that cleared what was there
        undo=_undo(context, plan_id, same=same)
        if now is not None and not release.generations[generation].cleared
        else "",
        deadline_s=_DEADLINE_S + timeout_s,
    )


def _ended_by(release: Release, reset_id: str) -> int | None:
    """The generation that was under way when `reset_id` began another one."""
    begun = next((g for g in release.generations.values() if g.op == reset_id), release.under)
    if begun is None or begun.ended is None:
        return None
    return begun.ended.generation


def _records(before: Progress, now: Progress) -> int:
    return sum(
        offset - before.result.of(topic).get(p, 0)
        for topic, offsets in now.result.topics.items()
        for p, offset in offsets.items()
    )


def _archive_stands(context: Context, release: Release, generation: int) -> None:
    gone = []
    topic = release.topic_of(generation)
    if topic not in context.cluster.topic_names():
        gone.append(f"its result {topic}")
    ended = release.ended.get(generation)
    if ended is None:
        gone.append("its last boundary")
    elif ended.boundary.batch_id >= 0 and newest_folder(context.settings, release.name, generation) is None:
        gone.append("its state")
    if release.generations[release.generation].cleared:
        gone.append(f"what {topic} held before it was cleared")
    gone += cut_off(context, release, ended.boundary.position if ended else SourcePosition(sources={}))
    if gone:
        raise Refused(
            f"generation {generation} of {release.name} can't be brought back: gone is {join(gone)}",
            fix="reset it again, from the first offset: `switchyard reset ... --to-earliest`, and where input is gone with --missing-history accept",
        )


def new_positions(context: Context, plan: Plan) -> dict[str, dict[int, int]]:
    """Topic -> partition -> offset that a reset goes to.

    Raises Refused where two sources of one topic go to different ones, and where it goes nowhere, but leaves a record out.
    """
    begin = next(s for s in plan.stages if isinstance(s, BeginGeneration))
    if begin.then is not None:
        raise Refused(
            "a file of positions can't say that a record is left out: read back, it would leave out all before it, or nothing",
            fix="leave out --export",
        )
    start = begin.start
    return by_topic(context.registry.known.releases[plan.releases[0]].spec.topics, start)


def by_topic(topics: Mapping[str, str], position: SourcePosition) -> dict[str, dict[int, int]]:
    """Topic -> partition -> offset of a position. `topics`: source name -> topic.

    Raises Refused where two sources of one topic stand at different offsets of a partition.
    """
    found: dict[str, dict[int, int]] = {}
    for source, offsets in sorted(position.sources.items()):
        for partition, offset in offsets.items():
            other = found.setdefault(topics[source], {}).setdefault(partition, offset)
            if other != offset:
                raise Refused(
                    f"a file of positions can't say that {topics[source]}[{partition}] is at {other} for one source and at {offset} for {source}",
                    fix="leave out --export; the plan shows both",
                )
    return found
