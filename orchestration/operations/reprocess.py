"""Reprocess: stage, start, wait, diff, check and promote in a row, stopping for approval before consumers move."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.operations import release as rel
from orchestration.operations import switch as sw
from orchestration.operations.check import check
from orchestration.operations.comparing.evidence import Comparison, are_compared, recorded
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import live_release
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.switching import AppendSwitch, PrepareDelta, VerifyStream, WriteDelta
from pipelines.engine.code import freeze
from pipelines.errors import BadUsage, Refused
from pipelines.model.app import setting_like
from pipelines.model.names import release_name
from pipelines.model.registry import EvidenceRecorded, Proposed, RegistryState, ReleaseSpec

if TYPE_CHECKING:
    from expectations.verdict import Verdict


# what came since a diff was shown differs about as what came before it did: by more than a tenth is for a person to see
GROWTH = 1.1


class ChecksFailed(Refused):
    """A release that failed its checks. `comparison`, `verdict`: what was found of it."""

    def __init__(self, name: str, comparison: Comparison | None, verdict: Verdict) -> None:
        names = ", ".join(r.name for r in verdict.results if r.outcome in ("failed", "errored"))
        super().__init__(
            f"{name} failed its checks: {names or 'all were skipped'}",
            fix=f"see {verdict.docs}; mend the app and stage the next version",
        )
        self.comparison = comparison
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocessed:
    """What a reprocess found. `plan`: the promotion that waits for approval; `promoted`: whether it was carried out."""

    release: str
    comparison: Comparison | None
    verdict: Verdict | None
    plan: Plan
    promoted: bool


def reprocess(
    context: Context,
    app: str,
    *,
    version: int | None = None,
    code_dir: Path | None = None,
    same_as: str | None = None,
    settings: Mapping[str, Any] | None = None,
    correction: str | None = None,
    accept_missing: bool = False,
    lag_records: int = 0,
    for_s: float = 10.0,
    timeout_s: float = 3600.0,
    max_changed: float | None = None,
    volume_tolerance: float = VOLUME_TOLERANCE,
    auto_promote: bool = False,
    on_progress: Callable[[rel.Hydration], None] = lambda _: None,
) -> Reprocessed:
    """Runs every step that is left: a release staged or started already is gone on with.

    `accept_missing`: it may lack the input that is missing now; more that goes missing on the way ends it. Raises what `first_step` does, and ChecksFailed; the candidate stays as it is, to be looked at.
    """
    first = first_step(
        context, app, version=version, code_dir=code_dir, same_as=same_as, settings=settings, correction=correction,
        accept_missing=accept_missing,
    )  # fmt: skip
    name = first.releases[0]
    rel.execute(context, first)
    if first.operation is Kind.STAGE:
        rel.execute(context, rel.plan_start(context, name))
    rel.wait_ready(context, name, lag_records=lag_records, for_s=for_s, timeout_s=timeout_s, on_progress=on_progress)
    found, verdict = _examine(context, name, volume_tolerance)
    promotion = sw.plan_promote(context, name, max_changed=max_changed)
    if auto_promote:
        rel.execute(context, promotion)
    else:
        _propose(context, promotion)
    return Reprocessed(release=name, comparison=found, verdict=verdict, plan=promotion, promoted=auto_promote)


def _examine(context: Context, name: str, volume_tolerance: float) -> tuple[Comparison | None, Verdict | None]:
    """Compares a release with the live one, where consumers move only after that, then checks it, if it has a suite.

    Raises ChecksFailed.
    """
    state = context.registry.state()
    release = state.releases[name]
    live = live_release(state, release.spec.app)
    compared = live is not None and live.name != name and are_compared(release, live)
    found = diff(context, name) if compared else None
    verdict = check(context, name, volume_tolerance=volume_tolerance) if release.spec.suite is not None else None
    if verdict is not None and not verdict.ok:
        raise ChecksFailed(name, found, verdict)
    return found, verdict


def first_step(
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
    """Staging or, where the release is staged already, its start; the plans of later steps depend on what these find.

    Raises what `plan_stage` and `plan_start` do, and Refused where what is given is not what the release was staged with.
    """
    state = context.registry.state()
    staged = state.releases.get(release_name(app, version)) if version is not None else None
    if staged is None:
        return rel.plan_stage(
            context, app, version=version, code_dir=code_dir, same_as=same_as, settings=settings, correction=correction,
            accept_missing=accept_missing,
        )  # fmt: skip
    given, digest = dict(settings or {}), None
    if same_as is not None:
        model = rel.model_for(state, app, same_as, code_dir).spec
        given, digest = {**model.settings, **given}, model.code_digest
    elif code_dir is not None:
        digest = freeze(code_dir).digest
    differs = _differs(staged.spec, digest, given, correction)
    if differs:
        raise Refused(
            f"{staged.name} is staged already, and is not what is asked for: {'; '.join(differs)}",
            fix="stage another version, as a release never changes; or leave these out, to go on with it as it is",
        )
    context.say(f"{staged.name} is staged already, going on with it")
    return rel.plan_start(context, staged.name, accept_missing=accept_missing)


def _differs(spec: ReleaseSpec, digest: str | None, settings: Mapping[str, Any], correction: str | None) -> list[str]:
    """In what a release differs from what is given; what isn't given is as it was staged."""
    found = []
    if digest is not None and digest != spec.code_digest:
        found.append(f"its code is {spec.code_digest[:12]}, not {digest[:12]}")
    for key, given in settings.items():
        if key not in spec.settings:
            found.append(f"it has no setting {key}")
        elif setting_like(spec.app, key, spec.settings[key], given) != spec.settings[key]:
            found.append(f"its {key} is {spec.settings[key]}, not {given}")
    if correction is not None and correction != spec.correction:
        staged_for = "no correction" if spec.correction is None else f"the correction {spec.correction!r}"
        found.append(f"it is {staged_for}, not {correction!r}")
    return found


def _propose(context: Context, plan: Plan) -> None:
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
    max_evidence_age_s: float = sw.MAX_EVIDENCE_AGE_S,
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
        return sw.plan_promote(
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
    found, _ = _examine(context, name, VOLUME_TOLERANCE if tolerance is None else tolerance)
    now = promotion()
    _require_same(state, before, _but_evidence(now) == _but_evidence(before))
    worse = _worse(shown, found, limit) if shown is not None and found is not None else []
    if worse:
        _propose(context, now)
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


def diff(
    context: Context, name: str, *, tolerance: float = 0.0, samples: int = 10, accept_missing: bool = False
) -> Comparison:
    """Compares a release with the live one, at exactly the same boundary, and returns what was found."""
    plan = sw.plan_diff(context, name, tolerance=tolerance, samples=samples, accept_missing=accept_missing)
    rel.execute(context, plan)
    return recorded(context.registry.state(), plan.id)
