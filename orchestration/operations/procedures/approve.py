"""The promotion that a reprocess proposed: by what it was shown with, or by evidence that is no worse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.context import Context
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.readiness import MAX_EVIDENCE_AGE_S
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.switching import AppendSwitch, PrepareDelta, VerifyStream, WriteDelta
from orchestration.operations.procedures.examine import examine
from pipelines.errors import BadUsage, Refused
from pipelines.model.registry import EvidenceRecorded, Proposed, RegistryState, ReleaseSpec

# what came since a diff was shown differs about as what came before it did: by more than a tenth is for a person to see
GROWTH = 1.1


def propose(context: Context, plan: Plan) -> None:
    entry = Proposed(
        id=plan.id, name=plan.operation.value, releases=plan.releases, alias=plan.alias, plan=plan.for_journal()
    )
    context.registry.step(lambda _: [entry], op=plan.id)


def plan_approved(
    context: Context,
    plan_id: str,
    *,
    app: str | None = None,
    version: int | None = None,
    max_evidence_age_s: float = MAX_EVIDENCE_AGE_S,
    max_changed: float | None = None,
    reason: str | None = None,
    refresh: bool = True,
) -> Plan:
    """The promotion that a reprocess proposed under this id, if it would still do the very same.

    Where only the age of its evidence is against it, as approvals take longer than that, both releases are compared and
    checked again, and it goes by that if the outcome is no worse than what was shown (`_worse`). `refresh`: whether to
    do so now; False, for a plan that is only shown, says that it would be done.
    `app` (or release), `version`, `max_changed`: what the caller takes it for.

    Raises BadUsage for an unknown id and for one that is of something else; Refused where it was begun already, where
    something else has changed since, where the promotion itself would be refused now, and where the outcome is worse:
    then the promotion by it is proposed.
    """
    state = context.registry.state()
    proposed = state.proposals.get(plan_id)
    if proposed is None:
        waiting = [p for p in state.proposals if p not in state.operations]
        raise BadUsage(
            f"no plan {plan_id} waits for approval",
            fix=f"the newest that does: {waiting[-1]}" if waiting else "`switchyard reprocess` proposes one",
        )
    if plan_id in state.operations:
        raise Refused(f"{plan_id} was approved already", fix=f"`switchyard log {plan_id}` says how it went")
    before = Plan.from_journal(proposed)
    limits = [stage.max_changed for stage in before.stages if isinstance(stage, WriteDelta | VerifyStream)]
    # a plan without either keeps no limit: it is held against the one that is given now
    limit = limits[0] if limits else max_changed
    spec = state.releases[proposed.releases[0]].spec
    _refuse_another(plan_id, spec, limit, app=app, version=version, max_changed=max_changed)

    def promotion(max_age_s: float, *, renewed: bool = False) -> Plan:
        name = proposed.releases[0]
        return plan_promote(
            context, name, max_evidence_age_s=max_age_s, max_changed=limit, reason=reason, renewed=renewed
        )

    try:
        now, too_old = promotion(max_evidence_age_s), False
    except Refused as refusal:
        try:
            now, too_old = promotion(math.inf, renewed=True), True
        except Refused:
            raise refusal from None
    _require_same(state, before, _moves(now) == _moves(before))
    if too_old and not refresh:
        again = f"what it goes by is older than {max_evidence_age_s / 60:g} min: before anything else both releases are compared and checked again, and consumers move only if the outcome is no worse"  # fmt: skip
        now = replace(now, warnings=(*now.warnings, again))
    elif too_old:
        now = _refreshed(context, state, before, lambda: promotion(max_evidence_age_s), limit)
    return replace(now, id=plan_id)


def _require_same(state: RegistryState, before: Plan, same: bool) -> None:
    if not same:
        release = state.releases[before.releases[0]].spec
        raise Refused(
            f"{before.id} would do something else now: the alias or the evidence has changed since",
            fix=f"compare, check and propose again: `switchyard reprocess {release.app} --version {release.version} --execute`",
        )


def _refreshed(
    context: Context, state: RegistryState, before: Plan, promotion: Callable[[], Plan], limit: float | None
) -> Plan:
    """The same promotion as `before` by evidence of now. Raises Refused where that is worse, and proposes it then."""
    name = before.releases[0]
    context.say(f"what {before.id} goes by is too old: comparing and checking {name} again")
    shown = _shown(context, state, before)
    verdict = state.releases[name].verdict
    # as it was checked before; a verdict of an older version doesn't say
    tolerance = verdict.volume_tolerance if verdict is not None else None
    found, _ = examine(context, name, VOLUME_TOLERANCE if tolerance is None else tolerance)
    now = promotion()
    _require_same(state, before, _but_evidence(now) == _but_evidence(before))
    worse = _worse(shown, found, limit) if shown is not None and found is not None else []
    if worse:
        propose(context, now)
        raise Refused(
            f"{name} differs from the live release in more than was shown for {before.id}: {'; '.join(worse)}",
            fix=f"look at it; if that is right, approve the plan by these figures: `switchyard approve {now.id} --execute`, or the job promote with it",
        )
    if found is not None:
        context.say(f"no worse than shown: {found.changed:,} changed, {found.only_live:,} only live, {found.only_new:,} only new, {found.identical:,} identical")  # fmt: skip
    return now


def _shown(context: Context, state: RegistryState, plan: Plan) -> Comparison | None:
    """The comparison that a proposed promotion was shown with: the state may have forgotten it, the log has it."""
    wanted = {stage.evidence for stage in plan.stages if isinstance(stage, AppendSwitch)}
    known = (e for e in state.evidence if e.id in wanted)
    logged = (e for e in context.registry.history() if isinstance(e, EvidenceRecorded) and e.id in wanted)
    found = next(chain(known, logged), None) if wanted else None
    return Comparison.of(found) if found is not None else None


def _but_evidence(plan: Plan) -> list[Stage]:
    return [
        replace(s, evidence="") if isinstance(s, WriteDelta | VerifyStream | AppendSwitch) else s for s in _moves(plan)
    ]


def _worse(shown: Comparison, found: Comparison, limit: float | None) -> list[str]:
    """What an approval of `shown` doesn't cover of `found`: a class of difference that was empty then, and, unless the
    operator set a limit, which the promotion itself goes by, one whose share is over `GROWTH` times what it was.
    """
    worse = []
    for name in ("changed", "only_live", "only_new"):
        was, now = getattr(shown, name), getattr(found, name)
        was_share, now_share = was / max(shown.total, 1), now / max(found.total, 1)
        if now and (not was or (limit is None and now_share > GROWTH * was_share)):
            worse.append(f"{now:,} {name.replace('_', ' ')} ({now_share:.2%}), {was:,} ({was_share:.2%}) shown")
    return worse


def _moves(plan: Plan) -> list[Stage]:
    """The stages of a plan but for what only saves time: how much that is changes while a plan waits."""
    return [stage for stage in plan.stages if not isinstance(stage, PrepareDelta)]


def _refuse_another(
    plan_id: str,
    spec: ReleaseSpec,
    limit: float | None,
    *,
    app: str | None,
    version: int | None,
    max_changed: float | None,
) -> None:
    """Raises BadUsage where what is asked for is not what the plan does: nothing that is asked for is left out unsaid."""
    others = []
    if app not in (None, spec.app, spec.release):
        others.append(f"not {app}")
    if version not in (None, spec.version):
        others.append(f"not version {version}")
    if max_changed not in (None, limit):
        others.append(f"with max_changed {'unset' if limit is None else f'{limit:g}'}, not {max_changed:g}")
    if others:
        raise BadUsage(
            f"{plan_id} promotes {spec.release}, {', '.join(others)}",
            fix="leave out what the plan says itself, or name another plan",
        )
