"""Reprocess: stage, start, wait, diff, check and promote in a row, stopping for approval before consumers move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.operations import release as rel
from orchestration.operations import switch as sw
from orchestration.operations.check import check
from orchestration.operations.context import Context, live_release
from orchestration.operations.evidence import Comparison
from orchestration.operations.plan import Plan
from orchestration.operations.stages import WriteDelta
from pipelines.errors import BadUsage, Refused
from pipelines.model.names import release_name
from pipelines.model.registry import Proposed

if TYPE_CHECKING:
    from expectations.verdict import Verdict


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
    lag_records: int = 0,
    for_s: float = 10.0,
    timeout_s: float = 3600.0,
    max_changed: float | None = None,
    volume_tolerance: float = VOLUME_TOLERANCE,
    auto_promote: bool = False,
    on_progress: Callable[[rel.Hydration], None] = lambda _: None,
) -> Reprocessed:
    """Runs every step that is left: a release staged or started already is gone on with.

    Raises Refused where a check failed; the candidate stays as it is, to be looked at.
    """
    state = context.registry.state()
    existing = state.releases.get(release_name(app, version)) if version is not None else None
    if existing is None:
        plan = rel.plan_stage(
            context, app, version=version, code_dir=code_dir, same_as=same_as, settings=settings, correction=correction
        )
        name = plan.releases[0]
        rel.execute(context, plan)
    else:
        name = existing.name
        context.say(f"{name} is staged already, going on with it")
    rel.execute(context, rel.plan_start(context, name))
    rel.wait_ready(context, name, lag_records=lag_records, for_s=for_s, timeout_s=timeout_s, on_progress=on_progress)
    state = context.registry.state()
    found: Comparison | None = None
    live = live_release(state, app)
    if live is not None and live.name != name and sw.are_compared(state.releases[name], live):
        found = diff(context, name)
    verdict = (
        check(context, name, volume_tolerance=volume_tolerance) if state.releases[name].spec.suite is not None else None
    )
    if verdict is not None and not verdict.ok:
        raise Refused(f"{name} failed its checks: {', '.join(r.name for r in verdict.results if r.outcome in ('failed', 'errored'))}",
                      fix=f"see {verdict.docs}; mend the app and stage the next version")  # fmt: skip
    promotion = sw.plan_promote(context, name, max_changed=max_changed)
    if auto_promote:
        rel.execute(context, promotion)
    else:
        _propose(context, promotion)
    return Reprocessed(release=name, comparison=found, verdict=verdict, plan=promotion, promoted=auto_promote)


def _propose(context: Context, plan: Plan) -> None:
    entry = Proposed(id=plan.id, name=plan.operation, releases=plan.releases, alias=plan.alias, plan=plan.for_journal())
    context.registry.step(lambda _: [entry], op=plan.id)


def plan_approved(context: Context, plan_id: str, *, reason: str | None = None) -> Plan:
    """The promotion that a reprocess proposed under this id, if it would still do the very same.

    Raises BadUsage for an unknown id; Refused where it was begun already, where something has changed since, and
    where the promotion itself would be refused now.
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
    name = proposed.releases[0]
    before = Plan.from_journal(proposed)
    limits = [stage.max_changed for stage in before.stages if isinstance(stage, WriteDelta)]
    now = sw.plan_promote(context, name, max_changed=limits[0] if limits else None, reason=reason)
    if now.stages != before.stages:
        release = state.releases[name].spec
        raise Refused(
            f"{plan_id} would do something else now: the alias or the evidence has changed since",
            fix=f"compare, check and propose again: `switchyard reprocess {release.app} --version {release.version} --execute`",
        )
    return replace(now, id=plan_id)


def diff(context: Context, name: str, *, tolerance: float = 0.0, samples: int = 10) -> Comparison:
    """Compares a release with the live one, at exactly the same boundary, and returns what was found."""
    plan = sw.plan_diff(context, name, tolerance=tolerance, samples=samples)
    rel.execute(context, plan)
    return sw.comparison(next(e for e in context.registry.state().evidence if e.id == plan.id))
