"""What registered followers have yet to read and is lost: results and deltas of switches that they have not passed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestration.operations.looking.deltas import delta_ends, how_lost
from orchestration.operations.plans.plan import join
from orchestration.operations.reading import Reading
from pipelines.follow import AFRESH, committed_number
from pipelines.model.entries import Switch
from pipelines.model.parts import Loss
from pipelines.model.registry import RegistryState


@dataclass
class _Awaited:
    """A topic that the followers `groups` have yet to read. `release`: the one that its switch leads to.

    `end`: the end offset that a delta must have; None: it is a result.
    """

    release: str
    end: int | None
    groups: list[str] = field(default_factory=list)


def lost_to_followers(context: Reading, state: RegistryState) -> dict[str, list[str]]:
    """Release -> what `status` says about lost topics that a registered follower has yet to read, and what helps.

    Asks for the position of each registered group whose alias has been switched. Raises Unavailable without a broker.
    """
    awaited: dict[str, _Awaited] = {}
    for alias, groups in state.followers.items():
        chain = state.chains.get(alias, ())
        for group in groups if len(chain) > 1 else ():
            at = committed_number(context.settings, group, alias, chain)
            for topic, release, end in _before(chain, at) if at is not None else ():
                awaited.setdefault(topic, _Awaited(release, end)).groups.append(group)
    for known in state.releases.values():
        # status names these without us
        for topic in known.result_topics.values():
            awaited.pop(topic, None)
    if not awaited:
        return {}
    now = context.cluster.topic_ids(awaited)
    ends = delta_ends(context, (topic for topic, each in awaited.items() if topic in now and each.end is not None))
    found: dict[str, list[str]] = {}
    for topic, each in awaited.items():
        how = how_lost(topic, each.end, ends) if each.end is not None else "gone" if topic not in now else None
        if how is None:
            continue
        loss = Loss(release=each.release, part="result" if each.end is None else "delta", name=topic, how=how)
        who = f"follower {each.groups[0]} has" if len(each.groups) == 1 else f"followers {join(each.groups)} have"
        said = f"{loss.what}, and {who} yet to read it: {AFRESH}"
        found.setdefault(each.release, []).append(said)
    return found


def _before(chain: tuple[Switch, ...], at: int) -> Iterator[tuple[str, str, int | None]]:
    """What a follower that reads the result of switch `at` has before it: topic, release, and a delta's needed end."""
    for switch in chain:
        if switch.number >= at:
            yield from ((topic, switch.new, None) for topic in switch.new_start.topics)
        if switch.number > at:
            yield from ((segment.topic, switch.new, segment.end) for segment in switch.delta)
