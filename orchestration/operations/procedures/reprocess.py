"""Reprocess: stage, start, wait, diff and check in one operation, then promote, by default only after an approval."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import model_for, plan_stage
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.approve import propose
from orchestration.operations.procedures.examine import examine
from orchestration.operations.procedures.wait import Hydration, wait_ready
from pipelines.engine.code import freeze
from pipelines.errors import Refused
from pipelines.model.app import setting_like
from pipelines.model.entries import ReleaseSpec
from pipelines.model.names import release_name

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
    accept_missing: bool = False,
    lag_records: int = 0,
    for_s: float = 10.0,
    timeout_s: float = 3600.0,
    max_changed: float | None = None,
    volume_tolerance: float = VOLUME_TOLERANCE,
    auto_promote: bool = False,
    on_progress: Callable[[Hydration], None] = lambda _: None,
) -> Reprocessed:
    """Runs every step that is left: a release that is already staged or started is resumed.

    `accept_missing`: the release may lack the input that is missing now; if more goes missing on the way, that ends the
    operation. Raises what the steps raise, and ChecksFailed; the candidate then stays as it is, so that you can look at
    it.
    """
    first = first_step(
        context, app, version=version, code_dir=code_dir, same_as=same_as, settings=settings, correction=correction,
        accept_missing=accept_missing,
    )  # fmt: skip
    name = first.releases[0]
    execute(context, first)
    if first.operation is Kind.STAGE:
        execute(context, plan_start(context, name))
    wait_ready(context, name, lag_records=lag_records, for_s=for_s, timeout_s=timeout_s, on_progress=on_progress)
    found, verdict = examine(context, name, volume_tolerance)
    promotion = plan_promote(context, name, max_changed=max_changed)
    if auto_promote:
        execute(context, promotion)
    else:
        propose(context, promotion)
    return Reprocessed(release=name, comparison=found, verdict=verdict, plan=promotion, promoted=auto_promote)


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
    """The plan to stage the release or, if it is already staged, to start it. Later plans depend on what this one
    finds.

    Raises what `plan_stage` and `plan_start` raise, and Refused if the release was staged with something else than
    asked.
    """
    state = context.registry.state()
    staged = state.releases.get(release_name(app, version)) if version is not None else None
    if staged is None:
        return plan_stage(
            context, app, version=version, code_dir=code_dir, same_as=same_as, settings=settings, correction=correction,
            accept_missing=accept_missing,
        )  # fmt: skip
    given, digest = dict(settings or {}), None
    if same_as is not None:
        model = model_for(state, app, same_as, code_dir).spec
        given, digest = {**model.settings, **given}, model.code_digest
    elif code_dir is not None:
        digest = freeze(code_dir).digest
    differs = _differs(staged.spec, digest, given, correction)
    if differs:
        raise Refused(
            f"{staged.name} is already staged, and differs from what is asked for: {'; '.join(differs)}",
            fix=f"a release never changes: run `switchyard reprocess {staged.spec.app}` with another --version, or leave out these options to resume it as it is",
        )
    context.say(f"{staged.name} is already staged; resuming it")
    return plan_start(context, staged.name, accept_missing=accept_missing)


def _differs(spec: ReleaseSpec, digest: str | None, settings: Mapping[str, Any], correction: str | None) -> list[str]:
    """How a release differs from what is asked for. An option that is not given does not count."""
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
        found.append(f"it has {staged_for}, not {correction!r}")
    return found
