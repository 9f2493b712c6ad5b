"""What a follower may do next: pure decisions from its position, the registry and the newest progress.

A follower is at a number of the alias's chain, in that switch's delta or in the result that the switch led to. It
delivers the result up to a bound. Only a registry entry lets it pass a barrier or enter another result.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import SerializerFunctionWrapHandler, model_serializer

from pipelines.errors import Refused, SwitchyardError
from pipelines.model.base import Frozen
from pipelines.model.entries import Switch
from pipelines.model.names import result_of
from pipelines.model.positions import ResultPosition, told_offsets
from pipelines.model.progress import Progress
from pipelines.model.registry import Operation

Phase = Literal["result", "delta"]
# what helps a follower whose results or deltas are lost. What its group has committed leads back to them, and with
# `earliest` a new group may have to cross them, too
AFRESH = (
    "follow with a new group and an empty store, without `earliest` or `--from-beginning`; then "
    "`switchyard forget-follower APP OLD_GROUP`"
)


class FollowerPosition(Frozen):
    """Where a follower is. Can be written as JSON, to be stored with the effect of what it delivered.

    `number`: of the switch in the alias's chain. `segment`: index of the current delta segment, None in a result.
    `offsets`: partition -> next offset on `topic`; in a group of several members, of this member's partitions.
    `result`: which one it follows, if the app has several.
    """

    alias: str
    number: int
    segment: int | None = None
    topic: str
    offsets: dict[int, int]
    result: str = ""

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without `result` if the app has only one, so that an older version can read the position."""
        fields: dict[str, Any] = serialize(self)
        return fields if self.result else {name: value for name, value in fields.items() if name != "result"}

    @property
    def phase(self) -> Phase:
        return "result" if self.segment is None else "delta"


@dataclass(frozen=True, slots=True)
class Member:
    """Member `index` of `count`: it owns the partitions p with p % count == index. Member 0 delivers the deltas."""

    index: int = 0
    count: int = 1

    def owns(self, partition: int) -> bool:
        return partition % self.count == self.index


SOLE = Member()


class Committed(NamedTuple):
    """What a group has committed for one partition: next offset, and its chain number, segment and result."""

    offset: int
    number: int
    segment: int | None
    result: str = ""

    @property
    def rank(self) -> tuple[int, bool, int]:
        """Orders the phases of a chain: by number, then the delta segments in order, then the result."""
        return self.number, self.segment is None, self.segment or 0


Commits = Mapping[str, Mapping[int, Committed]]
Chain = Sequence[Switch]
Operations = Mapping[str, Operation]


@dataclass(frozen=True, slots=True)
class Deliver:
    """Deliver from `topic` in order, each partition up to (not including) its offset in `upto`."""

    topic: str
    upto: dict[int, int]


@dataclass(frozen=True, slots=True)
class Enter:
    """Continue at `position`: the next delta segment, or the new result."""

    position: FollowerPosition


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to deliver. `tail`: wait for more results; `barrier`: for the end of `op`; `members`: for the other
    members of the group; `registry`: for entries that the newest progress already mentions."""

    reason: Literal["tail", "barrier", "members", "registry"]
    op: str | None = None


Move = Deliver | Enter | Wait


def results_of(chain: Chain) -> list[str]:
    """The names of the results that a chain leads to; the only result of an app has an empty name."""
    return list(dict.fromkeys(result_of(topic) for switch in chain for topic in switch.new_start.topics))


def narrowed(chain: Chain, result: str) -> tuple[Switch, ...]:
    """A chain for those who follow one of several results: what follows here works on such a chain."""
    return tuple(switch.only(result) for switch in chain) if result else tuple(chain)


def topic_of(switch: Switch) -> str:
    """The result topic that a switch led to."""
    return next(iter(switch.new_start.topics))


def link(chain: Chain, number: int) -> Switch | None:
    """The chain's switch with that number."""
    return next((s for s in chain if s.number == number), None)


def beginning(alias: str, switch: Switch, partitions: int, member: Member = SOLE) -> FollowerPosition:
    """The first offsets of the result that `switch` led to: all of that release's result, no delta."""
    topic, offsets = topic_of(switch), {p: 0 for p in range(partitions) if member.owns(p)}
    return FollowerPosition(alias=alias, number=switch.number, topic=topic, offsets=offsets, result=result_of(topic))


def entered(alias: str, switch: Switch, member: Member = SOLE) -> FollowerPosition:
    """Where a follower starts when it enters the result of `switch` at its cut."""
    topic = topic_of(switch)
    offsets = {p: o for p, o in switch.new_start.of(topic).items() if member.owns(p)}
    return FollowerPosition(alias=alias, number=switch.number, topic=topic, offsets=offsets, result=result_of(topic))


