"""Plans a rollback: decides how consumers go back to the release that was live before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, NoReturn

from orchestration.operations.comparing.backlog import Backlog, backlog_of
from orchestration.operations.comparing.evidence import evidence_for
from orchestration.operations.comparing.upkeep import too_old, upkeep_of
from orchestration.operations.lifecycle import (
    another_version,
    before_live,
    find_release,
    refuse_blocked,
    switches_under_way,
    unknown_app,
)
from orchestration.operations.looking.in_use import refuse_unfinished
from orchestration.operations.looking.progress import last_known
from orchestration.operations.planning.meeting import (
    COMPARE_TIMEOUT_S,
    meeting_stages,
    refuse_unknown_end,
    require_near,
    require_running,
    stages_ahead,
    stages_apart,
)
from orchestration.operations.planning.moving import deadline_of, switch_facts
from orchestration.operations.planning.stage import input_warnings
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.switching import AppendSwitch, ChooseStart, Compare, Fence, WriteDelta
from orchestration.operations.reading import Reading
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.progress import progress_history
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import RegistryState, Release
from pipelines.model.switch import choose_start, of_generation


def plan_rollback(
    context: Reading,
    app: str,
    *,
    allowed: Literal["gap", "duplicates"] | None = None,
    fence: bool = False,
    leaving: str | None = None,
    reason: str | None = None,
) -> Plan:
    """Plans to move the consumers of `app` back to the release that was live before, which still runs as standby.

    `leaving`: the release that consumers leave. Refused if another one is live now, because a rollback from that one
    might lead back to `leaving` itself. If the live release is dead or stuck, there is no common boundary: a table is
    still exact, because of the delta; if a result is a stream, `allowed` says what consumers may see. `fence`: treat
    the live release as stuck although its driver sends heartbeats, for example when its batch does not end. Its driver
    is fenced.

    Raises BadUsage for an unknown app, Refused if there is no live release, no usable standby or no current diff.
    """
    state = context.state_for_planning()
    live, standby = _sides(state, app, leaving)
    beats = context.beats()
    require_running(context, standby, beats)
    apart = live.spec.topics != standby.spec.topics
    dead = fence or apart or _is_dead(context, live, beats)
    if dead:
        refuse_unknown_end(context, live)
    evidence = evidence_for(state, standby, live, apart=True)
    lacking = _no_delta(context, standby, live, evidence)
    if lacking is not None and not dead:
        raise Refused(lacking, fix=f"run `switchyard diff {live.name}` first")
    known_as, number = new_id("rollback"), len(state.chains[app]) + 1
    # without usable evidence, the plan makes its own
    evidence, compared = (evidence, evidence.id if evidence else None) if lacking is None else (None, known_as)
    backlog, delta = _since(context, live, standby, evidence, compared)
    warnings: tuple[str, ...] = ()
    if dead:
        # a dead release has no barrier to meet at
        warnings = _warnings_without_meeting(context, live, standby, allowed) if not apart else ()
        meeting = _stages_without_meeting(live, standby, allowed, compare=lacking is not None)
    else:
        require_near(context, standby, beats)
        meeting = (*stages_ahead(backlog, delta), *meeting_stages(context, standby, live, switch=number, alias=app))
    warnings += input_warnings(live, standby.spec)
    if lacking is not None:
        warnings += (f"{lacking}; so both results are compared as a whole first, which takes a minute or more",)
    switch = AppendSwitch(alias=app, number=number, old=live.name, new=standby.name, evidence=compared, allowed=allowed)
    return Plan(
        id=known_as,
        operation=Kind.ROLLBACK,
        releases=(standby.name, live.name),
        alias=app,
        stages=(*meeting, *([delta] if delta is not None else []), switch),
        reason=reason,
        facts=switch_facts(live, replace(standby, verdict=None), number, evidence, backlog),
        warnings=warnings,
        undo=f"switchyard rollback {app} --execute, while {live.name} still runs as standby",
        deadline_s=deadline_of(context, backlog) + (COMPARE_TIMEOUT_S if lacking is not None else 0.0),
    )


def _sides(state: RegistryState, app: str, leaving: str | None) -> tuple[Release, Release]:
    """The live release of `app`, and the standby that its consumers go back to. Raises as `plan_rollback` does."""
    chain = state.chains.get(app, ())
    if not chain:
        _refuse_not_live(state, app)
    live = state.releases[chain[-1].new]
    if leaving is not None and find_release(state, leaving) is not live:
        raise Refused(
            f"{live.name} has been live since switch {chain[-1].number}, not {leaving}: someone has already switched",
            fix=f"`switchyard log {app}` shows who; to leave {live.name}, give --leaving {live.name}",
        )
    standby = before_live(state, app)
    if standby is None:
        raise Refused(
            f"{live.name} is the first live release of {app}, so there is nothing to go back to",
            fix=another_version(app),
        )
    if standby.state != "standby":
        raise Refused(
            f"{standby.name} is {standby.state}, not a standby",
            fix=f"`switchyard start {standby.name} --execute`, then `switchyard wait {standby.name}`"
            if standby.state == "failed"
            else f"release that code again: `switchyard reprocess {app} --from FOLDER`",
        )
    for release in (live, standby):
        refuse_blocked(state, release.name)
    refuse_unfinished(state, live)
    return live, standby


def _refuse_not_live(state: RegistryState, app: str) -> NoReturn:
    """Raises Refused if no release of the app was ever live, BadUsage if the app is unknown."""
    if app in state.releases:
        raise BadUsage(
            f"{app} is a release, not an app", fix=f"name the app: `switchyard rollback {state.releases[app].spec.app}`"
        )
    if not state.of_app(app):
        raise unknown_app(state, app)
    if switches_under_way(state, app):
        raise Refused(
            f"the first switch of {app} is under way, so there is nothing to go back to",
            fix=f"`switchyard abort {app} --execute` ends that switch",
        )
    raise Refused(
        f"no release of {app} has been live yet, so there is nothing to go back to",
        fix=f"`switchyard promote {app} --execute` makes one live",
    )


def _since(
    context: Reading, live: Release, standby: Release, evidence: EvidenceRecorded | None, compared: str | None
) -> tuple[Backlog | None, WriteDelta | None]:
    """What two tables have written since their evidence, and the stage that writes their delta. Nothing for streams.

    `compared`: the id of the evidence, which the plan itself may make.
    """
    if not standby.spec.tables or compared is None:
        return None, None
    backlog = backlog_of(context, evidence) if evidence is not None else None
    return backlog, WriteDelta(evidence=compared, old=live.name, new=standby.name, max_changed=None)


def _stages_without_meeting(
    live: Release, standby: Release, allowed: Literal["gap", "duplicates"] | None, *, compare: bool
) -> tuple[Stage, ...]:
    """The stages that move consumers to the standby when the live release is dead or stuck."""
    if live.spec.topics != standby.spec.topics:
        return stages_apart(live, standby, compare=compare)
    choose = ChooseStart(release=standby.name, other=live.name, allowed=_accepted(standby, allowed))
    whole = (Compare(live=live.name, new=standby.name, tolerance=0.0, samples=10),) if compare else ()
    return (Fence(release=live.name), choose, *whole)


def _no_delta(context: Reading, standby: Release, live: Release, evidence: EvidenceRecorded | None) -> str | None:
    """Why there is no delta between two tables that can be brought up to date. None: there is one, or none is needed."""
    if not standby.spec.tables:
        return None
    if evidence is None:
        return f"{standby.name} and {live.name} were never compared in their current generations"
    return too_old(evidence, context.now_ms(), kept_ms=upkeep_of(context.settings, evidence).at_ms)


def _is_dead(context: Reading, live: Release, beats: Mapping[str, Heartbeat]) -> bool:
    """Whether the live release can't take part in a switch: it has no driver, or its driver sends no heartbeats."""
    if context.holder_by(live, beats) is None:
        return True
    beat = beats.get(live.name)
    age_s = (context.now_ms() - beat.at_ms) / 1000 if beat else context.settings.lease_timeout_s
    return age_s >= context.settings.lease_timeout_s


