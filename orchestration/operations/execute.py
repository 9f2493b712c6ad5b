"""Carrying out a plan, and ending what another one has begun."""

from __future__ import annotations

import logging

from orchestration.operations import journal
from orchestration.operations.applying.applier import Applier
from orchestration.operations.context import Context
from orchestration.operations.journal import begun
from orchestration.operations.plans.kind import RESETS, Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.releases import Want
from pipelines.errors import SwitchyardError
from pipelines.model.registry import WantedSet

log = logging.getLogger(__name__)

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
