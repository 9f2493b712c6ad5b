"""The journal: an operation under way blocks others on its releases. Anyone can resume or abandon it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from orchestration.operations.context import Context
from orchestration.operations.lifecycle import refuse_blocked
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.generations import AppendGeneration, BeginGeneration
from orchestration.operations.plans.stages.releases import Want
from orchestration.operations.plans.stages.switching import AppendSwitch
from orchestration.operations.reading import Reading
from pipelines.engine.lease import carried_by, is_alive, this_process
from pipelines.errors import BadUsage, LoginRefused, Refused, SwitchyardError, Unavailable
from pipelines.kafka.failures import TopicGone
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Carried, Closed, Entry, Holder, Opened
from pipelines.model.registry import Operation, RegistryState
from pipelines.model.signs import Sign
from pipelines.model.switch import abortion, emptying, expired
from pipelines.model.unread import refuse_unread

log = logging.getLogger(__name__)

# after an outage of Kafka, all signs of life are old; a process that lives has this long to be heard again
SURE_S = 5.0
LISTEN_S = 0.25
# how long an operation tries again while Kafka, or the bucket of the store, can't be reached or refuses for now. A dead
# broker has a successor within half a minute, and one that is started again answers within a minute or two
_OUTAGE_S = 120.0
_AGAIN_S = 1.0
# the outages of one operation: what takes hours may meet several
_OUTAGES = 5


def ending(state: RegistryState, operation: Operation, outcome: str, detail: str) -> list[Entry]:
    """The entries that end an operation. They also abort its switch if that was not promoted."""
    order = operation.mark or operation.align
    entries = abortion(state, operation.id, detail) if order is not None and order.switch is not None else []
    entries.append(Closed(id=operation.id, outcome=outcome, detail=detail, op=operation.id))  # type: ignore[arg-type]
    return entries


def aborting(state: RegistryState, operation_id: str, reason: str | None) -> list[Entry]:
    """The entries that abort a switch under way, so that followers and the next operation can continue; none if it is
    over.

    Raises Refused if the switch has already happened.
    """
    operation = state.operations[operation_id]
    if operation.promoted is not None:
        app = operation.promoted.alias
        raise Refused(f"{operation_id} has already switched", fix=f"`switchyard rollback {app} --execute` goes back")
    return [] if operation.closed else ending(state, operation, "abandoned", reason or "an operator aborted it")


def expire(registry: Registry) -> RegistryState:
    """Ends operations that are past their deadline; writes nothing if there are none."""
    state = registry.state()
    # most often nothing is open: then nobody has to ask for the time. A login that can't ask ends nothing
    if state.has_open and expired(state, registry.now_ms()) and registry.knows_time:
        state = registry.step(lambda s: expired(s, registry.now_ms()), reason="deadline passed")
    return state


def begin(context: Context, plan: Plan, also: Sequence[Entry] = ()) -> RegistryState:
    """Opens the plan's operation, or resumes it if it is already open. `also`: entries to write in the same step.

    Raises Refused while another operation is under way on one of its releases, and while another process carries this one
    out: that lives, or may live and has given a sign of life in the last `lease_timeout_s`. From any other it is taken
    over: that one does nothing more. If it may live, this listens for 5 s first.
    """
    mine = this_process(context.settings)
    heard = _listen(context, plan.id, mine)
    carried = Carried(id=plan.id, holder=mine)

    def decide(state: RegistryState) -> Sequence[Entry]:
        for release in plan.releases:
            refuse_unread(state.not_understood(release), release)
        now_ms = context.now_ms()
        entries = expired(state, now_ms)
        closed = {e.id for e in entries if isinstance(e, Closed)}
        for release in plan.releases:
            other = state.blocking(release)
            if other is not None and other.id not in closed:
                refuse_blocked(state, release, but=plan.id)
        known = state.known_operations.get(plan.id)
        if known is None:
            _refuse_changed(state, plan)
        if known is not None:
            if known.closed is not None:
                raise Refused(f"{plan.id} is already over: {_how_it_ended(known.closed)}", fix=plan.again)
            if known.carrier == mine:
                return entries
            # a sign that was young enough a moment ago still counts: nobody has listened since
            at_it = carrier_of(context, known) or heard
            if at_it is not None:
                raise Refused(
                    f"{at_it} is carrying out {plan.id}",
                    fix=f"wait for it, `switchyard operations` shows it; or stop that process, then `switchyard resume {plan.id}`",
                )
            return [*entries, carried]
        opened = Opened(
            id=plan.id,
            name=plan.operation.value,
            releases=plan.releases,
            alias=plan.alias,
            deadline_ms=now_ms + int(plan.deadline_s * 1000),
            plan=plan.for_journal(),
        )
        return [*entries, opened, carried, *also]

    return context.registry.step(decide, op=plan.id, reason=plan.reason)


def _listen(context: Context, plan_id: str, mine: Holder) -> str | None:
    """Waits for a sign of life, for some seconds, if another process may carry out the operation and is silent. Says who
    gave one, as `carried_by`.
    """
    known = context.registry.state().operations.get(plan_id)
    if (
        known is None
        or known.closed is not None
        or known.carrier in (None, mine)
        or is_alive(known.carrier) is not None
    ):
        return None
    deadline = context.monotonic() + SURE_S
    while (heard := carrier_of(context, known)) is None and context.monotonic() < deadline:
        context.sleep(LISTEN_S)
    return heard


def carrier_of(context: Reading, operation: Operation) -> str | None:
    """Who carries out an operation, in words, as `carried_by`. Raises Unavailable without a broker."""
    carrier = operation.carrier
    # what is proven needs neither a sign nor the time
    if carrier is None or is_alive(carrier) is not None:
        return carried_by(operation, None, context.settings, at_ms=0)
    context.beats()
    sign_ms = context.registry.heartbeats.sign_ms(Sign(op=operation.opened.id, holder=carrier))
    return carried_by(operation, sign_ms, context.settings, at_ms=context.now_ms())


def _refuse_changed(state: RegistryState, plan: Plan) -> None:
    """Raises Refused if the alias was switched since the plan was made, or a release of the plan was started or
    stopped. Called before any driver pauses or consumer waits.
    """
    for stage in plan.stages:
        if isinstance(stage, Want) and stage.before is not None:
            wanted = state.releases[stage.release].wanted
            if wanted != stage.before:
                done = "started" if wanted == "running" else "stopped"
                raise Refused(f"{stage.release} was {done} after the plan was made", fix=plan.again)
        if isinstance(stage, BeginGeneration):
            refuse_other_generation(state, stage, plan)
        if isinstance(stage, AppendSwitch | AppendGeneration):
            chain = state.chains.get(stage.alias, ())
            if len(chain) + 1 != stage.number:
                raise Refused(
                    f"{stage.alias} has changed since the plan was made: switch {len(chain)} made {chain[-1].new} live",
                    fix=plan.again,
                )


def refuse_other_generation(state: RegistryState, stage: BeginGeneration, plan: Plan) -> None:
    """Raises Refused if the release's generation or the alias's switch has changed since `plan` was made."""
    release = state.releases[stage.release]
    links = len(state.chains.get(release.spec.app, ()))
    if (stage.old is not None and release.generation != stage.old) or (
        stage.links is not None and links != stage.links
    ):
        raise Refused(
            f"{release.name}, or the live release of {release.spec.app}, has changed since the plan was made",
            fix=plan.again,
        )


def finish(context: Context, plan: Plan, detail: str = "") -> None:
    """Closes the operation as done, if it is open and this process carries it out."""
    _close(context, plan.id, "done", detail, only_by=this_process(context.settings))


def fail(context: Context, plan_id: str, error: BaseException, also: Sequence[Entry] = ()) -> None:
    """Closes the operation as failed, if this process carries it out, and aborts its switch if it had one.

    `also`: entries to write in the same step.
    """
    _close(context, plan_id, "failed", _detail(error), also, only_by=this_process(context.settings))


def _detail(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "its operator canceled it"
    return error.what if isinstance(error, SwitchyardError) else f"{type(error).__name__}: {error}"


def under_way(state: RegistryState, operation_id: str) -> Operation:
    """The operation with that id. Raises BadUsage for an unknown id, Refused if the operation is over."""
    operation = state.known_operations.get(operation_id)
    if operation is None:
        raise BadUsage(f"there is no operation {operation_id}", fix="`switchyard operations` lists those under way")
    if operation.closed is not None:
        raise Refused(
            f"operation {operation_id} is over: {_how_it_ended(operation.closed)}",
            fix=f"`switchyard log {operation_id}` shows what it did; if you still want it, run the command again",
        )
    return operation


def _how_it_ended(closed: Closed) -> str:
    return closed.outcome + (f", {closed.detail}" if closed.detail else "")


def abandon(context: Context, operation_id: str, *, reason: str | None = None, also: Sequence[Entry] = ()) -> None:
    """Ends an operation that its operator left unfinished. `also`: entries to write in the same step.

    Raises as `under_way` does, and Refused for an operation that has started to empty a result: what is there is
    neither the old table nor the new one.
    """
    state = context.registry.state()
    for name in under_way(state, operation_id).opened.releases:
        refuse_unread(state.not_understood(name), name)
    if (release := emptying(state, operation_id)) is not None:
        raise Refused(
            f"{operation_id} has started to empty the result of {release}, so it can only be finished",
            fix=f"`switchyard resume {operation_id}`",
        )
    _close(context, operation_id, "abandoned", reason or "an operator abandoned it", also)


def _close(
    context: Context, operation_id: str, outcome: str, detail: str, also: Sequence[Entry] = (), *,
    only_by: Holder | None = None,
) -> None:  # fmt: skip
    def decide(state: RegistryState) -> Sequence[Entry]:
        operation = state.operations.get(operation_id)
        if operation is None or operation.closed:
            return []
        if only_by is not None and operation.carrier not in (None, only_by):
            return []
        return [*ending(state, operation, outcome, detail), *also]

    context.registry.step(decide, op=operation_id)


def journaled(
    context: Context,
    plan: Plan,
    work: Callable[[], None],
    also: Sequence[Entry] = (),
    *,
    reached: Callable[[], int] = lambda: 0,
    stays_open: Callable[[RegistryState], bool] = lambda _: False,
    give_up: Sequence[Entry] = (),
) -> None:
    """Opens the operation, does `work`, and closes it. If `work` raises, Ctrl-C included, it is closed as failed. Meanwhile
    it gives signs of life, so that no process of another host takes the operation over.

    In an outage, `work` is called again, for two minutes at most: it must do only what is left. If Kafka can't be reached by
    then, the operation stays open, and the error says how to resume it. `reached`: the number of the last stage that
    `work` has begun. An outage is over once that grows; the next one has two minutes of its own. `stays_open`: whether, by the registry, the
    operation has gone too far to be closed and must be resumed or abandoned. `give_up`: entries for the step that closes it
    as failed.
    """
    _say_first(context, plan.id)
    _through_outage(context, plan, lambda: begin(context, plan, also))
    with _signs_of_life(context, plan.id):
        try:
            _through_outage(context, plan, work, reached)
        except BaseException as error:
            if _end_failed(context, plan.id, error, stays_open, give_up):
                _say_how_to_resume(error, plan)
            raise
        try:
            _through_outage(context, plan, lambda: finish(context, plan))
        except Unavailable as error:
            _say_how_to_resume(error, plan)
            raise


def _say_how_to_resume(error: BaseException, plan: Plan) -> None:
    if isinstance(error, SwitchyardError):
        resume = f"to continue: `switchyard resume {plan.id}`"
        error.fix = f"{error.fix}; {resume}" if error.fix else resume


def _through_outage(
    context: Context, plan: Plan, act: Callable[[], object], reached: Callable[[], int] = lambda: 0
) -> None:
    """Calls `act` again while Kafka or the bucket is out of reach or refuses for now. Raises what it raised last.
    `reached`: as in `journaled`.
    """
    outages, until, stopped_at = 0, 0.0, 0
    while True:
        began = context.monotonic()
        try:
            if outages:
                _settle(context)
            act()
            return
        except (LoginRefused, TopicGone):
            # that does not pass by itself
            raise
        except Unavailable as outage:
            now = context.monotonic()
            # an attempt that came further, or went well for so long, has met another outage
            if not outages or reached() > stopped_at or now - began > _OUTAGE_S:
                outages, until, stopped_at = outages + 1, now + min(_OUTAGE_S, plan.deadline_s), reached()
                context.say(
                    f"{outage.what}: {plan.id} tries again for {until - now:.0f} s. To end this command, press Ctrl-C"
                )
            if now > until or outages > _OUTAGES:
                raise
            context.sleep(_AGAIN_S)


def _settle(context: Context) -> None:
    """Takes a step after an outage. So what an earlier step wrote counts or is gone, though its answer was lost: a read alone
    doesn't see a transaction whose commit is not finished. Ends what is past its deadline, so that no consumer waits longer.
    """

    def decide(state: RegistryState) -> Sequence[Entry]:
        # asked before `knows_time`
        now_ms = context.registry.now_ms()
        return expired(state, now_ms) if context.registry.knows_time else []

    context.registry.step(decide, reason="deadline passed")


def _end_failed(
    context: Context,
    plan_id: str,
    error: BaseException,
    stays_open: Callable[[RegistryState], bool],
    give_up: Sequence[Entry],
) -> bool:
    """Closes an operation that `error` has ended, unless it `stays_open`. Returns whether it is left to be resumed, as is one
    of an outage: nobody could say that it is over.
    """
    try:
        state = context.registry.state()
        if stays_open(state):
            return _is_left(context, state, plan_id)
        fail(context, plan_id, error, give_up)
    except Unavailable as outage:
        log.warning("%s stays open, as nobody could write that it has failed: %s", plan_id, outage.what)
        return True
    return False


def _say_first(context: Context, plan_id: str) -> None:
    """Gives a sign of life before the operation is opened or taken over. Raises Refused without the right, Unavailable
    without an answer: who can't give signs may carry out nothing. The broker's answer also tells what time it is.
    """
    context.registry.state()
    if context.registry.topic_id is not None:
        with _signs_of_life(context, plan_id):
            pass


def _signs_of_life(context: Context, plan_id: str) -> AbstractContextManager[object]:
    context.registry.ensure_heartbeats()
    return context.registry.signs_of_life(Sign(op=plan_id, holder=this_process(context.settings)))


def _is_left(context: Context, state: RegistryState, plan_id: str) -> bool:
    """Whether the operation is left to be resumed: someone else may have ended it, or taken it over."""
    operation = state.known_operations.get(plan_id)
    if operation is None or operation.closed is not None:
        return False
    return operation.carrier in (None, this_process(context.settings))


def has_started_generation(state: RegistryState, plan_id: str) -> bool:
    """Whether the operation has started its generation. From then on it can only be finished or undone."""
    return any(r.under is not None and r.under.op == plan_id for r in state.releases.values())