def _accepted(
    standby: Release, allowed: Literal["gap", "duplicates"] | None
) -> Literal["gap", "duplicates", "either"] | None:
    """What consumers may see. If all results are tables, a gap and duplicates are both fine, because the delta corrects
    them.
    """
    return allowed or ("either" if not standby.spec.streams else None)


def _warnings_without_meeting(
    context: Reading, live: Release, standby: Release, allowed: Literal["gap", "duplicates"] | None
) -> tuple[str, ...]:
    last = last_known(context, live)
    if last is None:
        raise Refused(
            f"{live.name} is dead and has committed nothing",
            fix=f"`switchyard start {live.name} --execute`, then `switchyard wait {live.name}`",
        )
    end = last.boundary.position
    history = of_generation(progress_history(context.settings, standby.name), standby.generation)
    found = choose_start(history, end, _accepted(standby, allowed)).boundary.position
    if found.same(end):
        what = (
            "the standby has a boundary exactly where the other ended, so consumers miss nothing and get nothing twice"
        )
    elif not standby.spec.streams:
        what = "the delta makes the table exact; the standby then brings it up to date from its own position"
    elif allowed == "gap":
        what = f"consumers will miss the results of {found.records_since(end):,} input records"
    else:
        what = f"consumers will get the results of {end.records_since(found):,} input records twice"
    return (f"{live.name} is dead or stuck, so this plan fences it; {what}",)
