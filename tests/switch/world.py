"""The whole switch protocol without Kafka: releases, operators, followers, deciding by the real functions.

Everything that is durable in Kafka is a list here, and a reader sees any prefix of it. Whatever is in memory is lost
in a crash. The laws at the end of the file are checked after every step of a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.errors import Refused
from pipelines.follow import moves
from pipelines.follow.moves import FollowerPosition
from pipelines.model import switch as rules
from pipelines.model.entries import AlignOrdered, Closed, DeltaSegment, Entry, MarkOrdered, Opened, Switch
from pipelines.model.names import result_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Flagging, Mark, Progress
from pipelines.model.registry import Operation, RegistryState, fold
from pipelines.model.switch import AwaitMark, Free, Met, Pause, Run
from tests.switch.readers import Follower, folded
from tests.switch.rules import (
    ALIAS,
    DELAY,
    PARTITIONS,
    PATIENCE_MS,
    WINDOW,
    Broken,
    Crash,
    Ident,
    Kind,
    Rules,
    Slot,
    law,
)


def position(offsets: Mapping[int, int]) -> SourcePosition:
    return SourcePosition(sources={"in": dict(offsets)})


@dataclass
class Source:
    """An input topic: partition -> (event time, key). The time never goes back, so nothing is ever dropped as late."""

    records: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {p: [] for p in PARTITIONS})
    now: int = 0

    def append(self, partition: int, key: int, gap: int) -> None:
        self.now += gap
        self.records[partition].append((self.now, key))

    def end(self) -> dict[int, int]:
        return {p: len(r) for p, r in self.records.items()}

    def watermark(self, at: SourcePosition | None) -> int:
        read = [self.records[p][o - 1][0] for p, o in at.sources["in"].items() if o] if at else []
        return max(read, default=-WINDOW) - DELAY

    def emitted(self, at: SourcePosition, previous: SourcePosition | None) -> set[Ident]:
        """Records whose window closed by the watermark of the batch before: what a result holds at a boundary."""
        watermark = self.watermark(previous)
        return {
            (p, o)
            for p, end in at.sources["in"].items()
            for o in range(end)
            if (self.records[p][o][0] // WINDOW + 1) * WINDOW <= watermark
        }


@dataclass
class Driver:
    """A release and its process. Durable: progress, result log, a planned batch. In memory: what it saw of others."""

    world: World
    version: int
    progress: list[Progress] = field(default_factory=list)
    log: dict[int, list[Slot]] = field(default_factory=lambda: {p: [] for p in PARTITIONS})
    planned: SourcePosition | None = None
    # its word for each operation, by a heartbeat
    promised: dict[str, SourcePosition] = field(default_factory=dict)
    foreseen: dict[str, Flagging] = field(default_factory=dict)
    registry_seen: int = 0
    others_seen: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{ALIAS}.v{self.version}"

    @property
    def topic(self) -> str:
        return result_topic(self.name, 1)

    @property
    def newest(self) -> Progress | None:
        return self.progress[-1] if self.progress else None

    def look(self) -> None:
        self.registry_seen = len(self.world.entries)
        self.others_seen = {d.name: len(d.progress) for d in self.world.drivers.values()}

    def turn(self, take: Mapping[int, int], crash: Crash) -> bool:
        """One turn of the driver's loop; free, it reads up to `take` records per partition. Whether it did anything."""
        state = self.world.states[self.registry_seen]
        order = state.open_align(self.name)
        if order is not None and self.newest is not None and order.id not in self.promised:
            at = self.newest.boundary.position
            self.promised[order.id] = self.world.rules.pauses_by(at, self.planned)
            return True
        if self.planned is not None:
            return self._batch(self.planned, state, crash)
        theirs, word = None, None
        if order is not None:
            other = self.world.drivers[order.other]
            seen = other.progress[: self.others_seen.get(order.other, 0)]
            theirs = seen[-1] if seen else None
            # a heartbeat is heard whether progress is seen or not
            word = other.foreseen.get(order.id)
        try:
            move = self.world.rules.candidate_move(order, self.newest, theirs, word)
        except rules.PastTheMark as error:
            raise Broken(f"a mark can't be met: {error}") from error
        match move:
            case Pause(op=op):
                return self._say(paused=self._mark(op))
            case AwaitMark():
                return False
            case Run(steps=steps):
                return self._batch(steps[0].to, state, crash)
            case Met(mark=mark):
                return self._say(aligned=self._mark(mark.op))
            case Free():
                return self._free(take, state, crash)

    def _free(self, take: Mapping[int, int], state: RegistryState, crash: Crash) -> bool:
        at = self.newest.boundary.position.sources["in"] if self.newest else dict.fromkeys(PARTITIONS, 0)
        end = {p: min(at[p] + take.get(p, 0), last) for p, last in self.world.source.end().items()}
        if end != at or (self.newest and not self.newest.boundary.settled):
            return self._batch(position(end), state, crash)
        order = state.open_mark(self.name)
        if order is None or self.newest is None:
            return False
        boundary = self.newest.boundary
        if not self.world.rules.flags(order, boundary.previous, boundary, self._already(order)):
            return False
        return self._say(**self._flag(order, self._mark(order.id)))

    def _batch(self, end: SourcePosition, state: RegistryState, crash: Crash) -> bool:
        self.planned = end
        source, before = self.world.source, self.newest.boundary if self.newest else None
        previous = before.position if before else None
        self._foresee(end, before, state)
        if crash == "planned":
            return True
        done = source.emitted(before.position, before.previous) if before else set()
        rows = self._rows(source.emitted(end, previous), done)
        for partition, row in rows:
            self.log[partition].append(None if crash == "produced" else row)
        result = ResultPosition(topics={self.topic: {p: len(slots) for p, slots in self.log.items()}})
        for partition in {p for p, _ in rows}:
            self.log[partition].append(None)  # the transaction's end takes an offset, too
        if crash == "produced":
            return True
        boundary = Boundary(
            batch_id=before.batch_id + 1 if before else 0,
            position=end,
            previous=previous,
            settled=source.emitted(end, end) == source.emitted(end, previous),
        )
        order = state.open_mark(self.name)
        flagged = {}
        if order is not None and self.world.rules.flags(order, previous, boundary, self._already(order)):
            flagged = self._flag(order, Mark(op=order.id, boundary=boundary, result=result))
        self.planned = None
        return self._say(boundary=boundary, result=result, **flagged)

    def _foresee(self, end: SourcePosition, before: Boundary | None, state: RegistryState) -> None:
        order = state.open_mark(self.name)
        if order is None or before is None:
            return
        # what a driver knows of a batch under way
        settled = end == before.position
        boundary = Boundary(batch_id=before.batch_id + 1, position=end, previous=before.position, settled=settled)
        word = self.world.rules.foreseen(order, boundary, self._already(order))
        if word is not None:
            self.foreseen[order.id] = word

    def _already(self, order: MarkOrdered) -> Mark | None:
        if self.newest is None:
            return None
        return self.newest.barrier if order.switch is not None else self.newest.evidence

    @staticmethod
    def _flag(order: MarkOrdered, mark: Mark) -> dict[str, Any]:
        return {"evidence" if order.switch is None else "barrier": mark}

    def _rows(self, emitted: set[Ident], done: set[Ident]) -> list[tuple[int, Slot]]:
        new = sorted(emitted - done)
        if self.world.kind == "stream":
            return [(p % len(PARTITIONS), ((p, o), self.version)) for p, o in new]
        counts = Counter(self._key(i) for i in done)
        rows: list[tuple[int, Slot]] = []
        for ident in new:
            key = self._key(ident)
            counts[key] += 1
            if self.version == 2 and key == 3:
                continue  # a key that this version does not know
            gone = self.version == 1 and counts[key] % 4 == 0
            rows.append((key % len(PARTITIONS), (key, None if gone else (self.version, counts[key]))))
        return rows

    def _key(self, ident: Ident) -> int:
        return self.world.source.records[ident[0]][ident[1]][1]

    def _mark(self, op: str) -> Mark:
        assert self.newest is not None
        return Mark(op=op, boundary=self.newest.boundary, result=self.newest.result)

    def _say(self, **changes: Any) -> bool:
        if self.newest is None:
            self.progress.append(Progress(release=self.name, generation=1, token=1, at_ms=0, **changes))
        else:
            self.progress.append(self.newest.model_copy(update=changes))
        return True

    def upto(self, result: ResultPosition | None) -> list[Slot]:
        """Records of the result up to a position, in order per partition."""
        offsets = result.of(self.topic) if result else {}
        return [slot for p, end in offsets.items() for slot in self.log[p][:end] if slot is not None]


