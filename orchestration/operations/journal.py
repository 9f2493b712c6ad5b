"""The journal: an operation under way blocks others on its releases, and can be resumed or abandoned by anyone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestration.operations.context import Context, refuse_blocked
from orchestration.operations.plan import Plan
from orchestration.operations.stages import AppendSwitch
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.kafka.registry import Registry, now_ms
from pipelines.model.registry import Closed, Entry, Opened, Operation, RegistryState
from pipelines.model.switch import abortion, expired


def ending(state: RegistryState, operation: Operation, outcome: str, detail: str) -> list[Entry]:
    """The entries that end an operation; a switch that wasn't promoted is aborted, in the same step."""
    order = operation.mark or operation.align
    entries = abortion(state, operation.id, detail) if order is not None and order.switch is not None else []
    entries.append(Closed(id=operation.id, outcome=outcome, detail=detail, op=operation.id))  # type: ignore[arg-type]
    return entries


def aborting(state: RegistryState, operation_id: str, reason: str | None) -> list[Entry]:
    """The entries that end a switch under way, so that followers and the next operation go on; none if it is over.

    Raises Refused if it was carried out.
    """
    operation = state.operations[operation_id]
    if operation.promoted is not None:
        app = operation.promoted.alias
        raise Refused(f"{operation_id} is carried out already", fix=f"`switchyard rollback {app}` goes back")
    return [] if operation.closed else ending(state, operation, "abandoned", reason or "aborted by order")


def expire(registry: Registry) -> RegistryState:
    """Ends operations whose deadline has passed; writes nothing if there are none."""
    state = registry.state()
    if expired(state, now_ms()):
        state = registry.step(lambda s: expired(s, now_ms()), reason="deadline passed")
    return state


def begin(context: Context, plan: Plan, also: Sequence[Entry] = ()) -> RegistryState:
    """Opens the plan's operation, or finds it open already. `also`: entries of the same step.

    Raises Refused while another operation is under way on one of its releases.
    """

    def decide(state: RegistryState) -> Sequence[Entry]:
        entries = expired(state, now_ms())
        closed = {e.id for e in entries if isinstance(e, Closed)}
        for release in plan.releases:
            other = state.blocking(release)
            if other is not None and other.id not in closed:
                refuse_blocked(state, release, but=plan.id)
        known = state.operations.get(plan.id)
        if known is None:
            _refuse_changed(state, plan)
        if known is not None:
            if known.closed is not None:
                raise Refused(f"{plan.id} is {known.closed.outcome}: {known.closed.detail}", fix="make a new plan")
            return entries
        opened = Opened(
            id=plan.id,
            name=plan.operation,
            releases=plan.releases,
            alias=plan.alias,
            deadline_ms=now_ms() + int(plan.deadline_s * 1000),
            plan=plan.for_journal(),
        )
        return [*entries, opened, *also]

    return context.registry.step(decide, op=plan.id, reason=plan.reason)


def _refuse_changed(state: RegistryState, plan: Plan) -> None:
    """Raises Refused if the alias has been switched since the plan: before anything of it pauses or waits."""
    for stage in plan.stages:
        if isinstance(stage, AppendSwitch):
            chain = state.chains.get(stage.alias, ())
            if len(chain) + 1 != stage.number:
                raise Refused(
                    f"{stage.alias} has changed since the plan was made: switch {len(chain)} made {chain[-1].new} live",
                    fix="make a new plan, and look at it",
                )


def finish(context: Context, plan: Plan, detail: str = "") -> None:
    """Closes the operation as done, if it is open."""
    _close(context, plan.id, "done", detail)


def fail(context: Context, plan_id: str, error: BaseException) -> None:
    """Closes the operation as failed; its switch, if it had one, is aborted."""
    detail = error.what if isinstance(error, SwitchyardError) else f"{type(error).__name__}: {error}"
    _close(context, plan_id, "failed", detail)


def under_way(state: RegistryState, operation_id: str) -> Operation:
    """The operation of that id. Raises BadUsage for an unknown one, Refused for one that is over."""
    operation = state.operations.get(operation_id)
    if operation is None:
        raise BadUsage(f"there is no operation {operation_id}", fix="`switchyard operations` lists those under way")
    if operation.closed is not None:
        detail = f", {operation.closed.detail}" if operation.closed.detail else ""
        raise Refused(
            f"operation {operation_id} is over: {operation.closed.outcome}{detail}",
            fix=f"`switchyard log {operation_id}` says what it did; begin anew if it is still wanted",
        )
    return operation


def abandon(context: Context, operation_id: str, *, reason: str | None = None) -> None:
    """Ends an operation for whoever began it. Raises as `under_way` does."""
    under_way(context.registry.state(), operation_id)
    _close(context, operation_id, "abandoned", reason or "by order")


def _close(context: Context, operation_id: str, outcome: str, detail: str) -> None:
    def decide(state: RegistryState) -> Sequence[Entry]:
        operation = state.operations.get(operation_id)
        return [] if operation is None or operation.closed else ending(state, operation, outcome, detail)

    context.registry.step(decide, op=operation_id)


def journaled(context: Context, plan: Plan, work: Callable[[], None], also: Sequence[Entry] = ()) -> None:
    """Opens the operation, does `work`, closes it; what `work` raises closes it as failed, Ctrl-C included."""
    begin(context, plan, also)
    try:
        work()
    except BaseException as error:
        fail(context, plan.id, error)
        raise
    finish(context, plan)
