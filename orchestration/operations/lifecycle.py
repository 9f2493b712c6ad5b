"""Which release is meant, which is live, and the states that a release goes through: read from the registry, no effects."""

from __future__ import annotations

from pipelines.errors import BadUsage, Refused
from pipelines.model.names import progress_topic, release_name, split_release
from pipelines.model.registry import Entry, RegistryState, Release, ReleaseState, StateSet, Wanted, WantedSet
from pipelines.model.unread import refuse_unread


def find_release(state: RegistryState, name: str) -> Release:
    """The release of that name; for an app's name its only release that is not retired or aborted.

    Raises BadUsage if the name means none or several.
    """
    if name in state.releases:
        return state.releases[name]
    if split_release(name) is not None:
        raise BadUsage(f"there is no release {name}", fix=f"there are: {', '.join(sorted(state.releases)) or 'none'}")
    releases = [r for r in state.of_app(name) if r.state not in ("retired", "aborted")]
    if len(releases) == 1:
        return releases[0]
    if not releases:
        apps = sorted({r.spec.app for r in state.releases.values()})
        raise BadUsage(
            f"there is no release of an app {name}", fix=f"there are apps: {', '.join(apps) or 'none'}; stage one"
        )
    raise BadUsage(
        f"{name} has {len(releases)} releases: {', '.join(r.name for r in releases)}",
        fix=f"say which, as in {releases[-1].name}",
    )


def version_of(state: RegistryState, app: str, version: int | None) -> Release:
    """Release `version` of an app; None: the newest that is neither live, standby, retired nor aborted."""
    if version is not None:
        return find_release(state, release_name(app, version))
    free = [r for r in state.of_app(app) if r.state in ("staged", "hydrating", "ready", "failed")]
    if not free:
        standby = [r.name for r in state.of_app(app) if r.state == "standby"]
        fix = f"`switchyard stage {app}` one" + (f", or name the standby: {standby[-1]}" if standby else "")
        raise BadUsage(f"{app} has no release that waits to be live", fix=fix)
    return free[-1]


def live_release(state: RegistryState, app: str) -> Release | None:
    """The release that the app's alias names; None before the first promotion."""
    switch = state.live(app)
    return state.releases[switch.new] if switch else None


def refuse_blocked(state: RegistryState, release: str, *, but: str | None = None) -> None:
    """Raises Refused while another operation than `but` is under way on `release`, or the registry says something of it that
    this version can't read and must understand.
    """
    refuse_unread(state.not_understood(release), release)
    other = state.blocking(release)
    if other is not None and other.id != but:
        raise Refused(
            f"{other.opened.name} {other.id} of {other.opened.actor} is under way on {release}",
            fix=f"wait for it, or `switchyard resume {other.id}` or `switchyard abandon {other.id}`",
        )


def before_live(state: RegistryState, app: str) -> Release | None:
    """The release that was live before the one that is: a rollback goes to it. None: there was none."""
    chain = state.chains.get(app, ())
    back = next((s.old for s in reversed(chain) if s.old not in (None, chain[-1].new)), None)
    return state.releases[back] if back is not None else None


def wanting(state: RegistryState, release: Release, wanted: Wanted) -> list[Entry]:
    """What has to be written for a release to be wanted so; nothing: it is already."""
    entries: list[Entry] = []
    if release.wanted != wanted:
        entries.append(WantedSet(release=release.name, wanted=wanted))
    if wanted == "running" and release.state in ("staged", "failed"):
        entries.append(StateSet(release=release.name, state=starting_state(state, release)))
    return entries


def starting_state(state: RegistryState, release: Release) -> ReleaseState:
    """The state that a release starts with: one that consumers have followed is what it was before it failed."""
    chain = state.chains.get(release.spec.app, ())
    if chain and chain[-1].new == release.name:
        return "live"
    return "standby" if any(release.name in (s.old, s.new) for s in chain) else "hydrating"


def left_by_consumers(release: Release) -> list[Entry]:
    """A release that consumers leave is the standby; one that failed says why until it is started again, as the standby."""
    return [] if release.state == "failed" else [StateSet(release=release.name, state="standby")]


def owned_topics(state: RegistryState, name: str) -> list[str]:
    """The topics that release `name` owns by the registry's record: results of all its generations, progress, dead letters."""
    from pipelines.model.names import dead_letter_topic

    release = state.releases[name]
    results = sorted({release.topic_of(generation) for generation in release.generations})
    return [*results, progress_topic(name), dead_letter_topic(name)]
