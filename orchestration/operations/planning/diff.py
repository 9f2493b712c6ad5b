"""Plans to compare a release with the live one at one boundary."""

from __future__ import annotations

from orchestration.operations.comparing.evidence import are_compared
from orchestration.operations.lifecycle import another_version, before_live, find_release, live_release, refuse_blocked
from orchestration.operations.looking.history import history_of
from orchestration.operations.looking.in_use import refuse_unfinished
from orchestration.operations.planning.kinds import other_input, refuse_other_results
from orchestration.operations.planning.meeting import COMPARE_TIMEOUT_S, meeting_stages, require_near, require_running
from orchestration.operations.planning.tables import table_changes, table_facts
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.plans.stages.switching import Compare
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.registry import RegistryState, Release


def plan_diff(
    context: Reading, name: str, *, tolerance: float = 0.0, samples: int = 10, accept_missing: bool = False
) -> Plan:
    """Plans to compare a release with the live one at exactly the same boundary.

    `tolerance`: relative, for floating-point columns. `samples`: how many differing keys to keep. `accept_missing`: the
    release may lack input that the live release has read; otherwise MissingHistory is raised.
    """
    state = context.state_for_planning()
    new = find_release(state, name)
    live = _other(state, new)
    for release in (new, live):
        refuse_unfinished(state, release)
    if new.spec.topics != live.spec.topics:
        raise Refused(
            f"{other_input(live.spec, new.spec)}: they have no input position in common at which to compare",
            fix=f"`switchyard promote {new.name} --execute` compares their tables as they are",
        )
    if not are_compared(new, live):
        raise Refused(
            f"{new.spec.app} declares that two of its runs can't be compared",
            fix=f"check it instead: `switchyard check {new.name}`",
        )
    refuse_other_results(live.spec, new.spec)
    history = history_of(context, state, new, live)
    history.require(accept=accept_missing)
    beats = context.beats()
    for release in (new, live):
        refuse_blocked(state, release.name)
        require_running(context, release, beats)
    require_near(context, new, beats)
    return Plan(
        id=new_id("diff"),
        operation=Kind.DIFF,
        releases=(new.name, live.name),
        stages=(
            *history.stages,
            *meeting_stages(context, new, live, switch=None, alias=None),
            Compare(live=live.name, new=new.name, tolerance=tolerance, samples=samples),
        ),
        facts={"compares": f"{new.name} with {live.name}", **table_facts(new.spec, live.spec), **history.facts},
        warnings=table_changes(live.spec, new.spec),
        deadline_s=COMPARE_TIMEOUT_S,
    )


def _other(state: RegistryState, release: Release) -> Release:
    live = live_release(state, release.spec.app)
    if live is release:
        # the live release is compared with the one that a rollback goes to
        back = before_live(state, release.spec.app)
        if back is not None and back.state == "standby":
            return back
        raise Refused(
            f"{release.name} is live and has no standby to compare with",
            fix=another_version(release.spec.app),
        )
    if live is None:
        raise Refused(
            f"no release of {release.spec.app} is live to compare with",
            fix=f"`switchyard promote {release.name} --execute` makes it live without a diff",
        )
    return live
