"""Comparing releases and moving consumers between them: diff, check, promote, rollback, abort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from orchestration.operations import journal
from orchestration.operations.backlog import ahead
from orchestration.operations.comparing.backlog import Backlog, backlog_of
from orchestration.operations.comparing.evidence import Comparison, are_compared, evidence_for
from orchestration.operations.comparing.upkeep import too_old, upkeep_of
from orchestration.operations.context import Context
from orchestration.operations.generations import progress_of
from orchestration.operations.history import history_of
from orchestration.operations.in_use import refuse_unfinished
from orchestration.operations.lifecycle import before_live, find_release, live_release, refuse_blocked, version_of
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.switching import (
    AbortSwitch,
    Align,
    AppendSwitch,
    ChooseStart,
    Compare,
    Fence,
    FlagBoundary,
    Meet,
    VerifyStream,
    WriteDelta,
)
from orchestration.operations.release import unchecked
from pipelines.engine.lease import held_by
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.progress import progress_history
from pipelines.kafka.registry import now_ms
from pipelines.kafka.topics import COMPACTION_LAG_MS, DAY_MS
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import EvidenceRecorded, RegistryState, Release, VerdictRecorded
from pipelines.model.switch import choose_start, of_generation

# approvals take minutes; a diff older than this says too little about now
MAX_EVIDENCE_AGE_S = 600.0
# a driver that pauses finishes its batch first
_PAUSE_TIMEOUT_S = 120.0
# for comparing results of any size
_COMPARE_TIMEOUT_S = 1800.0


def plan_diff(
    context: Context, name: str, *, tolerance: float = 0.0, samples: int = 10, accept_missing: bool = False
) -> Plan:
    """Compares a release with the live one at exactly the same boundary. `tolerance`: relative, for floating point.

    `accept_missing`: it may lack input that the live release has read; else MissingHistory is raised.
    """
    state = journal.standing(context.registry)
    new = find_release(state, name)
    live = _other(state, new)
    for release in (new, live):
        refuse_unfinished(state, release)
    if not are_compared(new, live):
        raise Refused(
            f"{new.spec.app} states that two runs can't be compared", fix="check it instead: `switchyard check`"
        )
    if new.spec.table != live.spec.table:
        raise Refused(f"{new.name} and {live.name} differ in kind: a table and a stream", fix="stage it as a new app")
    history = history_of(context, state, new, live)
    history.require(accept=accept_missing)
    beats = context.beats()
    for release in (new, live):
        refuse_blocked(state, release.name)
        _require_running(context, release, beats)
    _require_near(context, new, beats)
    return Plan(
        id=new_id("diff"),
        operation=Kind.DIFF,
        releases=(new.name, live.name),
        stages=(
            *history.stages,
            *_meeting(context, new, live, switch=None, alias=None),
            Compare(live=live.name, new=new.name, tolerance=tolerance, samples=samples),
        ),
        facts={"live": live.name, "new": new.name, **history.facts},
        deadline_s=_COMPARE_TIMEOUT_S,
    )


def _meeting(
    context: Context, new: Release, live: Release, *, switch: int | None, alias: str | None
) -> tuple[Stage, ...]:
    """The stages by which `new` meets `live` at one boundary."""
    timeout_s = context.settings.switch_timeout_s
    return (
        Align(release=new.name, other=live.name, switch=switch, timeout_s=_PAUSE_TIMEOUT_S),
        FlagBoundary(release=new.name, other=live.name, switch=switch, alias=alias, deadline_s=timeout_s),
        # without a switch nobody waits at the boundary, and the batch under way may be long
        Meet(
            release=new.name,
            other=live.name,
            switch=switch,
            timeout_s=timeout_s if switch is not None else timeout_s + _PAUSE_TIMEOUT_S,
        ),
    )


def _other(state: RegistryState, release: Release) -> Release:
    live = live_release(state, release.spec.app)
    if live is release:
        # the live one is compared with the one to which it would go back
        back = before_live(state, release.spec.app)
        if back is not None and back.state == "standby":
            return back
        raise Refused(f"{release.name} is live and has no standby to compare with", fix="stage another version")
    if live is None:
        raise Refused(
            f"nothing of {release.spec.app} is live to compare with",
            fix=f"promote {release.name}, or another release, first",
        )
    return live


def _require_running(context: Context, release: Release, beats: Mapping[str, Heartbeat]) -> None:
    if held_by(release, beats.get(release.name), context.settings, at_ms=now_ms()) is None:
        raise Refused(
            f"{release.name} isn't running",
            fix=f"`switchyard start {release.name} --execute`, then wait until it has caught up",
        )


def _far_behind(context: Context, release: Release, beats: Mapping[str, Heartbeat]) -> str | None:
    """That a release would have to meet the other in a batch larger than any batch may be; None: it would not."""
    beat = beats.get(release.name)
    lag = beat.lag_records or 0 if beat else 0
    limit = (beat.batch_records if beat else None) or context.settings.max_records_per_batch
    if lag <= limit:
        return None
    return f"{release.name} is {lag:,} records behind its input, over the {limit:,} of one batch"


def _require_near(context: Context, release: Release, beats: Mapping[str, Heartbeat]) -> None:
    far = _far_behind(context, release, beats)
    if far is not None:
        raise Refused(far, fix=f"`switchyard wait {release.name}`, then try again")


def plan_promote(
    context: Context,
    app: str,
    *,
    version: int | None = None,
    max_evidence_age_s: float = MAX_EVIDENCE_AGE_S,
    max_changed: float | None = None,
    reason: str | None = None,
    renewed: bool = False,
    accept_missing: bool = False,
) -> Plan:
    """Moves the consumers of `app` to a release that is ready, checked and compared with the live one.

    `max_changed`: refuse if a larger share of keys differs; None: report only. `renewed`: the evidence will be another
    one when this is carried out, so that its age doesn't count. `accept_missing`: it may lack input that the live release has
    read. Raises Refused with all that is missing; MissingHistory.
    """
    state = journal.standing(context.registry)
    alias = find_release(state, app).spec.app if app in state.releases else app
    new = find_release(state, app) if app in state.releases else version_of(state, app, version)
    live = live_release(state, alias)
    if live is new:
        raise Refused(f"{new.name} is live already", fix="nothing is left to do")
    refuse_blocked(state, new.name)
    history = history_of(context, state, new)
    history.require(accept=accept_missing)
    number = len(state.chains.get(alias, ())) + 1
    evidence = evidence_for(state, new, live) if live else None
    beats = context.beats()
    lacking = _not_ready(context, new, beats) + _not_checked(new, evidence, live, max_evidence_age_s)
    if live is not None:
        refuse_blocked(state, live.name)
        refuse_unfinished(state, live)
        kept_ms = upkeep_of(context.settings, evidence).at_ms if evidence is not None else None
        lacking += _not_compared(new, live, evidence, max_evidence_age_s, max_changed, renewed=renewed, kept_ms=kept_ms)
        if held_by(live, beats.get(live.name), context.settings, at_ms=now_ms()) is None:
            lacking.append(f"{live.name}, which is live, isn't running: start it")
    if lacking:
        raise Refused(
            f"{new.name} can't be promoted: " + "; ".join(lacking),
            fix=f"`switchyard reprocess {alias} --version {new.spec.version} --execute` waits, compares and checks, each in its turn",
        )
    stages: tuple[Stage, ...] = ()
    backlog: Backlog | None = None
    if live is not None:
        stages = _meeting(context, new, live, switch=number, alias=alias)
        if evidence is not None and are_compared(new, live):
            backlog = backlog_of(context, evidence)
            kind = WriteDelta if new.spec.table else VerifyStream
            since = kind(evidence=evidence.id, old=live.name, new=new.name, max_changed=max_changed)
            stages = (*ahead(backlog, since), *stages, since)
    stages = (*history.stages, *stages)
    stages += (
        AppendSwitch(alias=alias, number=number, old=live.name if live else None, new=new.name,
                     evidence=evidence.id if evidence else None),
    )  # fmt: skip
    return Plan(
        id=new_id("promote"),
        operation=Kind.PROMOTE,
        releases=(new.name, live.name) if live else (new.name,),
        alias=alias,
        stages=stages,
        reason=reason,
        facts={**_switch_facts(live, new, number, evidence, backlog), **history.facts},
        warnings=unchecked(new.spec),
        undo=_way_back(alias, new, live) if live else "",
        deadline_s=_deadline_s(context, backlog),
    )


def _deadline_s(context: Context, backlog: Backlog | None) -> float:
    # twice the time that reading takes: others may use the cores
    reading_s = 2 * backlog.seconds if backlog is not None else 0.0
    return _PAUSE_TIMEOUT_S + 3 * context.settings.switch_timeout_s + reading_s


def _way_back(alias: str, new: Release, live: Release) -> str:
    command = f"switchyard rollback {alias} --leaving {new.name} --execute"
    if not new.spec.table:
        return f"{command}, in seconds, while {live.name} runs on as standby"
    days = COMPACTION_LAG_MS // DAY_MS
    return (
        f"{command}, while {live.name} runs on as standby: in seconds, and first the time to read what both have written "
        f"since the diff, or since `switchyard refresh {alias}`; {days} days after that, `switchyard diff {new.name}` first"
    )


def _switch_facts(
    live: Release | None,
    new: Release,
    number: int,
    evidence: EvidenceRecorded | None,
    backlog: Backlog | None,
) -> dict[str, str]:
    facts = {"from": live.name if live else "nothing", "to": new.name, "switch": str(number)}
    if evidence is not None:
        found = Comparison.of(evidence)
        facts["evidence"] = (
            f"{evidence.id}: {found.changed:,} changed, {found.only_live:,} only live, {found.only_new:,} only new, {found.identical:,} identical"
        )
    if backlog is not None:
        facts["since the diff"] = str(backlog)
    if new.verdict is not None:
        facts["checks"] = f"{new.verdict.passed} passed, {new.verdict.failed} failed"
    return facts


def _not_ready(context: Context, new: Release, beats: Mapping[str, Heartbeat]) -> list[str]:
    lacking = []
    if new.ready is None or new.ready.generation != new.generation:
        lacking.append(f"it hasn't caught up (`switchyard wait {new.name}`)")
    if new.state not in ("ready", "standby"):
        lacking.append(f"its state is {new.state}")
    if held_by(new, beats.get(new.name), context.settings, at_ms=now_ms()) is None:
        lacking.append("it isn't running")
    elif (far := _far_behind(context, new, beats)) is not None:
        lacking.append(f"{far} (`switchyard wait {new.name}`)")
    return lacking


def _not_checked(new: Release, evidence: EvidenceRecorded | None, live: Release | None, max_age_s: float) -> list[str]:
    verdict: VerdictRecorded | None = new.verdict
    if new.spec.suite is None:
        return []
    if verdict is None or verdict.generation != new.generation:
        return [f"its result isn't checked (`switchyard check {new.name}`)"]
    if verdict.failed or verdict.errored:
        return [f"the checks failed: {', '.join(verdict.failures)}"]
    if not verdict.passed:
        # as `Verdict.ok`: what was skipped says nothing
        return [f"none of its checks passed: all were skipped (`switchyard check {new.name}`)"]
    if live is not None and are_compared(new, live):
        if verdict.evidence is None:
            return [f"its last check was not of a diff, but of all that it had written (`switchyard check {new.name}`)"]
        if evidence is None:
            return [f"its last check was at {verdict.evidence}, of other releases (`switchyard check {new.name}`)"]
        if verdict.evidence != evidence.id:
            return [f"it was checked before the last diff (`switchyard check {new.name}`)"]
    elif (age_s := (now_ms() - verdict.at_ms) / 1000) > max_age_s:
        # without a diff, whose age is looked at, it is the verdict's that says what is known of the newest data
        return [
            f"its check is {age_s:.0f} s old, over --max-evidence-age {max_age_s:.0f} (`switchyard check {new.name}`)"
        ]
    return []


def _not_compared(
    new: Release,
    live: Release,
    evidence: EvidenceRecorded | None,
    max_age_s: float,
    max_changed: float | None,
    *,
    renewed: bool = False,
    kept_ms: int | None = None,
) -> list[str]:
    if not are_compared(new, live):
        return []
    if evidence is None:
        return [f"it isn't compared with {live.name} (`switchyard diff {new.name}`)"]
    age_s = (now_ms() - evidence.at_ms) / 1000
    lacking = []
    if age_s > max_age_s:
        lacking.append(
            f"the diff is {age_s:.0f} s old, over --max-evidence-age {max_age_s:.0f} (`switchyard diff {new.name}`)"
        )
    elif new.spec.table and not renewed and (old := too_old(evidence, now_ms(), kept_ms=kept_ms)) is not None:
        lacking.append(f"{old} (`switchyard diff {new.name}`)")
    found = Comparison.of(evidence)
    if max_changed is not None and found.ratio > max_changed:
        lacking.append(f"{found.ratio:.2%} of the keys differ, over --max-changed {max_changed:.2%}")
    return lacking


def plan_rollback(
    context: Context,
    app: str,
    *,
    allowed: Literal["gap", "duplicates"] | None = None,
    fence: bool = False,
    leaving: str | None = None,
    reason: str | None = None,
) -> Plan:
    """Moves the consumers of `app` back to the release that was live before, which ran on as standby.

    `leaving`: the release that they are to leave; refused if another one is live by now, since what was live before that
    one may be the very release that was left. With the live release dead or stuck there is no common boundary: tables are exact all the same, by the delta; for
    streams `allowed` says what consumers may see. `fence`: take a live release for stuck that still gives signs of life,
    as one whose batch doesn't end; its driver is fenced.
    """
    state = journal.standing(context.registry)
    chain = state.chains.get(app, ())
    if not chain:
        known = state.releases.get(app)
        raise BadUsage(
            f"nothing of {app} is live",
            fix=f"name the app: `switchyard rollback {known.spec.app}`" if known else "promote a release first",
        )
    live = state.releases[chain[-1].new]
    if leaving is not None and find_release(state, leaving) is not live:
        raise Refused(
            f"{live.name} is live since switch {chain[-1].number}, not {leaving}: someone has switched already",
            fix=f"`switchyard log {app}` says who; to leave {live.name}, name it",
        )
    standby = before_live(state, app)
    if standby is None:
        raise Refused(
            f"{live.name} is the first live release of {app}: there is nothing to go back to",
            fix="stage and promote another version",
        )
    if standby.state != "standby":
        raise Refused(
            f"{standby.name} is {standby.state}, not a standby",
            fix=f"`switchyard start {standby.name} --execute` and wait until it has caught up"
            if standby.state == "failed"
            else "stage that version's code again and reprocess",
        )
    for release in (live, standby):
        refuse_blocked(state, release.name)
    refuse_unfinished(state, live)
    beats = context.beats()
    _require_running(context, standby, beats)
    number = len(chain) + 1
    dead = fence or _is_dead(context, live, beats.get(live.name))
    evidence = evidence_for(state, standby, live, apart=True)
    lacking = _no_delta(context, standby, live, evidence)
    if lacking is not None:
        if not dead:
            raise Refused(lacking, fix=f"`switchyard diff {live.name}` first")
        evidence = None
    known_as = new_id("rollback")
    delta: WriteDelta | None = None
    backlog: Backlog | None = None
    warnings: tuple[str, ...] = ()
    # where none serves, one is made on the way
    compared = known_as if lacking is not None else evidence.id if evidence else None
    if standby.spec.table and compared is not None:
        backlog = backlog_of(context, evidence) if evidence is not None else None
        delta = WriteDelta(evidence=compared, old=live.name, new=standby.name, max_changed=None)
    if dead:
        choose = ChooseStart(release=standby.name, other=live.name, allowed=_how(standby, allowed))
        stages: tuple[Stage, ...] = (Fence(release=live.name), choose)
        warnings = _without_meeting(context, live, standby, allowed)
        if lacking is not None:
            stages += (Compare(live=live.name, new=standby.name, tolerance=0.0, samples=10),)
            warnings += (f"{lacking}: the whole of both results is compared on the way, which takes a minute or more",)
    else:
        _require_near(context, standby, beats)
        stages = _meeting(context, standby, live, switch=number, alias=app)
        # nobody waits at a barrier of a dead one
        stages = (*ahead(backlog, delta), *stages)
    stages += (
        *([delta] if delta is not None else []),
        AppendSwitch(alias=app, number=number, old=live.name, new=standby.name,
                     evidence=compared, allowed=allowed),
    )  # fmt: skip
    return Plan(
        id=known_as,
        operation=Kind.ROLLBACK,
        releases=(standby.name, live.name),
        alias=app,
        stages=stages,
        reason=reason,
        facts=_switch_facts(live, replace(standby, verdict=None), number, evidence, backlog),
        warnings=warnings,
        undo=f"switchyard promote {live.name} --execute, or rollback again, while it runs on as standby",
        deadline_s=_deadline_s(context, backlog) + (_COMPARE_TIMEOUT_S if lacking is not None else 0.0),
    )


def _no_delta(context: Context, standby: Release, live: Release, evidence: EvidenceRecorded | None) -> str | None:
    """Why there is no delta between two tables that could be brought up to date; None where there is, or needs to be none."""
    if not standby.spec.table:
        return None
    if evidence is None:
        return f"{standby.name} and {live.name} were never compared, as they are now"
    return too_old(evidence, now_ms(), kept_ms=upkeep_of(context.settings, evidence).at_ms)


def _is_dead(context: Context, live: Release, beat: Heartbeat | None) -> bool:
    """Whether the live release can't take part in a switch: nobody runs it, or its driver hasn't been heard of."""
    if held_by(live, beat, context.settings, at_ms=now_ms()) is None:
        return True
    age_s = (now_ms() - beat.at_ms) / 1000 if beat else context.settings.lease_timeout_s
    return age_s >= context.settings.lease_timeout_s


def _how(
    standby: Release, allowed: Literal["gap", "duplicates"] | None
) -> Literal["gap", "duplicates", "either"] | None:
    """A table's delta corrects whatever lies between."""
    return allowed or ("either" if standby.spec.table else None)


