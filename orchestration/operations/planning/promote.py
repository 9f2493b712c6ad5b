"""Plans a promotion: decides whether consumers may move to another release."""

from __future__ import annotations

from orchestration.operations.comparing.backlog import Backlog, backlog_of
from orchestration.operations.comparing.evidence import Comparison, are_compared, evidence_for
from orchestration.operations.comparing.upkeep import upkeep_of
from orchestration.operations.lifecycle import after_failure, live_release, refuse_blocked, version_of
from orchestration.operations.looking.history import history_of
from orchestration.operations.looking.in_use import readers_of, refuse_unfinished
from orchestration.operations.planning.changes import changes
from orchestration.operations.planning.kinds import refuse_other_encoding, refuse_other_input
from orchestration.operations.planning.meeting import (
    COMPARE_TIMEOUT_S,
    meeting_stages,
    refuse_unknown_end,
    stages_ahead,
    stages_apart,
)
from orchestration.operations.planning.moving import deadline_of, switch_facts
from orchestration.operations.planning.readiness import MAX_EVIDENCE_AGE_S, not_checked, not_compared, not_ready
from orchestration.operations.planning.stage import incomparable, input_warnings, unchecked
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, join, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.switching import AppendSwitch, VerifyStream, WriteDelta
from orchestration.operations.reading import Reading
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.topics import COMPACTION_LAG_MS, DAY_MS
from pipelines.model.entries import EvidenceRecorded, ReleaseSpec
from pipelines.model.registry import RegistryState, Release


def plan_promote(
    context: Reading,
    app: str,
    *,
    version: int | None = None,
    max_evidence_age_s: float = MAX_EVIDENCE_AGE_S,
    max_changed: float | None = None,
    reason: str | None = None,
    renewed: bool = False,
    accept_missing: bool = False,
) -> Plan:
    """Plans to move the consumers of `app` to a release that is ready, checked, and compared with the live one.

    `max_evidence_age_s`: refuse an older diff. `max_changed`: refuse if a larger share of the keys differs; None: only
    report it. `renewed`: the evidence will be renewed before the plan is carried out, so its age does not count.
    `accept_missing`: the release may lack input that the live release has read. Raises Refused that lists every unmet
    condition, MissingHistory, and BadUsage for an unknown app or version.
    """
    state = context.state_for_planning()
    new = _release_to_promote(state, app, version)
    alias, live = new.spec.app, live_release(state, new.spec.app)
    if live is new:
        raise Refused(f"{new.name} is already live", fix=f"nothing is left to do; see `switchyard status {new.name}`")
    refuse_blocked(state, new.name)
    history = history_of(context, state, new)
    history.require(accept=accept_missing)
    number = len(state.chains.get(alias, ())) + 1
    evidence = evidence_for(state, new, live) if live else None
    beats, now_ms = context.beats(), context.now_ms()
    lacking = not_ready(context, new, beats) + not_checked(new, evidence, live, max_evidence_age_s, now_ms=now_ms)
    stopped, apart = False, live is not None and live.spec.topics != new.spec.topics
    if live is not None:
        refuse_blocked(state, live.name)
        refuse_unfinished(state, live)
        kept_ms = upkeep_of(context.settings, evidence).at_ms if evidence is not None else None
        lacking += not_compared(new, live, evidence, max_evidence_age_s, max_changed,
                                now_ms=now_ms, renewed=renewed, kept_ms=kept_ms)  # fmt: skip
        # without a position in common they don't meet, and the switch fences the live release
        if stopped := not apart and context.holder_by(live, beats) is None:
            lacking.append(f"the live release {live.name} isn't running (`switchyard start {live.name} --execute`)")
    if lacking:
        fix = _way_there(new, live if stopped else None, evidence, max_changed, unmet=len(lacking))
        raise Refused(f"{new.name} can't be promoted: " + "; ".join(lacking), fix=fix)
    compared = evidence is not None and live is not None and are_compared(new, live)
    backlog = backlog_of(context, evidence) if compared and evidence is not None else None
    plan_id = new_id("promote")
    append = AppendSwitch(alias=alias, number=number, old=live.name if live else None, new=new.name,
                          evidence=plan_id if apart else evidence.id if evidence else None)  # fmt: skip
    return Plan(
        id=plan_id,
        operation=Kind.PROMOTE,
        releases=(new.name, live.name) if live else (new.name,),
        alias=alias,
        stages=(*history.stages, *_stages_before_switch(context, new, live, append, backlog, max_changed), append),
        reason=reason,
        facts={**switch_facts(live, new, number, evidence, backlog), **history.facts, **_readers(state, live)},
        warnings=_warnings(live, new.spec),
        undo=_way_back(alias, new, live) if live else "",
        deadline_s=deadline_of(context, backlog) + (COMPARE_TIMEOUT_S if apart else 0.0),
    )


