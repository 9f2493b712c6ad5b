"""Who reads the result of a release that is reset, and what these consumers see of the reset."""

from __future__ import annotations

from orchestration.operations.looking.in_use import followers_in, readers_of, unfinished_move
from orchestration.operations.plans.plan import join
from orchestration.operations.reading import Reading
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import Choice


def is_read(state: RegistryState, release: Release) -> bool:
    """Whether consumers of the app read this release's result now."""
    newest = state.live(release.spec.app)
    return newest is not None and newest.new == release.name


def read_by_consumers(state: RegistryState, release: Release) -> int:
    """The generation whose result consumers read. It is an earlier one if an unfinished reset has not moved them yet."""
    newest = state.live(release.spec.app)
    if newest is None or unfinished_move(state, release) is None:
        return release.generation
    last = release.last_of(next(iter(newest.new_start.topics)))
    # a result that was never written has no end
    return last if last is not None else newest.new_generation


def affected(context: Reading, state: RegistryState, release: Release, choice: Choice, meets: bool) -> dict[str, str]:
    facts = {}
    if is_read(state, release):
        own = choice.output in ("new", "truncate")
        if meets:
            what = "consumers stay on the old result until the new one has read the same input; then they move to it"
        elif own:
            cleared = "get a tombstone for each key, then " if choice.table else ""
            what = f"consumers {cleared}move to the new result immediately{_replay(choice)}"
        elif choice.output == "tombstone":
            what = f"consumers see the tombstones{_replay(choice)}"
        else:
            what = f"consumers stay on the same result{_replay(choice)}"
        facts["alias"] = f"{release.spec.app} names this release: {what}"
    facts["followers"] = join(followers_of(context, state, release))
    pinned = [r.name for topic in release.result_topics.values() for r in readers_of(state, topic)]
    if pinned:
        facts["read by"] = f"{join(pinned)}: they read the result of this generation{_for_readers(choice)}"
    return facts


def followers_of(context: Reading, state: RegistryState, release: Release) -> list[str]:
    """Registered followers that read the release's result; for the live release, all followers of its app."""
    if is_read(state, release):
        return list(state.followers.get(release.spec.app, ()))
    return followers_in(context, state, release.spec.app, release.result_topics.values())


def _replay(choice: Choice) -> str:
    return ", and see the replay" if choice.move in ("back", "mixed") else ""


def _for_readers(choice: Choice) -> str:
    if choice.output in ("new", "truncate"):
        return ", which gets no more records; each needs a version that reads the next generation's result"
    if choice.output == "keep" and choice.move == "forward":
        return ", which continues without the skipped input"
    what = "the tombstones and the replay" if choice.output == "tombstone" else "the repeated records"
    return f" and treat {what} as new ones; each needs a reset of its own, and `switchyard status` keeps saying so"
