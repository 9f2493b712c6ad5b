"""Plans to delete expired archives of resets: results that nobody reads any more, and states that no undo
needs.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestration.operations.lifecycle import find_release, refuse_blocked
from orchestration.operations.looking.archives import Archive, archives_of
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, join, new_id
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import DeleteCheckpoint
from orchestration.operations.plans.stages.releases import DeleteTopic
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.registry import RegistryState, Release


def plan_clean(
    context: Reading,
    name: str,
    *,
    after_s: float | None = None,
    reason: str | None = None,
    clock_ms: Callable[[], int] | None = None,
) -> Plan:
    """Plans to delete a release's archives that are at least `after_s` seconds old (None: the setting). No undo.

    Raises Refused if no archive is that old, or if every archive that is old enough still has readers.
    """
    state = context.state_for_planning()
    release = find_release(state, name)
    refuse_blocked(state, release.name)
    keep_s = context.settings.archive_keep_s if after_s is None else after_s
    archives = archives_of(context, state, release)
    now_ms = (clock_ms or context.now_ms)()
    over = [a for a in archives if now_ms - a.ended_ms >= keep_s * 1000]
    stages: list[Stage] = []
    for archive in over:
        if not archive.kept_for:
            stages += [DeleteTopic(name=topic) for topic in archive.topics]
        if archive.has_state and not archive.kept_for:
            stages.append(DeleteCheckpoint(release=release.name, generation=archive.generation))
    held = {f"generation {a.generation} is still needed by {join(a.kept_for)}" for a in over if a.kept_for}
    if not stages:
        raise _nothing_to_delete(release, archives, sorted(held), keep_s)
    return Plan(
        id=new_id("clean"),
        operation=Kind.CLEAN,
        releases=(release.name,),
        stages=tuple(stages),
        reason=reason,
        facts={"archives": join([f"generation {a.generation}" for a in over if not a.kept_for])},
        warnings=(
            *sorted(held),
            "this can't be undone; after this, the resets that made these archives can't be undone either",
        ),
    )


def _nothing_to_delete(release: Release, archives: list[Archive], held: list[str], keep_s: float) -> Refused:
    """The error for a release without an archive to delete. `held`: which archives are needed, and by whom."""
    if held:
        why = "; ".join(held)
        fix = (
            "wait until they no longer need it; or `switchyard forget-follower "
            f"{release.spec.app} GROUP` for a follower that will not come back"
        )
    elif archives:
        why = f"all of its archives ({len(archives)}) are younger than {_in_words(keep_s)}"
        fix = f"wait; or `switchyard clean {release.name} --after 0s --execute` deletes them now: then their resets can't be undone"
    else:
        return Refused(
            f"{release.name} has no archives",
            fix=f"nothing is left to do; `switchyard log {release.name}` shows its resets",
        )
    return Refused(f"{release.name} has no archive to delete: {why}", fix=fix)


def _in_words(duration_s: float) -> str:
    days, rest = divmod(duration_s, 86_400)
    return f"{days:.0f} days" if days > 1 and not rest else f"{duration_s:,.0f} s"


def to_clean(context: Reading, state: RegistryState, clock_ms: Callable[[], int] | None = None) -> list[str]:
    """Releases with archives that have expired and that nobody needs."""
    keep_ms = context.settings.archive_keep_s * 1000
    now_ms = (clock_ms or context.now_ms)()
    return [
        release.name
        for release in state.releases.values()
        if release.state != "retired"
        and release.ended
        and state.blocking(release.name) is None
        and any(not a.kept_for and now_ms - a.ended_ms >= keep_ms for a in archives_of(context, state, release))
    ]
