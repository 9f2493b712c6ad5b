"""Finds the release that is meant and the one that is live, and knows the states of a release. Reads only; no effects."""

from __future__ import annotations

from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import Entry, ReleaseState, StateSet, Wanted, WantedSet
from pipelines.model.names import dead_letter_topic, progress_topic, release_name, split_release
from pipelines.model.registry import Operation, RegistryState, Release
from pipelines.model.unread import refuse_unread


def find_release(state: RegistryState, name: str) -> Release:
    """The release of that name. For an app's name: its only release that is not retired.

    Raises BadUsage if the name fits no release, or several.
    """
    if name in state.releases:
        return state.releases[name]
    if split_release(name) is not None:
        raise BadUsage(
            f"there is no release {name}",
            fix=f"the releases are: {', '.join(sorted(state.releases)) or 'none; `switchyard stage APP [--from FOLDER] --execute` makes one'}",
        )
    releases = [r for r in state.of_app(name) if r.state != "retired"]
    if len(releases) == 1:
        return releases[0]
    if not releases:
        if over := [f"{r.name} is {r.state}" for r in state.of_app(name)]:
            raise BadUsage(
                f"no release of {name} is in use: {', '.join(over)}",
                fix=f"`switchyard stage {name} [--from FOLDER] --execute` makes a new version",
            )
        apps = sorted({r.spec.app for r in state.releases.values()})
        raise BadUsage(
            f"{name} has no release",
            fix=f"the apps with a release are: {', '.join(apps) or 'none'}; `switchyard stage {name} [--from FOLDER] --execute` makes one",
        )
    raise BadUsage(
        f"{name} has {len(releases)} releases: {', '.join(r.name for r in releases)}",
        fix=f"name one of them, for example {releases[-1].name}",
    )


def unknown_app(state: RegistryState, app: str) -> BadUsage:
    """The error for an app without a release. It names the apps that have one."""
    known = ", ".join(sorted({r.spec.app for r in state.releases.values()}))
    return BadUsage(
        f"{app} has no release",
        fix=f"the apps with a release are: {known or 'none; `switchyard stage APP [--from FOLDER] --execute` makes one'}",
    )


def version_of(state: RegistryState, app: str, version: int | None) -> Release:
    """Release `version` of an app; None: the newest that is neither live, standby nor retired."""
    if version is not None:
        return find_release(state, release_name(app, version))
    if not state.of_app(app):
        # raises, and says which there are
        return find_release(state, app)
    free = [r for r in state.of_app(app) if r.state in ("staged", "hydrating", "ready", "failed")]
    if not free:
        standby = [r.name for r in state.of_app(app) if r.state == "standby"]
        in_use = any(r.state != "retired" for r in state.of_app(app))
        fix = (
            another_version(app)
            if in_use
            else f"`switchyard stage {app} [--from FOLDER] --execute` makes a new version"
        )
        raise BadUsage(
            f"{app} has no candidate to promote", fix=fix + (f"; or name the standby, {standby[-1]}" if standby else "")
        )
    return free[-1]


def another_version(app: str) -> str:
    """What to do where an app needs another version. Its unchanged code would be refused."""
    return f"change the app, then `switchyard reprocess {app} [--from FOLDER] --execute` stages it as the next version and compares it; for unchanged code, add --correction REASON"


def after_failure(release: Release) -> str:
    """What to do about a release that has failed."""
    return (
        f"`switchyard bisect {release.name}` tells whether a record makes a batch fail, and which one: skip it, or fix the "
        f"app and `switchyard reprocess {release.spec.app} [--from FOLDER] --execute`. If no record does, "
        f"`switchyard start {release.name} --execute` starts it again"
    )


def comes_back(release: Release, supervised: bool) -> str:
    """How a release that should run gets a driver. `supervised`: whether a supervisor runs on this host."""
    start = f"`switchyard start {release.name} --execute`"
    if supervised:
        return f"a supervisor of this host starts one; if it doesn't, {start} says why"
    return f"{start} starts one; `switchyard supervise` does so by itself"


def live_release(state: RegistryState, app: str) -> Release | None:
    """The release that the app's alias names; None before the first promotion."""
    switch = state.live(app)
    return state.releases[switch.new] if switch else None


def refuse_blocked(state: RegistryState, release: str, *, but: str | None = None) -> None:
    """Raises Refused while an operation other than `but` is under way on `release`, and if the registry has an entry
    about it that this version must understand but can't read.
    """
    refuse_unread(state.not_understood(release), release)
    other = state.blocking(release)
    if other is not None and other.id != but:
        raise Refused(
            f"{other.id}, which {other.opened.actor} started, is under way on {release}",
            fix=f"wait for it; if nobody carries it out, `switchyard resume {other.id}` or `switchyard abandon {other.id}`",
        )


def before_live(state: RegistryState, app: str) -> Release | None:
    """The release that was live before the current one: a rollback goes back to it. None: there was none."""
    chain = state.chains.get(app, ())
    back = next((s.old for s in reversed(chain) if s.old not in (None, chain[-1].new)), None)
    return state.releases[back] if back is not None else None


def switches_under_way(state: RegistryState, app: str) -> list[Operation]:
    """The operations that are about to move the consumers of `app`, the oldest first."""
    return [o for o in state.operations.values() if o.opened.alias == app and not o.resolved]


def wanting(state: RegistryState, release: Release, wanted: Wanted) -> list[Entry]:
    """The entries that make a release wanted `running` or `stopped`; empty if it already is."""
    entries: list[Entry] = []
    if release.wanted != wanted:
        entries.append(WantedSet(release=release.name, wanted=wanted))
    if wanted == "running" and release.state in ("staged", "failed"):
        entries.append(StateSet(release=release.name, state=starting_state(state, release)))
    return entries


def starting_state(state: RegistryState, release: Release) -> ReleaseState:
    """The state that a release starts in: live or standby if consumers have followed it, otherwise hydrating."""
    chain = state.chains.get(release.spec.app, ())
    if chain and chain[-1].new == release.name:
        return "live"
    return "standby" if any(release.name in (s.old, s.new) for s in chain) else "hydrating"


def left_by_consumers(release: Release) -> list[Entry]:
    """A release that consumers leave becomes the standby. A failed one stays failed until it is started again."""
    return [] if release.state == "failed" else [StateSet(release=release.name, state="standby")]


def owned_topics(state: RegistryState, name: str) -> list[str]:
    """The topics that release `name` owns, as the registry records them: results of all generations, progress, dead
    letters.
    """
    release = state.releases[name]
    return [*release.all_results, progress_topic(name), dead_letter_topic(name)]
