"""Carries out plans, and abandons operations that were left unfinished."""

from __future__ import annotations

import logging

from orchestration.operations import journal
from orchestration.operations.applying.applier import Applier
from orchestration.operations.context import Context
from orchestration.operations.journal import has_started_generation
from orchestration.operations.plans.kind import RESETS, Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.releases import Want
from pipelines.errors import SwitchyardError
from pipelines.model.entries import WantedSet

log = logging.getLogger(__name__)

# journaled operations: they block other operations on their releases until they are closed
_JOURNALED = RESETS | {Kind.DIFF, Kind.PROMOTE, Kind.ROLLBACK, Kind.RETIRE, Kind.CLEAN}


def execute(context: Context, plan: Plan) -> None:
    """Applies a plan. A journaled one blocks its releases until it is closed; applying it again resumes it."""
    applier = Applier(context, plan)
    if plan.operation in _JOURNALED:
        # once its generation has started, an operation can only be finished or undone, so it stays open for `resume`
        try:
            journal.journaled(
                context,
                plan,
                applier.run,
                applier.orders(),
                reached=lambda: applier.reached,
                stays_open=lambda s: has_started_generation(s, plan.id),
                give_up=_as_before(plan),
            )
        except BaseException:
            _run_again(context, plan)
            raise
    else:
        applier.run()


def _as_before(plan: Plan) -> list[WantedSet]:
    """The entries that set a release to run again, if a reset or an undo stopped it and then failed before it changed
    the release.
    """
    if plan.operation not in RESETS:
        return []
    stopped = [s.release for s in plan.stages if isinstance(s, Want) and (s.wanted, s.before) == ("stopped", "running")]
    return [WantedSet(release=name, wanted="running") for name in stopped]


def _run_again(context: Context, plan: Plan) -> None:
    """Starts the releases that a plan stopped before it failed or was ended without changing them.

    Only if the plan's own operation is closed. A refused plan has stopped nothing, and another operation may need the
    release stopped.
    """
    for entry in _as_before(plan):
        try:
            state = context.registry.state()
            operation, release = state.operations.get(plan.id), state.releases[entry.release]
            if operation is None or operation.closed is None or state.blocking(release.name) is not None:
                continue
            if (
                has_started_generation(state, plan.id)
                or release.wanted != "running"
                or context.holder(release) is not None
            ):
                continue
            where = context.launcher.launch(release.name)
        except SwitchyardError as error:
            context.say(f"{entry.release} could not be started again: {error}")
            continue
        context.say(f"{release.name} is unchanged and was started again: {where}")


def abandon(context: Context, operation_id: str, *, reason: str | None = None) -> None:
    """Ends an operation that its operator left unfinished. Starts again the releases that it stopped but did not
    change.

    If its plan can't be read, it is unknown which releases it stopped; they stay stopped. Raises as `journal.abandon`
    does.
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
    journal.abandon(
        context,
        operation_id,
        reason=reason,
        also=() if has_started_generation(state, operation_id) else _as_before(plan),
    )
    _run_again(context, plan)
