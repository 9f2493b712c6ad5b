"""Who still needs a release. Asked when its retirement is planned, and again in the steps that carry it out."""

from __future__ import annotations

from collections.abc import Iterable

from orchestration.operations.lifecycle import another_version, before_live, live_release
from orchestration.operations.plans.plan import join
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.follow import committed_number
from pipelines.model.entries import GenerationStarted, Switch
from pipelines.model.names import app_of, result_of
from pipelines.model.registry import RegistryState, Release
from pipelines.model.text import utc
from pipelines.model.unread import not_read


def refuse_live(state: RegistryState, release: Release) -> None:
    """Raises Refused while consumers follow `release`."""
    live = live_release(state, release.spec.app)
    if live is not None and live.name == release.name:
        raise Refused(
            f"{release.name} is live", fix=f"move its consumers first: {_way_to_another(state, release.spec.app, live)}"
        )


def _way_to_another(state: RegistryState, app: str, live: Release) -> str:
    """How the consumers of `live` can move to another release of the app."""
    back = before_live(state, app)
    standby = back if back is not None and back.state == "standby" else None
    others = [r for r in state.of_app(app) if r not in (live, standby) and r.state != "retired"]
    ways = [f"`switchyard promote {r.name} --execute`" for r in others[-1:]]
    ways += [f"`switchyard rollback {app} --execute`"] if standby is not None else []
    return " or ".join(ways) or another_version(app)


def refuse_needed(context: Reading, state: RegistryState, release: Release) -> None:
    """Raises Refused while `release` is needed; the error names who needs it."""
    readers, followers = _other_readers(state, release), _followers_of(context, state, release)
    if readers:
        raise Refused(
            f"{release.name} is still needed by {join([*readers, *followers])}",
            fix=_way_to_free(state, release, state.releases[readers[0]]),
        )
    if followers:
        raise Refused(
            f"{release.name} is still needed by {join(followers)}",
            fix="wait until they have passed the switch; for one that will not come back: "
            f"`switchyard forget-follower {release.spec.app} GROUP`",
        )


def _way_to_free(state: RegistryState, release: Release, reader: Release) -> str:
    """What to do so that `reader` no longer needs `release`."""
    app, retire = reader.spec.app, f"`switchyard retire {reader.name} --execute`"
    if live_release(state, app) is not reader:
        return f"retire each release that reads it first: {retire}"
    if reader.spec.streams:
        return f"keep it: {reader.name} is live, and the consumers of its stream can't move to another input"
    live = live_release(state, release.spec.app)
    # the same code, staged again, reads the release that is live now
    if live is not None and any(given.release == release.name for given in reader.spec.inputs.values()):
        way = f"`switchyard reprocess {app} --same-as {reader.name} --execute` reads {live.name}"
    else:
        way = f"change {app} so that it does not read {release.name}, then `switchyard reprocess {app} --execute`"
    return f"{reader.name} is live, so move its consumers first: {way}; then {retire}"


def _other_readers(state: RegistryState, release: Release) -> list[str]:
    return [r.name for topic in release.all_results for r in readers_of(state, topic) if r.name != release.name]


def _followers_of(context: Reading, state: RegistryState, release: Release) -> list[str]:
    chain = state.chains.get(release.spec.app, ())
    parts = [s.number for s in chain if release.name in (s.old, s.new)]
    if not parts:
        return []
    # a follower needs its result until it has passed the switch away from it
    passed = next((s.number for s in reversed(chain) if s.old == release.name), max(parts) + 1)
    return [f"follower {group}" for group in followers_before(context, state, release.spec.app, passed)]


def followers_before(context: Reading, state: RegistryState, alias: str, number: int) -> list[str]:
    """Groups of the registered followers of `alias` that have not passed switch `number`."""
    chain = state.chains.get(alias, ())
    return [
        group
        for group in state.followers.get(alias, ())
        if (committed_number(context.settings, group, alias, chain) or 0) < number
    ]


def readers_of(state: RegistryState, topic: str) -> list[Release]:
    """Releases that read `topic` and are not retired, by name."""
    found = (r for r in state.releases.values() if r.state != "retired" and topic in r.spec.topics.values())
    return sorted(found, key=lambda r: r.name)


def outdated_inputs(state: RegistryState, release: Release) -> list[str]:
    """For each input that is the result of another release: if that release was reset since this one started, what
    changed and what to do.
    """
    found = []
    for topic in dict.fromkeys(release.spec.topics.values()):
        owner = next((r for r in state.releases.values() if topic in r.all_results), None)
        if owner is None or owner.under is None:
            continue
        now = owner.result_topics[result_of(topic)]
        if now != topic:
            found.append(
                f"{owner.name} no longer writes {topic}; since {owner.under.op} it writes {now}: stage a version of {release.spec.app} that reads {now} (`switchyard stage {release.spec.app}`)"
            )
            continue
        started = {entry.op: entry for entry in (*owner.generations.values(), owner.under)}
        since = release.under.at_ms if release.under is not None else 0
        again = [e.op for e in started.values() if e.at_ms > since and _is_written_again(owner, e, topic)]
        if again:
            found.append(
                f"{owner.name} wrote {topic} again with {again[-1]}: `switchyard reset {release.name} --to-earliest`"
            )
    return found


