"""Approves the promotion that a reprocess proposed: with the evidence that it was shown with, or with newer evidence
that is no worse.
"""

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
from pipelines.model.entries import EvidenceRecorded, Proposed, ReleaseSpec
from pipelines.model.registry import RegistryState

# new records differ about as much as those before them; if the share grew by more than a tenth, a person must look
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
    """The promotion that a reprocess proposed under this id, if it would still do exactly the same.

    If only its evidence is too old, because approvals take time, both releases are compared and checked again. The
    promotion then goes by the new evidence if the outcome is no worse than what was shown (`_worse`). `refresh`:
    whether to do that now; False, for a plan that is only shown, warns that it will be done. `app` (or release),
    `version`, `max_changed`: what the caller expects the plan to do.

    Raises BadUsage for an unknown id, and for a plan that does something else; Refused if the plan was already
    approved, if something has changed since, if the promotion would be refused now, and if the new outcome is worse. In
    the last case a new promotion with the new evidence is proposed.
    """
    state = context.registry.state()
    proposed = state.proposals.get(plan_id)
    if proposed is None:
        waiting = [p for p in state.proposals if p not in state.operations]
        newest = f"the newest plan that waits is {waiting[-1]}" if waiting else None
        raise BadUsage(
            f"no plan {plan_id} waits for approval", fix=newest or "`switchyard reprocess APP --execute` proposes one"
        )
    if plan_id in state.operations:
        raise Refused(f"{plan_id} was already approved", fix=f"`switchyard log {plan_id}` shows how it went")
    before = Plan.from_journal(proposed)
    limits = [stage.max_changed for stage in before.stages if isinstance(stage, WriteDelta | VerifyStream)]
    # a plan without these stages keeps no limit, so the limit that is given now applies
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
        again = f"its diff or check is older than {max_evidence_age_s / 60:g} min: both releases are first compared and checked again, and consumers move only if the outcome is no worse"  # fmt: skip
        now = replace(now, warnings=(*now.warnings, again))
    elif too_old:
        now = _refreshed(context, state, before, lambda: promotion(max_evidence_age_s), limit)
    return replace(now, id=plan_id)


def _require_same(state: RegistryState, before: Plan, same: bool) -> None:
    if not same:
        release = state.releases[before.releases[0]].spec
        raise Refused(
            f"{before.id} would now do something else, because the alias or the evidence has changed",
            fix=f"compare, check and propose again: `switchyard reprocess {release.app} --version {release.version} --execute`",
        )


def _refreshed(
    context: Context, state: RegistryState, before: Plan, promotion: Callable[[], Plan], limit: float | None
) -> Plan:
    """The same promotion as `before`, with new evidence. If that is worse, proposes the new promotion and raises
    Refused.
    """
    name = before.releases[0]
    context.say(f"the diff or check of {before.id} is too old; comparing and checking {name} again")
    shown = _shown(context, state, before)
    verdict = state.releases[name].verdict
    # the tolerance of the last check; a verdict of an older version does not say
    tolerance = verdict.volume_tolerance if verdict is not None else None
    found, _ = examine(context, name, VOLUME_TOLERANCE if tolerance is None else tolerance)
    now = promotion()
    _require_same(state, before, _but_evidence(now) == _but_evidence(before))
    worse = _worse(shown, found, limit) if shown is not None and found is not None else []
    if worse:
        propose(context, now)
        raise Refused(
            f"{name} differs more from the live release than was shown for {before.id}: {'; '.join(worse)}",
            fix=f"look at the differences; if they are right, approve the new plan: `switchyard approve {now.id} --execute`, or the job promote with plan: {now.id}",
        )
    if found is not None:
        context.say(f"no worse than shown: {found.in_words()}")
    return now


def _shown(context: Context, state: RegistryState, plan: Plan) -> Comparison | None:
    """The comparison that a proposed promotion was shown with. If the state no longer holds it, the log does."""
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
    """The differences in `found` that an approval of `shown` does not cover: a class of difference that was empty then,
    and a class whose share grew to more than `GROWTH` times what it was. The second rule does not apply if the operator
    set a limit, because the promotion itself checks that.
    """
    if found.results:
        # one may be worse while another, larger one hides it in the sums
        return [
            f"{result}: {said}"
            for result, now in found.results.items()
            for said in _worse(shown.results.get(result, Comparison.none()), now, limit)
        ]
    worse = []
    for name in ("changed", "only_live", "only_new"):
        was, now = getattr(shown, name), getattr(found, name)
        was_share, now_share = was / max(shown.total, 1), now / max(found.total, 1)
        if now and (not was or (limit is None and now_share > GROWTH * was_share)):
            worse.append(f"{now:,} {found.label(name)} ({now_share:.2%}), {was:,} ({was_share:.2%}) shown")
    return worse


def _moves(plan: Plan) -> list[Stage]:
    """The stages of a plan without `PrepareDelta`, which only saves time and may come and go while a plan waits."""
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
    """Raises BadUsage if the plan does not do what is asked for, so that no option is silently ignored."""
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
            fix="leave out the options that the plan already fixes, or name another plan",
        )