def after(position: FollowerPosition, switch: Switch, member: Member = SOLE) -> FollowerPosition:
    """Where a follower goes after it has delivered all of `position`'s phase: into `switch`, or to the next segment of
    its delta.
    """
    index = 0 if position.number < switch.number else (position.segment or 0) + 1
    if index < len(switch.delta) and member.owns(0):
        segment = switch.delta[index]
        return FollowerPosition(
            alias=position.alias,
            number=switch.number,
            segment=index,
            topic=segment.topic,
            offsets={0: segment.start},
            result=position.result,
        )
    return entered(position.alias, switch, member)


def bound(
    position: FollowerPosition,
    chain: Chain,
    progress: Progress | None,
    operations: Operations,
    ended: ResultPosition | None = None,
) -> dict[int, int]:
    """Partition -> offset up to which a follower at `position` may deliver; a partition left out: nothing.

    `progress`: the newest record of the release that it reads, read before the registry was. `ended`: the end of its
    result, if the release now writes another one. In a result the bound is the cut of the next switch, if there is
    one; else the result's end; else an unresolved barrier; else all that the progress record covers.
    """
    here = _here(position, chain)
    if position.segment is not None:
        return {0: here.delta[position.segment].end}
    following = link(chain, position.number + 1)
    if following is not None:
        return following.old_end.of(position.topic) if following.old_end else {}
    if ended is not None:
        return ended.of(position.topic)
    # a record about an earlier or a later result says nothing about this one
    if progress is None or progress.release != here.new or position.topic not in progress.result.topics:
        return {}
    barrier = progress.barrier
    if barrier is None:
        return progress.result.of(position.topic)
    operation = operations.get(barrier.op)
    if operation is None:
        # the registry, as read, is older than the barrier: even an earlier cut may be unknown
        return {}
    return (progress.result if operation.resolved else barrier.result).of(position.topic)


def next_move(
    position: FollowerPosition,
    chain: Chain,
    progress: Progress | None,
    operations: Operations,
    *,
    ended: ResultPosition | None = None,
    member: Member = SOLE,
    commits: Commits | None = None,
) -> Move:
    """What a follower at `position` does next. `commits`: of its group, if that has several members.

    `ended`: as for `bound`.

    Raises SwitchyardError if the position isn't in the chain, Refused if the follower is already past a cut.
    """
    here = _here(position, chain)
    limit = bound(position, chain, progress, operations, ended)
    upto = {p: end for p, end in limit.items() if p in position.offsets and position.offsets[p] < end}
    if upto:
        return Deliver(position.topic, upto)
    if position.segment is not None:
        return Enter(after(position, here, member))
    following = link(chain, position.number + 1)
    if following is not None:
        _check_cut(position, limit, following)
        if member.count > 1 and not _all_there(following, commits or {}, member):
            return Wait("members")
        return Enter(after(position, following, member))
    barrier = progress.barrier if progress is not None and ended is None else None
    operation = operations.get(barrier.op) if barrier is not None else None
    if barrier is not None and operation is None:
        return Wait("registry", barrier.op)
    if operation is not None and not operation.resolved:
        return Wait("barrier", operation.id)
    return Wait("tail")


def earlier_segments(position: FollowerPosition, chain: Chain) -> list[int]:
    """Indexes of the delta segments whose keys must be left out at `position`: those delivered before."""
    return list(range(position.segment or 0))


def resume(alias: str, commits: Commits, chain: Chain, member: Member = SOLE) -> FollowerPosition | None:
    """Where a member continues, from what its group has committed; None if the group has committed nothing of this
    chain.

    The number of members may have changed since. Then partitions whose commit is a phase earlier continue at the cut.
    """
    known = {s.number: s for s in chain}
    mine = [
        (committed, topic, partition)
        for topic, partitions in commits.items()
        for partition, committed in partitions.items()
        if member.owns(partition) and committed.number in known and _is_of(topic, committed, known[committed.number])
    ]
    if not mine:
        return None
    newest = max(c.rank for c, _, _ in mine)
    at = [(c, t, p) for c, t, p in mine if c.rank == newest]
    switch, (first, topic, _) = known[newest[0]], at[0]
    offsets = {p: c.offset for c, _, p in at}
    if first.segment is None:
        offsets = {**entered(alias, switch, member).offsets, **offsets}
    return FollowerPosition(
        alias=alias,
        number=switch.number,
        segment=first.segment,
        topic=topic,
        offsets=offsets,
        result=result_of(topic_of(switch)),
    )