def _is_written_again(owner: Release, started: GenerationStarted, topic: str) -> bool:
    """Whether a generation that writes its predecessor's topic writes the same results there again."""
    if started.ended is None:
        return False
    if any(topic not in owner.topics_of(g).values() for g in (started.generation, started.ended.generation)):
        return False
    return started.cleared or not started.start.dominates(started.ended.boundary.position)


def is_at(switch: Switch, release: Release) -> bool:
    """Whether a switch led to what a release writes now."""
    return not switch.new_start.topics.keys().isdisjoint(release.result_topics.values())


def unfinished_move(state: RegistryState, release: Release) -> str | None:
    """The unfinished operation that changed the live release's result but did not move its consumers yet; None: none."""
    newest = state.live(release.spec.app)
    if newest is None or newest.new != release.name or is_at(newest, release):
        return None
    return release.under.op if release.under else None


def refuse_unfinished(state: RegistryState, release: Release) -> None:
    """Raises Refused if an unfinished operation has not moved the consumers: they read a result that the release no
    longer writes, and that has no boundary in common with another release's.
    """
    unfinished = unfinished_move(state, release)
    if unfinished is not None:
        raise Refused(
            f"{unfinished} has not moved the consumers of {release.spec.app} to the new result yet",
            fix=_way_to_finish(state, unfinished),
        )


def _way_to_finish(state: RegistryState, operation: str) -> str:
    known = state.known_operations.get(operation)
    if known is not None and known.closed is None:
        return f"`switchyard resume {operation}` moves them"
    return f"it was left unfinished; `switchyard undo {operation} --stop --execute` takes it back"


def notes(state: RegistryState, release: Release) -> list[str]:
    """What an operator should know about a release beside its state: why it failed, whether an unfinished operation
    left its consumers on an old result, whether dead letters are lost, and which of its inputs are out of date.
    """
    found = [release.failure] if release.failure else []
    unread = state.not_understood(release.name)
    if unread is not None:
        found.append(f"held: {not_read(unread)}")
    if release.letters_lost_ms:
        found.append(
            f"its dead-letter topic was deleted. Since {utc(release.letters_lost_ms)} UTC it has a new one: the dead letters before that are lost"
        )
    unfinished = unfinished_move(state, release)
    operation = state.known_operations.get((release.under.op if release.under else None) or "")
    if unfinished is not None:
        found.append(
            f"{unfinished} has not moved the consumers of {release.spec.app} to the new result yet; {_way_to_finish(state, unfinished)}"
        )
    elif operation is not None and operation.closed is not None and operation.closed.outcome != "done":
        found.append(
            f"{operation.id} was {operation.closed.outcome} after it had started generation {release.generation}: `switchyard start "
            f"{release.name} --execute` continues that generation, `switchyard undo {operation.id} --stop --execute` takes it back"
        )
    return [*found, *outdated_inputs(state, release), *left_upstream(state, release)]


def left_upstream(state: RegistryState, release: Release) -> list[str]:
    """For each input that is the result of another app's release: which other release of that app is live now."""
    found = []
    for name in dict.fromkeys(given.release for given in release.spec.inputs.values() if given.release is not None):
        live = live_release(state, app_of(name))
        if live is not None and live.name != name:
            found.append(
                f"it reads {name}, but {live.name} is live: `switchyard reprocess {release.spec.app} --same-as {release.name} --execute` reads {live.name}"
            )
    return found


def needing_result(context: Reading, state: RegistryState, release: Release, topics: Iterable[str]) -> list[str]:
    """Who still needs the results of a generation: the alias, if consumers are still on them; followers that have not
    read them to their end; releases that read them.
    """
    chain, wanted = state.chains.get(release.spec.app, ()), set(topics)
    if chain and not wanted.isdisjoint(chain[-1].new_start.topics):
        return [f"alias {release.spec.app}"]
    waiting = followers_in(context, state, release.spec.app, wanted)
    return [
        *(f"follower {group}" for group in waiting),
        *(r.name for t in sorted(wanted) for r in readers_of(state, t)),
    ]


def followers_in(context: Reading, state: RegistryState, alias: str, topics: Iterable[str]) -> list[str]:
    """Groups of the followers of `alias` that have not passed the last switch away from some results."""
    wanted = set(topics)
    chain = state.chains.get(alias, ())
    left = [s.number for s in chain if s.old_end is not None and not wanted.isdisjoint(s.old_end.topics)]
    return followers_before(context, state, alias, max(left)) if left else []
