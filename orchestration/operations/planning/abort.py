"""Plans to abort the switch under way."""

from __future__ import annotations

from orchestration.operations.lifecycle import switches_under_way, unknown_app
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.plans.stages.switching import AbortSwitch
from orchestration.operations.reading import Reading
from pipelines.errors import Refused


def plan_abort(context: Reading, app: str, *, reason: str | None = None) -> Plan:
    """Plans to abort the switch of `app` under way. Followers that wait at its barrier continue with the old result.

    Raises BadUsage for an unknown app, Refused if no switch is under way.
    """
    state = context.state_for_planning()
    under_way = switches_under_way(state, app)
    if not state.of_app(app):
        raise unknown_app(state, app)
    if not under_way:
        raise Refused(f"no switch of {app} is under way", fix=f"`switchyard log {app}` shows how the last one ended")
    operation = under_way[-1]
    return Plan(
        id=new_id("abort"),
        operation=Kind.ABORT,
        releases=operation.opened.releases,
        alias=app,
        stages=(AbortSwitch(alias=app, operation=operation.id),),
        reason=reason,
        facts={"switch": operation.id, "started by": operation.opened.actor},
    )
