"""The followers of the model of the switch protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.errors import Refused
from pipelines.follow import moves
from pipelines.follow.moves import Committed, Deliver, Enter, FollowerPosition, Member, Wait
from pipelines.model.registry import Operation
from tests.switch.rules import ALIAS, PARTITIONS, Broken, Kind, Slot, law

if TYPE_CHECKING:
    from tests.switch.world import World


@dataclass
class Follower:
    """A consumer group. Durable: what it did (`effect`) and committed, together. In memory: each member's rest."""

    world: World
    count: int
    earliest: bool
    commits: dict[str, dict[int, Committed]] = field(default_factory=dict)
    effect: list[Slot] = field(default_factory=list)
    members: list[Reader] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Reader(self, Member(i, self.count)) for i in range(self.count)]

    def folded(self) -> Counter[Any] | dict[Any, Any]:
        return folded(self.world.kind, self.effect)


@dataclass
class Reader:
    """A member of a follower. `registry_seen`, `progress_seen`: how much it has read of each topic, independently."""

    group: Follower
    member: Member
    at: FollowerPosition | None = None
    stored: FollowerPosition | None = None
    pending: list[Slot] = field(default_factory=list)
    skip: set[Any] = field(default_factory=set)
    registry_seen: int = 0
    progress_seen: dict[str, int] = field(default_factory=dict)
    waiting_since_ms: int | None = None

    @property
    def world(self) -> World:
        return self.group.world

    def look(self, registry: bool, progress: bool) -> None:
        if registry:
            self.registry_seen = len(self.world.entries)
        if progress:
            self.progress_seen = {d.name: len(d.progress) for d in self.world.drivers.values()}

    def read(self, slots: int) -> bool:
        """Goes on by up to `slots` offsets or moves. Whether it did anything."""
        state = self.world.states[self.registry_seen]
        chain = state.chains.get(ALIAS, ())
        if not chain:
            return False
        if self.at is None:
            begin = moves.start(
                ALIAS,
                self.group.commits,
                chain,
                lambda _: len(PARTITIONS),
                self.member,
                first=chain[0] if self.group.earliest else None,
            )
            law(self.stored is None or begin == self.stored, f"a restart begins at {begin}, not at {self.stored}")
            if begin is None:
                return False
            self._go(begin, chain)
            if self.stored is None and self.member.count > 1:
                self.commit()
        for step in range(slots):
            if not self._step(chain, state.operations):
                return step > 0
        return True

    def _step(self, chain: moves.Chain, operations: Mapping[str, Operation]) -> bool:
        assert self.at is not None
        release = chain[self.at.number - 1].new
        seen = self.world.drivers[release].progress[: self.progress_seen.get(release, 0)]
        newest = seen[-1] if seen else None
        try:
            move = self.world.rules.next_move(
                self.at, chain, newest, operations, member=self.member, commits=self.group.commits
            )
        except Refused as error:
            raise Broken(str(error)) from error
        if isinstance(move, Wait) and move.reason == "barrier" and self.world.rules.follower_patience_ms is not None:
            assert newest is not None
            since = self.waiting_since_ms = self.waiting_since_ms or self.world.now_ms
            if self.world.now_ms - since > self.world.rules.follower_patience_ms:
                ends = newest.result.of(self.at.topic)
                upto = {p: ends[p] for p, o in self.at.offsets.items() if o < ends[p]}
                move = Deliver(self.at.topic, upto) if upto else move
        else:
            self.waiting_since_ms = None
        match move:
            case Wait():
                return False
            case Enter(position=into):
                self._go(into, chain)
            case Deliver(topic=topic, upto=upto):
                at = self.at.offsets
                partition = min(upto, key=lambda p: (at[p] - upto[p], p))
                slot = self.world.topics(topic)[partition][at[partition]]
                offsets = {**at, partition: at[partition] + 1}
                self.at = self.at.model_copy(update={"offsets": offsets})
                if slot is not None and not (self.at.segment is not None and slot[0] in self.skip):
                    self.pending.append(slot)
        return True

    def _go(self, into: FollowerPosition, chain: moves.Chain) -> None:
        self.at = into
        self.skip = set()
        if into.segment is not None:
            delta = chain[into.number - 1].delta
            for index in self.world.rules.earlier_segments(into, chain):
                part = delta[index]
                self.skip |= {s[0] for s in self.world.topics(part.topic)[0][part.start : part.end] if s}

    def commit(self) -> None:
        """Stores effect and position together."""
        if self.at is None:
            return
        self.group.effect += self.pending
        self.pending = []
        self.stored = self.at
        for partition, offset in self.at.offsets.items():
            committed = Committed(offset, self.at.number, self.at.segment)
            self.group.commits.setdefault(self.at.topic, {})[partition] = committed

    def crash(self) -> None:
        self.at, self.pending, self.skip, self.waiting_since_ms = None, [], set(), None
        self.registry_seen, self.progress_seen = 0, {}


def folded(kind: Kind, slots: list[Slot]) -> Counter[Any] | dict[Any, Any]:
    """What a reader of `slots` holds: how often each source identity, or the table's rows."""
    records = [s for s in slots if s is not None]
    if kind == "stream":
        return Counter(key for key, _ in records)
    rows: dict[Any, Any] = {}
    for key, value in records:
        rows[key] = value
        if value is None:
            del rows[key]
    return rows