def _warnings(live: Release | None, new: ReleaseSpec) -> tuple[str, ...]:
    return (
        *changes(live.spec if live is not None else None, new),
        *unchecked(new),
        *input_warnings(live, new),
        *incomparable(new),
    )


def _release_to_promote(state: RegistryState, app: str, version: int | None) -> Release:
    """The release to promote. Raises BadUsage for an unknown one, and if `app` names another version than `version`; Refused
    for one that has failed.
    """
    new = state.releases[app] if app in state.releases else version_of(state, app, version)
    if version not in (None, new.spec.version):
        raise BadUsage(f"{app} is version {new.spec.version}, not {version}", fix="leave out --version")
    # what else it lacks follows from that
    if new.state == "failed" and live_release(state, new.spec.app) is not new:
        raise Refused(f"{new.name} can't be promoted: it failed: {new.failure}", fix=after_failure(new))
    return new


def _stages_before_switch(
    context: Reading,
    new: Release,
    live: Release | None,
    switch: AppendSwitch,
    backlog: Backlog | None,
    max_changed: float | None,
) -> tuple[Stage, ...]:
    """The stages before `switch`. `backlog`: what both wrote since the evidence; None if they are not compared."""
    if live is None:
        return ()
    # the version of Switchyard that staged it may have let it pass
    refuse_other_encoding(live.spec, new.spec, is_live=True)
    if live.spec.topics != new.spec.topics:
        refuse_other_input(live.spec, new.spec)
        refuse_unknown_end(context, live)
        delta = WriteDelta(evidence=switch.evidence or "", old=live.name, new=new.name, max_changed=max_changed)
        return (*stages_apart(live, new, compare=True), delta)
    meet = meeting_stages(context, new, live, switch=switch.number, alias=switch.alias)
    if backlog is None or switch.evidence is None:
        return meet
    since: list[WriteDelta | VerifyStream] = []
    for kind, results in ((WriteDelta, new.spec.tables), (VerifyStream, new.spec.streams)):
        if results:
            since.append(kind(evidence=switch.evidence, old=live.name, new=new.name, max_changed=max_changed))
    return (*stages_ahead(backlog, since[0]), *meet, *since)


def _readers(state: RegistryState, live: Release | None) -> dict[str, str]:
    """A fact about releases that read the results of the live release: they stay with it."""
    if live is None:
        return {}
    names = {r.name: None for topic in live.result_topics.values() for r in readers_of(state, topic)}
    return {"read by": f"{join(list(names))}: they keep reading {live.name}"} if names else {}


def _way_there(
    new: Release, stopped: Release | None, evidence: EvidenceRecorded | None, max_changed: float | None, *, unmet: int
) -> str:
    """What to do, in order, about a release that can't be promoted yet. `stopped`: the live release, if it isn't
    running. `unmet`: how many conditions are not met.
    """
    app, verdict = new.spec.app, new.verdict
    if new.state == "retired":
        return f"`switchyard stage {app} [--from FOLDER] --execute` makes a new version"
    start = f"`switchyard start {stopped.name} --execute`, then " if stopped is not None else ""
    if verdict is not None and verdict.generation == new.generation and (verdict.failed or verdict.errored):
        return f"{start}fix the app, then `switchyard reprocess {app} [--from FOLDER] --execute` releases it as the next version"
    differs = evidence is not None and max_changed is not None and Comparison.of(evidence).ratio > max_changed
    steps = []
    if unmet > differs + (stopped is not None):
        steps.append(
            f"`switchyard reprocess {app} --version {new.spec.version} --execute` does what is missing: it waits, compares and checks"
        )
    if differs:
        steps.append(f"look at the differences with `switchyard diff {new.name}`; to allow them, raise --max-changed")
    return start + ("; then ".join(steps) or "promote again")


def _way_back(alias: str, new: Release, live: Release) -> str:
    command = f"switchyard rollback {alias} --leaving {new.name} --execute"
    if not new.spec.tables:
        return f"{command}; it takes seconds while {live.name} runs as standby"
    days = COMPACTION_LAG_MS // DAY_MS
    return (
        f"{command}, while {live.name} runs as standby; it takes seconds, and longer if both have written much since "
        f"the last diff or `switchyard refresh {alias}`; after {days} days without either, run `switchyard diff {new.name}` first"
    )