@dataclass(frozen=True)
class Evidence:
    """A diff of two results, not necessarily at one cut: its delta both ways, and how far each result was."""

    results: Mapping[str, ResultPosition]
    segments: Mapping[tuple[str, str], DeltaSegment]


@dataclass
class Operator:
    """Someone at a terminal. In memory: what it wrote of the delta in advance, and the switch that it is about to write."""

    op: str | None = None
    ahead: tuple[DeltaSegment, dict[Any, Any], ResultPosition] | None = None
    prepared: Switch | None = None

    def leave(self) -> None:
        """It is done with its operation, or gone."""
        self.op = self.ahead = self.prepared = None


class World:
    """All of it. Release 1 is live from the start; `versions` releases run."""

    def __init__(self, kind: Kind, rules_: Rules | None = None, versions: int = 3) -> None:
        self.kind: Kind = kind
        self.rules = rules_ or Rules()
        self.source = Source()
        self.now_ms = 1
        self.checked = 0
        self.entries: list[Entry] = []
        self.states: list[RegistryState] = [RegistryState()]
        self.drivers: dict[str, Driver] = {}
        for version in range(1, versions + 1):
            driver = Driver(self, version)
            self.drivers[driver.name] = driver
        self.deltas: dict[str, dict[int, list[Slot]]] = {}
        self.evidence: dict[str, Evidence] = {}
        self.operators = [Operator(), Operator()]
        self.followers: list[Follower] = []
        first = self.drivers[f"{ALIAS}.v1"]
        start = ResultPosition(topics={first.topic: dict.fromkeys(PARTITIONS, 0)})
        self._write([*_opening("op0", (first.name,), 10**9)])
        nothing: dict[str, Any] = {"old": None, "old_generation": None, "old_end": None}
        switch = Switch(number=1, **nothing, new=first.name, new_generation=1, new_start=start)
        self._write(rules.promotion(self.state, ALIAS, "op0", switch))
        self._write([Closed(id="op0", outcome="done")])

    @property
    def state(self) -> RegistryState:
        return self.states[-1]

    @property
    def chain(self) -> tuple[Switch, ...]:
        return self.state.chains[ALIAS]

    @property
    def live(self) -> Driver:
        return self.drivers[self.chain[-1].new]

    def topics(self, topic: str) -> Mapping[int, list[Slot]]:
        return self.deltas.get(topic) or next(d.log for d in self.drivers.values() if d.topic == topic)

    def _write(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.entries.append(entry)
            self.states.append(fold(self.state, [entry]))

    # -- operators and supervisor; each call is one step of the registry's only writer

    def operate(self, operator: Operator, candidate: str, reuse: bool = False) -> bool:
        """The operator's next step: adopts what is under way, or begins a switch to `candidate`.

        `reuse`: with the newest evidence that there is of the two releases, if there is one, however old.
        """
        if operator.op is None:
            underway = next((o.id for o in self.state.operations.values() if o.closed is None), None)
            operator.op = underway or self._begin(candidate, reuse)
            return operator.op is not None
        operation = self.state.operations[operator.op]
        if operator.prepared is not None:
            switch, operator.prepared = operator.prepared, None
            try:
                self._write(self.rules.promotion(self.state, ALIAS, operator.op, switch))
            except Refused:
                operator.leave()
            return True
        if operation.resolved:
            if operation.closed is None:
                self._write([Closed(id=operator.op, outcome="done" if operation.promoted else "failed")])
            operator.leave()
            return True
        assert operation.align is not None
        live, new = self.drivers[operation.align.other], self.drivers[operation.align.release]
        if operation.mark is None:
            return self._intend(operation, live, new)
        return self._prepare(operator, operation, live, new)

    def _begin(self, candidate: str, reuse: bool) -> str | None:
        live, new = self.live, self.drivers[candidate]
        if live is new or new.newest is None or live.newest is None:
            return None
        if self.state.blocking(live.name) or self.state.blocking(new.name):
            return None
        op = f"op{len(self.state.operations)}"
        known = [e for e in self.evidence.values() if (live.name, new.name) in e.segments] if reuse else []
        self.evidence[op] = known[-1] if known else self._compared(op, live, new)
        self._write(
            [
                *_opening(op, (live.name, new.name), self.now_ms + PATIENCE_MS * 3),
                AlignOrdered(id=op, release=new.name, other=live.name, switch=len(self.chain) + 1),
            ]
        )
        return op

    def _compared(self, op: str, live: Driver, new: Driver) -> Evidence:
        log = self.deltas.setdefault(op, {0: []})[0]
        segments = {}
        if self.kind == "table":
            for a, b in ((live, new), (new, live)):
                folds = [folded("table", d.upto(d.newest.result)) for d in (a, b) if d.newest]
                first = len(log)
                log += [*self.rules.changes(*folds).items()]
                segments[a.name, b.name] = DeltaSegment(topic=op, start=first, end=len(log))
        return Evidence(results={d.name: d.newest.result for d in (live, new) if d.newest}, segments=segments)

    def _intend(self, operation: Operation, live: Driver, new: Driver) -> bool:
        paused = new.newest.paused if new.newest else None
        past = paused.boundary.position if paused and paused.op == operation.id else new.promised.get(operation.id)
        if past is None:
            return False
        number, deadline_ms = len(self.chain) + 1, self.now_ms + PATIENCE_MS
        order = MarkOrdered(
            id=operation.id,
            release=live.name,
            past=past,
            switch=number,
            alias=ALIAS,
            deadline_ms=deadline_ms,
        )
        self._write([order])
        return True

    def write_ahead(self, operator: Operator) -> None:
        """Writes what the candidate's result says by now of the keys that it has touched: once for an operation."""
        operation = self.state.operations.get(operator.op or "")
        if self.kind != "table" or operation is None or operation.resolved or operator.ahead or operator.prepared:
            return
        assert operation.align is not None
        new = self.drivers[operation.align.release]
        assert new.newest is not None
        values = dict(self._since(operation.id, new, new.newest.result))
        if values:
            log = self.deltas.setdefault(operation.id, {0: []})[0]
            first = len(log)
            log += values.items()
            segment = DeltaSegment(topic=operation.id, start=first, end=len(log))
            operator.ahead = segment, values, new.newest.result

    def _since(self, op: str, driver: Driver, end: ResultPosition) -> list[tuple[Any, Any]]:
        """The records of a result from the evidence to `end`."""
        since = self.evidence[op].results[driver.name].of(driver.topic)
        return [
            slot
            for p, offset in end.of(driver.topic).items()
            for slot in driver.log[p][since[p] : offset]
            if slot is not None
        ]

    def _prepare(self, operator: Operator, operation: Operation, live: Driver, new: Driver) -> bool:
        assert live.newest and new.newest
        barrier, aligned = live.newest.barrier, new.newest.aligned
        if barrier is None or aligned is None or {barrier.op, aligned.op} != {operation.id}:
            return False
        delta = (
            self._delta(operator, operation.id, live, barrier.result, new, aligned.result)
            if self.kind == "table"
            else ()
        )
        operator.prepared = Switch(
            number=len(self.chain) + 1,
            old=live.name,
            old_generation=1,
            old_end=barrier.result,
            new=new.name,
            new_generation=1,
            new_start=aligned.result,
            delta=delta,
            cut=barrier.boundary.position,
        )
        return True

    def _delta(
        self, operator: Operator, op: str, live: Driver, old: ResultPosition, new: Driver, start: ResultPosition
    ) -> tuple[DeltaSegment, ...]:
        """Touch-ups, what was written ahead, the evidence's segment. What others wrote for nothing is just not named."""
        touched = {key for driver, end in ((live, old), (new, start)) for key, _ in self._since(op, driver, end)}
        written, ahead, read = operator.ahead or (None, {}, start)
        if not self.rules.holds_ahead(read, start):
            written, ahead = None, {}
        log = self.deltas.setdefault(op, {0: []})[0]
        first = len(log)
        log += [*self.rules.touch_ups(sorted(touched), folded("table", new.upto(start)), ahead).items()]
        last = DeltaSegment(topic=op, start=first, end=len(log))
        return tuple(s for s in (last, written, self.evidence[op].segments[live.name, new.name]) if s is not None)

    def candidate(self, turn: int) -> str:
        """One of the releases that are not live."""
        others = [name for name in self.drivers if name != self.live.name]
        return others[turn % len(others)]

    def overdue(self) -> None:
        """Time passes; the supervisor ends what is overdue."""
        self.now_ms += PATIENCE_MS + 1
        for entry in rules.expired(self.state, self.now_ms):
            if isinstance(entry, rules.SwitchAborted):
                self._write(self.rules.abortion(self.state, entry.id))
            else:
                self._write([entry])

    # -- to the end, without a crash

    def settle(self) -> None:
        """Everything catches up: open operations expire, the input is read, followers reach the tail."""
        for _ in range(4):
            self.overdue()
        for driver in self.drivers.values():
            driver.look()
            for _ in range(50):
                if not driver.turn(dict.fromkeys(PARTITIONS, 100), None):
                    break
        for follower in self.followers:
            for _ in range(3 * len(self.chain)):
                for reader in follower.members:
                    reader.look(True, True)
                    reader.read(1000)
                    reader.commit()

    # -- the laws

    def check(self) -> None:
        self._check_resolution()
        self._check_chain()
        for follower in self.followers:
            self._check_follower(follower)

    def _check_resolution(self) -> None:
        promoted = [e.op for e in self.entries if isinstance(e, rules.Promoted)]
        aborted = {e.id for e in self.entries if isinstance(e, rules.SwitchAborted)}
        law(len(promoted) == len(set(promoted)), f"an operation promoted twice: {promoted}")
        law(not aborted & set(promoted), f"promoted and aborted: {aborted & set(promoted)}")

    def _check_chain(self) -> None:
        for before, switch in zip(self.chain[self.checked :], self.chain[self.checked + 1 :], strict=False):
            if before is not None:
                law((switch.number, switch.old) == (before.number + 1, before.new), "the alias named two releases")
                assert switch.old is not None
                old, new = self.drivers[switch.old], self.drivers[switch.new]
                barrier = next(p.barrier for p in old.progress if p.barrier and p.barrier.op == self._op_of(switch))
                assert barrier is not None
                at = barrier.boundary
                complete = self.source.emitted(at.position, at.previous)
                for driver, result in ((old, switch.old_end), (new, switch.new_start)):
                    law(
                        folded(self.kind, driver.upto(result)) == self._recomputed(driver, complete),
                        f"switch {switch.number}: the result of {driver.name} is not complete to its cut",
                    )
        self.checked = len(self.chain) - 1

    def _op_of(self, switch: Switch) -> str | None:
        return next(e.op for e in self.entries if isinstance(e, rules.Promoted) and e.switch == switch)

    def _recomputed(self, driver: Driver, emitted: set[Ident]) -> Counter[Any] | dict[Any, Any]:
        if self.kind == "stream":
            return Counter(emitted)
        counts = Counter(self.source.records[p][o][1] for p, o in emitted)
        if driver.version == 2:
            counts.pop(3, None)
        return {k: (driver.version, n) for k, n in counts.items() if not (driver.version == 1 and n % 4 == 0)}

    def _check_follower(self, follower: Follower) -> None:
        for reader in follower.members:
            if reader.at is not None and reader.at.segment is None:
                self._check_not_past(reader.at)
        stored = [r.stored for r in follower.members]
        if all(s is not None and s.segment is None for s in stored):
            numbers = {s.number for s in stored if s}
            if len(numbers) == 1:
                driver = self.drivers[self.chain[numbers.pop() - 1].new]
                offsets = {p: o for s in stored if s for p, o in s.offsets.items()}
                right = folded(self.kind, driver.upto(ResultPosition(topics={driver.topic: offsets})))
                law(follower.folded() == right, f"a follower holds {follower.folded()} where {right} is right")
        self._check_no_step_back(follower)

    def _check_not_past(self, at: FollowerPosition) -> None:
        driver = self.drivers[self.chain[at.number - 1].new]
        ends: list[Mapping[int, int]] = []
        following = moves.link(self.chain, at.number + 1)
        if following is not None and following.old_end is not None:
            ends.append(following.old_end.of(at.topic))
        else:
            open_ = {o.id for o in self.state.operations.values() if not o.resolved}
            ends += [p.barrier.result.of(at.topic) for p in driver.progress if p.barrier and p.barrier.op in open_]
        for end in ends:
            past = {p: o for p, o in at.offsets.items() if o > end[p]}
            law(not past, f"a follower went past a barrier by itself: at {past}, barrier {end}")

    def _check_no_step_back(self, follower: Follower) -> None:
        if self.kind == "stream":
            twice = [key for key, times in follower.folded().items() if times > 1]
            law(not twice, f"delivered twice: {twice}")
            return
        newest: dict[Any, int] = {}
        for slot in follower.effect:
            if slot is not None and slot[1] is not None:
                key, (version, count) = slot
                law(newest.get((key, version), 0) <= count, f"key {key} of version {version} went back to {count}")
                newest[key, version] = count

    def check_settled(self) -> None:
        """After `settle`: every follower is at the tail of the live release and holds all of the input's result."""
        self.check()
        end = position(self.source.end())
        for follower in self.followers:
            for reader in follower.members:
                if self.live.newest is None:
                    continue
                assert reader.at is not None
                law(reader.at.number == len(self.chain), f"a follower is left behind at switch {reader.at.number}")
            if self.live.newest is not None:
                right = self._recomputed(self.live, self.source.emitted(end, end))
                law(follower.folded() == right, f"in the end a follower holds {follower.folded()}, right is {right}")


def _opening(op: str, releases: tuple[str, ...], deadline_ms: int) -> list[Entry]:
    return [Opened(id=op, name="promote", releases=releases, alias=ALIAS, deadline_ms=deadline_ms)]


def planted(**changes: Any) -> Rules:
    """The rules with a defect."""
    return replace(Rules(), **changes)
