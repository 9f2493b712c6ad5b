"""Plans a reset."""

from __future__ import annotations

from dataclasses import asdict, replace

from orchestration.operations.lifecycle import find_release, refuse_blocked
from orchestration.operations.looking.costs import Cost, Rate, cost_of, replay_rate, time_of
from orchestration.operations.looking.history import History, history_of_reset
from orchestration.operations.planning.reset.consumers import affected
from orchestration.operations.planning.reset.decision import Reset, decide, is_fresh
from orchestration.operations.planning.reset.positions import read_whole
from orchestration.operations.planning.reset.refusals import must_fit, refuse_over, under_way
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.show import (
    cost_facts,
    figures_of,
    left_out_record,
    positions_table,
    warnings_of,
    way_back,
)
from orchestration.operations.planning.reset.stages import DEADLINE_S, stages_of
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.reading import Reading
from pipelines.errors import Refused


def plan_reset(context: Reading, name: str, request: Request, *, reason: str | None = None) -> Plan:
    """Plans to make a release read again from another position, with its state cleared or kept and its result as
    requested.

    If the same request is already under way, returns its plan, to resume it. Raises BadUsage for unknown names; Refused
    while the release runs (unless `stop`), while another operation is under way on it, if a position is out of range,
    if position, state and output do not fit together, if the app forbids resets, and if the disk is too small;
    MissingHistory.
    """
    state = context.state_for_planning()
    release = find_release(state, name)
    if (open_plan := under_way(state, release, request.asked())) is not None:
        return open_plan
    refuse_over(release)
    if not release.spec.reset_allowed:
        raise Refused(
            f"{release.spec.app} does not allow a reset",
            fix=f"run a new release beside the live one: `switchyard reprocess {release.spec.app} [--from FOLDER]`; or change reset_allowed in the app",
        )
    refuse_blocked(state, release.name)
    reset = decide(context, state, release, request)
    moved = read_whole(reset.seen, reset.scope, request, reset.lost)
    history = history_of_reset(context, release, reset.old, reset.new, moved)
    accepting = replace(request, accept_missing=True).command(release.name)
    history.require(
        accept=request.accept_missing,
        way=f"`{accepting}` reads the input that is there; or restore the input from a backup of the brokers, then reset again",
    )
    ends = {release.generation, reset.read} if request.chosen_output == "truncate" else {release.generation}
    cost = cost_of(context, release, ends)
    # the replay writes one generation, whatever the reset deletes
    must_fit(context, release, reset.choice, cost_of(context, release, {release.generation}))
    return _plan_of(context, reset, history, cost, reason)


def _plan_of(context: Reading, reset: Reset, history: History, cost: Cost, reason: str | None) -> Plan:
    release, request, choice = reset.release, reset.request, reset.choice
    rate = replay_rate(context, reset.state, release.spec.app, release.name, request.max_records_per_batch)
    replay_s = rate.seconds(reset.replay) if rate else None
    plan_id = new_id("reset")
    # no undo leads back to a generation without a batch, or to one that has lost a part
    cleared = choice.output in ("truncate", "tombstone")
    lasts = not cleared and reset.last is not None and not reset.gone
    return Plan(
        id=plan_id,
        operation=Kind.RESET,
        releases=(release.name,),
        alias=release.spec.app if choice.live and reset.has_own_topic else None,
        request=request.asked(),
        stages=history.stages + stages_of(context, reset),
        reason=reason,
        facts=_facts(context, reset, history, cost, rate),
        figures={
            "replay_records": reset.replay,
            "replay_s": replay_s,
            "rate_of": rate.of if rate else None,
            **asdict(cost),
            "positions": figures_of(reset.seen, reset.new),
            "left_out": left_out_record(request.target),
        },
        tables=(positions_table(reset.seen, reset.scope, reset.new, reset.end, reset.left_out),),
        warnings=warnings_of(reset, replay_s),
        undo=way_back(context, plan_id, same=choice.output == "keep") if lasts else "",
        deadline_s=DEADLINE_S + request.timeout_s,
    )


def _facts(context: Reading, reset: Reset, history: History, cost: Cost, rate: Rate | None) -> dict[str, str]:
    release = reset.release
    return {
        "request": reset.request.words(),
        "generation": f"{release.generation} -> {reset.generation}",
        "to read": f"{reset.replay:,} records, {time_of(rate, release.name, reset.replay)}",
        **cost_facts(cost, reset.choice, fresh=is_fresh(reset.last)),
        **history.facts,
        **affected(context, reset.state, release, reset.for_consumers, reset.meets),
    }
