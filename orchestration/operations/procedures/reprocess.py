"""Reprocess: stage, start, wait, diff and check in one operation, then promote, by default only after an approval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.lifecycle import find_release, live_release
from orchestration.operations.looking.in_use import readers_of
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import Asked, model_for, plan_stage
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, join
from orchestration.operations.procedures.approve import propose
from orchestration.operations.procedures.examine import examine
from orchestration.operations.procedures.wait import Hydration, wait_ready
from pipelines.engine.code import freeze
from pipelines.errors import Refused
from pipelines.model.app import setting_like
from pipelines.model.entries import ReleaseSpec
from pipelines.model.names import release_name
from pipelines.model.registry import RegistryState, Release

if TYPE_CHECKING:
    from expectations.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Reprocessed:
    """What a reprocess found. `plan`: the promotion that waits for approval; `promoted`: whether it was carried out.

    `downstream`: the same of the apps that read its result, in order.
    """

    release: str
    comparison: Comparison | None
    verdict: Verdict | None
    plan: Plan
    promoted: bool
    downstream: tuple[Reprocessed, ...] = ()


def in_order(found: Reprocessed) -> Iterator[Reprocessed]:
    """What was found of an app, and of those that read its result."""
    yield found
    for each in found.downstream:
        yield from in_order(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """When a release may take over.

    `unread_records`, `for_s`, `timeout_s`: as in `wait_ready`. `max_changed`: as in `plan_promote`. `volume_tolerance`: as in
    `check`. `auto_promote`: no one must approve it.
    """

    unread_records: int = 0
    for_s: float = 10.0
    timeout_s: float = 3600.0
    max_changed: float | None = None
    volume_tolerance: float = VOLUME_TOLERANCE
    auto_promote: bool = False


def reprocess(
    context: Context,
    app: str,
    *,
    conditions: Conditions = Conditions(),
    downstream: bool = False,
    on_progress: Callable[[Hydration], None] = lambda _: None,
    **asked: Unpack[Asked],
) -> Reprocessed:
    """Runs every step that is left: a release that is already staged or started is resumed.

    `asked`: the options of `plan_stage`. With `accept_missing`, the release may lack the input that is missing now; if
    more goes missing on the way, that ends the operation. `downstream`: then does the same with each app whose live
    release reads this app's live result, so that it reads the new one; and so on. Raises what the steps raise, and
    ChecksFailed; the candidate then stays as it is, so that you can look at it.
    """
    readers = readers_to_move(context.registry.state(), app) if downstream else []
    first = first_step(context, app, **asked)
    name = first.releases[0]
    execute(context, first)
    if first.operation is Kind.STAGE:
        execute(context, plan_start(context, name))
    wait_ready(
        context, name, unread_records=conditions.unread_records, for_s=conditions.for_s, timeout_s=conditions.timeout_s,
        on_progress=on_progress,
    )  # fmt: skip
    found, verdict = examine(context, name, conditions.volume_tolerance)
    promotion = plan_promote(context, name, max_changed=conditions.max_changed)
    if conditions.auto_promote:
        execute(context, promotion)
    else:
        propose(context, promotion)
    moved = tuple(
        reprocess(
            context, reader.spec.app, conditions=conditions, downstream=True, on_progress=on_progress,
            same_as=reader.name, correction=f"reads {name}", upstream=(name,),
            accept_missing=asked.get("accept_missing", False),
        )
        for reader in readers
    )  # fmt: skip
    return Reprocessed(
        release=name, comparison=found, verdict=verdict, plan=promotion, promoted=conditions.auto_promote,
        downstream=moved,
    )  # fmt: skip


def readers_to_move(state: RegistryState, app: str) -> list[Release]:
    """The live releases that read the live result of `app`, by name.

    Raises Refused if one has a stream as its result, which can't be continued from another input.
    """
    live = live_release(state, app)
    if live is None:
        return []
    found = {r.name: r for topic in live.result_topics.values() for r in readers_of(state, topic)}
    readers = [r for r in found.values() if live_release(state, r.spec.app) is r]
    for reader in readers:
        if reader.spec.streams:
            raise Refused(
                f"{reader.name} reads the result of {live.name}, and its result is a stream: its consumers can't move to another input without missing records or getting them twice",
                fix="leave out --downstream, and give the app that follows another name",
            )
    return readers


def chain_of(state: RegistryState, app: str) -> list[Release]:
    """The live releases that read the live result of `app`, those that read theirs, and so on, in order."""
    found = []
    for reader in readers_to_move(state, app):
        found += [reader, *chain_of(state, reader.spec.app)]
    return found


def first_step(context: Context, app: str, **asked: Unpack[Asked]) -> Plan:
    """The plan to stage the release or, if it is already staged, to start it. Later plans depend on what this one
    finds.

    Raises what `plan_stage` and `plan_start` raise, and Refused if the release was staged with something else than
    asked.
    """
    state, version = context.registry.state(), asked.get("version")
    staged = state.releases.get(release_name(app, version)) if version is not None else None
    if staged is None:
        return plan_stage(context, app, **asked)
    differs = _differs(state, staged.spec, asked)
    if differs:
        raise Refused(
            f"{staged.name} is already staged, and differs from what is asked for: {'; '.join(differs)}",
            fix=f"a release never changes: run `switchyard reprocess {staged.spec.app}` with another --version, or leave out these options to resume it as it is",
        )
    context.say(f"{staged.name} is already staged; continuing with it")
    return plan_start(context, staged.name, accept_missing=asked.get("accept_missing", False))


def _differs(state: RegistryState, spec: ReleaseSpec, asked: Asked) -> list[str]:
    """How a release differs from what is asked for. An option that is not given does not count."""
    settings, digest = dict(asked.get("settings") or {}), None
    code_dir, same_as, correction = asked.get("code_dir"), asked.get("same_as"), asked.get("correction")
    if same_as is not None:
        model = model_for(state, spec.app, same_as, code_dir).spec
        settings, digest = {**model.settings, **settings}, model.code_digest
    elif code_dir is not None:
        digest = freeze(code_dir).digest
    upstream = [find_release(state, name).name for name in asked.get("upstream") or ()]
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
    read = [source.release for source in spec.inputs.values() if source.release is not None]
    found += [
        f"it reads {join(read) if read else 'no result of an app'}, not {name}" for name in upstream if name not in read
    ]
    return found
