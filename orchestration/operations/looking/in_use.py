"""Who still needs a release: asked when its end is planned, and again in the steps that end it."""

from __future__ import annotations

from orchestration.operations.lifecycle import live_release
from orchestration.operations.plans.plan import join
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.follow import committed_number
from pipelines.model.registry import GenerationStarted, RegistryState, Release
from pipelines.model.unread import not_read


def refuse_live(state: RegistryState, release: Release) -> None:
    """Raises Refused while consumers follow `release`."""
    live = live_release(state, release.spec.app)
    if live is not None and live.name == release.name:
        raise Refused(f"{release.name} is live", fix="promote or roll back to another release first")


def refuse_needed(context: Reading, state: RegistryState, release: Release) -> None:
    """Raises Refused while `release` is needed, naming by whom."""
    needed = needed_by(context, state, release)
    if needed:
        raise Refused(f"{release.name} is still needed by {join(needed)}",
                      fix="let followers pass, or remove one that is gone: `switchyard forget-follower`; retire a release that reads it first")  # fmt: skip


def needed_by(context: Reading, state: RegistryState, release: Release) -> list[str]:
    """Releases that read its result, and registered followers that have not passed the last switch that it has a part in."""
    topics = {release.topic_of(generation) for generation in release.generations}
    readers = [r.name for topic in sorted(topics) for r in readers_of(state, topic) if r.name != release.name]
    chain = state.chains.get(release.spec.app, ())
    parts = [s.number for s in chain if release.name in (s.old, s.new)]
    if not parts:
        return readers
    # a follower needs its result until it has passed the switch away from it
    passed = next((s.number for s in reversed(chain) if s.old == release.name), max(parts) + 1)
    return [*readers, *(f"follower {group}" for group in followers_before(context, state, release.spec.app, passed))]


def followers_before(context: Reading, state: RegistryState, alias: str, number: int) -> list[str]:
    """Groups of the registered followers of `alias` that have not passed switch `number`."""
    chain = state.chains.get(alias, ())
    return [
        group
        for group in state.followers.get(alias, ())
        if (committed_number(context.settings, group, alias, chain) or 0) < number
    ]


def readers_of(state: RegistryState, topic: str) -> list[Release]:
    """Releases, not retired, of which `topic` is an input; by name."""
    found = (r for r in state.releases.values() if r.state != "retired" and topic in r.spec.topics.values())
    return sorted(found, key=lambda r: r.name)


def outdated_inputs(state: RegistryState, release: Release) -> list[str]:
    """Of each input that is a result of another release which was reset since this one began: what became of it, and what to do."""
    found = []
    for topic in dict.fromkeys(release.spec.topics.values()):
        owner = next((r for r in state.releases.values() if any(r.topic_of(g) == topic for g in r.generations)), None)
        if owner is None or owner.under is None:
            continue
        if owner.result_topic != topic:
            found.append(
                f"{owner.name} writes {owner.result_topic} since {owner.under.op}, no longer {topic}: stage a version that reads it"
            )
            continue
        begun = {entry.op: entry for entry in (*owner.generations.values(), owner.under)}
        since = release.under.at_ms if release.under is not None else 0
        again = [e.op for e in begun.values() if e.at_ms > since and _came_again(owner, e, topic)]
        if again:
            found.append(
                f"{owner.name} wrote {topic} again since {again[-1]}: `switchyard reset {release.name} --to-earliest`"
            )
    return found


def _came_again(owner: Release, begun: GenerationStarted, topic: str) -> bool:
    """Whether a generation that goes on in its predecessor's topic writes anew what that had written."""
    if begun.ended is None or {owner.topic_of(begun.generation), owner.topic_of(begun.ended.generation)} != {topic}:
        return False
    return begun.cleared or not begun.start.dominates(begun.ended.boundary.position)


def left_behind(state: RegistryState, release: Release) -> str | None:
    """The operation that changed the live release's result and was left before its consumers went along; None: there is none."""
    newest = state.live(release.spec.app)
    if newest is None or newest.new != release.name or release.result_topic in newest.new_start.topics:
        return None
    return release.under.op if release.under else None


def refuse_unfinished(state: RegistryState, release: Release) -> None:
    """Raises Refused where consumers were left behind: they read a result that the release does not write any more, and
    has no boundary in common with another one's.
    """
    begun_by = left_behind(state, release)
    if begun_by is not None:
        raise Refused(
            f"consumers of {release.spec.app} have not gone along with {begun_by}", fix=_lead_on(state, begun_by)
        )


def _lead_on(state: RegistryState, operation: str) -> str:
    known = state.known_operations.get(operation)
    if known is not None and known.closed is None:
        return f"`switchyard resume {operation}` leads them on"
    return f"it was left in the middle: `switchyard undo {operation} --stop --execute` takes it back"


def notes(state: RegistryState, release: Release) -> list[str]:
    """What whoever looks at a release should know beside its state: why it failed, who was left behind, what it read that is past."""
    found = [release.failure] if release.failure else []
    unread = state.not_understood(release.name)
    if unread is not None:
        found.append(f"held: {not_read(unread)}")
    begun_by = left_behind(state, release)
    operation = state.known_operations.get((release.under.op if release.under else None) or "")
    if begun_by is not None:
        found.append(
            f"consumers of {release.spec.app} have not gone along with {begun_by}; {_lead_on(state, begun_by)}"
        )
    elif operation is not None and operation.closed is not None and operation.closed.outcome != "done":
        found.append(
            f"{operation.id} was {operation.closed.outcome} when it had begun generation {release.generation}: `switchyard start "
            f"{release.name}` goes on in that, `switchyard undo {operation.id}` takes it back"
        )
    return [*found, *outdated_inputs(state, release)]


def needing_result(context: Reading, state: RegistryState, release: Release, topic: str) -> list[str]:
    """Who still needs a result: consumers that have not been moved, or have not come to its end; releases that read it."""
    chain = state.chains.get(release.spec.app, ())
    if chain and topic in chain[-1].new_start.topics:
        return [f"alias {release.spec.app}"]
    behind = followers_in(context, state, release.spec.app, topic)
    return [*(f"follower {group}" for group in behind), *(r.name for r in readers_of(state, topic))]


def followers_in(context: Reading, state: RegistryState, alias: str, topic: str) -> list[str]:
    """Groups of the followers of `alias` that a switch out of a result has yet to lead out of it."""
    left = [s.number for s in state.chains.get(alias, ()) if s.old_end is not None and topic in s.old_end.topics]
    return followers_before(context, state, alias, max(left)) if left else []