def _without_meeting(
    context: Context, live: Release, standby: Release, allowed: Literal["gap", "duplicates"] | None
) -> tuple[str, ...]:
    last = progress_of(context, live)
    if last is None:
        raise Refused(f"{live.name} is dead and has committed nothing", fix="promote another release")
    end = last.boundary.position
    history = of_generation(progress_history(context.settings, standby.name), standby.generation)
    found = choose_start(history, end, _how(standby, allowed)).boundary.position
    if found.same(end):
        what = "the standby has a boundary at exactly its end: nothing is missing or double"
    elif standby.spec.table:
        what = "the table is exact by the delta; the standby brings it up to date from its own position"
    elif allowed == "gap":
        what = f"results of {found.records_since(end):,} input records will be missing"
    else:
        what = f"results of {end.records_since(found):,} input records will come twice"
    return (f"{live.name} is dead or stuck and is fenced: {what}",)


def plan_abort(context: Context, app: str, *, reason: str | None = None) -> Plan:
    """Ends the switch of `app` that is under way; followers that wait at its barrier go on with the old result."""
    state = journal.standing(context.registry)
    under_way = [o for o in state.operations.values() if o.opened.alias == app and not o.resolved]
    if not state.of_app(app):
        known = sorted({r.spec.app for r in state.releases.values()})
        raise BadUsage(f"there is no app {app}", fix=f"there are: {', '.join(known) or 'none'}")
    if not under_way:
        raise Refused(f"no switch of {app} is under way", fix="`switchyard log` says how the last one ended")
    operation = under_way[-1]
    return Plan(
        id=new_id("abort"),
        operation=Kind.ABORT,
        releases=operation.opened.releases,
        alias=app,
        stages=(AbortSwitch(alias=app, operation=operation.id),),
        reason=reason,
        facts={"switch": operation.id, "begun by": operation.opened.actor},
    )
