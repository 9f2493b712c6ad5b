"""Who reads the result of a release that is reset, and what they see of it."""

from __future__ import annotations

from orchestration.operations.looking.in_use import followers_in, left_behind, readers_of
from orchestration.operations.plans.plan import join
from orchestration.operations.reading import Reading
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import Choice


def is_read(state: RegistryState, release: Release) -> bool:
    """Whether consumers read this release's result now."""
    newest = state.live(release.spec.app)
    return newest is not None and newest.new == release.name


def read_by_consumers(state: RegistryState, release: Release) -> int:
    """The generation whose result consumers read: an earlier one, where a reset that was left in the middle left them behind."""
    newest = state.live(release.spec.app)
    if newest is None or left_behind(state, release) is None:
        return release.generation
    [topic] = newest.new_start.topics
    last = release.last_of(topic)
    # what was never written has no end
    return last if last is not None else newest.new_generation


def affected(context: Reading, state: RegistryState, release: Release, choice: Choice, meets: bool) -> dict[str, str]:
    facts = {}
    if is_read(state, release):
        own = choice.output in ("new", "truncate")
        if meets:
            what = "the old result stays until the new one stands at the same input; then they go on in it"
        elif own:
            cleared = ": rows that they have are deleted" if choice.table else ""
            what = f"they go on in the new result at once{cleared}{_replay(choice)}"
        elif choice.output == "tombstone":
            what = f"they see the tombstones{_replay(choice)}"
        else:
            what = f"they go on in the same result{_replay(choice)}"
        facts["alias"] = f"{release.spec.app} names this release: {what}"
    facts["followers"] = join(followers_of(context, state, release))
    pinned = [r.name for r in readers_of(state, release.result_topic)]
    if pinned:
        facts["read by"] = f"{join(pinned)}: they read the result of this generation{_for_readers(choice)}"
    return facts


def followers_of(context: Reading, state: RegistryState, release: Release) -> list[str]:
    """Groups that read the release's result: of a live one, all of its app's."""
    if is_read(state, release):
        return list(state.followers.get(release.spec.app, ()))
    return followers_in(context, state, release.spec.app, release.result_topic)


def _replay(choice: Choice) -> str:
    return ", and see the replay" if choice.move in ("back", "mixed") else ""


def _for_readers(choice: Choice) -> str:
    if choice.output in ("new", "truncate"):
        return ", which is written no more: each needs a version that reads the next one"
    if choice.output == "keep" and choice.move == "forward":
        return ", which goes on without what is left out"
    what = "the tombstones and the replay" if choice.output == "tombstone" else "what comes again"
    return f" and take {what} for news: each needs a reset of its own, which `switchyard status` goes on saying"