def start(
    alias: str,
    commits: Commits,
    chain: Chain,
    partitions: Callable[[Switch], int],
    member: Member = SOLE,
    *,
    first: Switch | None = None,
) -> FollowerPosition | None:
    """Where a member starts: where it was, or else where member 0 is. Member 0 starts at the newest release's first offsets.

    `first`: start at the first offsets of the release that this switch led to. `partitions`: number of partitions of
    the result that a switch led to. Returns None if member 0 has not committed anything yet. Members must commit their
    start before they deliver.
    """
    resumed = resume(alias, commits, chain, member)
    if resumed is not None:
        return resumed
    number = (first or chain[-1]).number
    if not member.owns(0):
        others = [c.number for t in commits.values() for p, c in t.items() if p % member.count == 0]
        if not others:
            return None
        number = max(others)
    switch = link(chain, number)
    return beginning(alias, switch, partitions(switch), member) if switch else None


def oldest(chain: Chain, topics: Container[str]) -> Switch:
    """The first switch from which everything up to the newest is kept. Retired releases and old deltas are deleted."""
    found = chain[-1]
    for switch in reversed(chain[:-1]):
        if topic_of(switch) not in topics or any(segment.topic not in topics for segment in found.delta):
            break
        found = switch
    return found


def group_number(commits: Commits, chain: Chain) -> int | None:
    """The chain number whose result all of a group reads, or has read: it no longer needs anything before that.

    An unfinished delta doesn't count as passed. None if the group has committed nothing of this chain. A group that
    follows several results of an app is where the slowest of its followers is.
    """
    numbers = [_group_number(commits, narrowed(chain, result)) for result in results_of(chain)]
    return min((number for number in numbers if number is not None), default=None)


def _group_number(commits: Commits, chain: Chain) -> int | None:
    known = {s.number: s for s in chain}
    newest: dict[int, int] = {}
    for topic, partitions in commits.items():
        for partition, committed in partitions.items():
            if committed.number in known and _is_of(topic, committed, known[committed.number]):
                passed = committed.number - (committed.segment is not None)
                newest[partition] = max(newest.get(partition, 0), passed)
    return min(newest.values()) if newest else None


def _is_of(topic: str, committed: Committed, switch: Switch) -> bool:
    if committed.segment is None:
        return topic == topic_of(switch)
    if committed.result != result_of(topic_of(switch)):
        return False
    return committed.segment < len(switch.delta) and switch.delta[committed.segment].topic == topic


def _here(position: FollowerPosition, chain: Chain) -> Switch:
    here = link(chain, position.number)
    if here is None or (position.segment is not None and position.segment >= len(here.delta)):
        raise SwitchyardError(
            f"position {position.number} of alias {position.alias} is not in its chain of {len(chain)} switches",
            fix=f"the position belongs to another cluster or alias: give the right position, or {AFRESH}",
        )
    return here


def _check_cut(position: FollowerPosition, cut: Mapping[int, int], following: Switch) -> None:
    past = {p: o for p, o in position.offsets.items() if o > cut.get(p, o)}
    if past and following.allowed is None:
        raise Refused(
            f"the follower is past the cut of switch {following.number}: it is at {told_offsets(position.topic, past)}, and the cut is at {told_offsets(position.topic, cut)}",
            fix=f"its stored position was changed by hand: {AFRESH}",
        )


def _all_there(following: Switch, commits: Commits, member: Member) -> bool:
    """Whether all members have committed the old result up to the cut and, if this member only waits, the delta."""

    def left(partition: int) -> bool:
        owner = partition % member.count
        return any(
            c.number >= following.number
            for partitions in commits.values()
            for p, c in partitions.items()
            if p % member.count == owner
        )

    for partitions in following.old_end.topics.values() if following.old_end else ():
        for partition, end in partitions.items():
            committed = _find(commits, following, partition)
            if (committed is None or committed.offset < end) and not left(partition):
                return False
    return member.owns(0) or not following.delta or _delta_done(following, commits, member)


def _find(commits: Commits, following: Switch, partition: int) -> Committed | None:
    topics = following.old_end.topics if following.old_end else {}
    found = [commits[t][partition] for t in topics if partition in commits.get(t, {})]
    return next((c for c in found if c.number == following.number - 1), None)


def _delta_done(following: Switch, commits: Commits, member: Member) -> bool:
    last = len(following.delta) - 1
    return any(
        c.rank > (following.number, False, last) or (c.segment == last and c.number == following.number
                                                     and c.offset >= following.delta[last].end)
        for partitions in commits.values()
        for p, c in partitions.items()
        if p % member.count == 0
    )  # fmt: skip
