"""`LiveConsumer`: yields the live release's results, and follows the alias from switch to switch."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any

from confluent_kafka import Message

from pipelines.errors import BadUsage, Refused, SwitchyardError, Unavailable
from pipelines.follow.control import Control
from pipelines.follow.data import DataReader
from pipelines.follow.group import read_commits, to_commit
from pipelines.follow.moves import (
    AFRESH,
    SOLE,
    Deliver,
    Enter,
    FollowerPosition,
    Member,
    Phase,
    Wait,
    earlier_segments,
    link,
    narrowed,
    next_move,
    oldest,
    results_of,
    start,
    topic_of,
)
from pipelines.follow.same import SameTopics
from pipelines.kafka.client import admin, require_broker
from pipelines.kafka.offsets import end_of
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import partition_count, topic_names
from pipelines.model.entries import DeltaSegment, FollowerRegistered, Switch
from pipelines.model.names import REGISTRY_TOPIC, REPLAY, RESULT, is_group_name, progress_topic, result_of
from pipelines.model.parts import Loss
from pipelines.model.registry import RegistryState
from pipelines.settings import Settings, get_settings

_log = logging.getLogger(__name__)

# longest wait before looking at what the other members have committed
_MEMBERS_S = 0.05
_LONGEST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """A record of an alias. `value` None: the key was deleted from the table."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    offset: int
    release: str
    # the Avro schema of its value; None: it is JSON
    schema: str | None
    # of its key and its value, column -> Spark type; the same object for all records of the release
    columns: Mapping[str, str]
    # `position` is computed on demand: few callers ask for it, and this object exists once per record
    _phase: FollowerPosition
    _offsets: dict[int, int]

    @property
    def topic(self) -> str:
        return self._phase.topic

    @property
    def number(self) -> int:
        """Number of the switch in the alias's chain."""
        return self._phase.number

    @property
    def replay(self) -> bool:
        """Whether an earlier generation or release had already processed its event, so that consumers may know the
        record.
        """
        return any(name == REPLAY for name, _ in self.headers)

    @property
    def phase(self) -> Phase:
        """`delta` if a switch changed the table here, else `result`."""
        return self._phase.phase

    @property
    def position(self) -> FollowerPosition:
        """The position after this record. Stored together with the record's effect, it gives exactly once."""
        return _moved(self._phase, self._offsets)


class LiveConsumer:
    """Follows `alias` for the consumer group `group`: every result once, across switches, restarts and missed switches.

    It starts where the group has committed. A new group starts at the first offsets of the newest release, or with
    `earliest=True` of the oldest release from which all results and deltas are still kept. `start`: a position that was
    stored with the effects, used instead of the group's.

    `member=(index, count)`: one of several. Each owns the partitions p with p % count == index; member 0 delivers the
    deltas. No member enters a new result before all have committed the old one up to the cut, so commit also when
    `poll` returns None. `register=False`: `retire` may delete results that this follower still needs.

    `result`: which one, if the app has several. Give the followers of each a group of their own.

    Exactly once needs the position stored together with the effect; `commit` after the effect gives at least once.
    Raises BadUsage for an unknown alias, SwitchyardError if it has no live release, Unavailable without a broker. If
    the broker goes away later, it waits. If the registry is deleted and recreated, `poll` raises AnotherRegistry within
    10 s. For a recreated result or delta that it still has to read, it raises SwitchyardError.
    """

    def __init__(
        self,
        alias: str,
        *,
        group: str,
        result: str | None = None,
        settings: Settings | None = None,
        start: FollowerPosition | Mapping[str, Any] | str | None = None,
        earliest: bool = False,
        member: tuple[int, int] = (0, 1),
        register: bool = True,
    ) -> None:
        self.alias = alias
        self.group = group
        self.result = result
        self._settings = settings or get_settings()
        self._member = _member(member)
        self._earliest = earliest
        require_broker(self._settings)
        if partition_count(self._settings, REGISTRY_TOPIC) is None:
            raise _unknown(alias, RegistryState())
        self._admin = admin(self._settings)
        # before the registry is read
        self._same = SameTopics(self._settings, self._admin)
        self._control = Control(self._settings, alias)
        self._data = DataReader(self._settings, group)
        # records that may be delivered; a mapping holds the offsets reached once all before it is delivered
        self._ready: deque[Message | dict[int, int]] = deque()
        # where the current phase was entered, and the offsets since
        self._phase: FollowerPosition | None = None
        self._offsets: dict[int, int] = {}
        self._release = ""
        self._schema: str | None = None
        self._columns: Mapping[str, str] = {}
        self._skip: set[bytes | None] = set()
        # the alias's chain, and what it is for the result that is followed
        self._chains: tuple[tuple[Switch, ...], tuple[Switch, ...]] = (), ()
        self._uncommitted = False
        try:
            self._begin(start, register)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LiveConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[LiveRecord]:
        """Records forever. In a group of several members use `poll`, and commit when it returns None."""
        while True:
            record = self.poll(_LONGEST_WAIT_S)
            if record is not None:
                yield record

    def close(self) -> None:
        self._data.close()
        self._control.close()

    @property
    def position(self) -> FollowerPosition | None:
        """The position after the last yielded record; None as long as member 0 of the group has not started."""
        return None if self._phase is None else _moved(self._phase, self._offsets)

    def commit(self, position: FollowerPosition | None = None) -> None:
        """Commits the follower's position, or the earlier `position`, as the group's offsets: one commit.

        Raises Unavailable if the broker doesn't take it now, SwitchyardError if it never will, Refused without the ACL.
        """
        here = self.position
        chosen = position or here
        if chosen is not None:
            self._data.commit(to_commit(chosen))
            self._uncommitted = self._uncommitted and chosen != here

    def poll(self, timeout_s: float) -> LiveRecord | None:
        """The next record; None if none may be delivered within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            record = self._pop()
            if record is not None:
                return record
            left_s = deadline - time.monotonic()
            try:
                self._advance(max(0.0, left_s))
            except Unavailable as error:
                _log.warning("%s; waiting for it", error.what)
                time.sleep(min(max(0.0, left_s), _LONGEST_WAIT_S))
            if left_s <= 0 and not self._ready:
                return None

    # -- one step

    def _pop(self) -> LiveRecord | None:
        here = self._phase
        while self._ready and here is not None:
            item = self._ready.popleft()
            if isinstance(item, dict):
                self._offsets = {**self._offsets, **item}
                continue
            partition, offset, key = item.partition() or 0, item.offset() or 0, item.key()
            # never changed in place: records share it
            self._offsets = offsets = {**self._offsets, partition: offset + 1}
            if here.segment is not None and (key in self._skip or not self._is_mine(item)):
                continue
            self._uncommitted = True
            return LiveRecord(key, item.value(), _headers(item), partition, offset, self._release, self._schema,
                              self._columns, here, offsets)  # fmt: skip
        return None

    def _advance(self, timeout_s: float) -> None:
        """Makes records ready, or moves to the next phase, or waits up to `timeout_s` for either."""
        self._same.look(sure=False)
        if self._same.has_other_progress:
            self._follow_new_progress()
        self._control.poll(0)
        here = self.position
        if here is None:
            self._join(timeout_s)
            return
        state, chain = self._control.state, self._chain()
        several = self._member.count > 1 and link(chain, here.number + 1) is not None
        commits = read_commits(self._settings, self.group, self.alias) if several else None
        reads = state.releases.get(self._release)
        move = next_move(
            here,
            chain,
            self._control.progress,
            state.known_operations,
            ended=reads.end_of(here.topic) if reads else None,
            member=self._member,
            commits=commits,
        )
        match move:
            case Deliver(upto=upto):
                self._same.look(sure=True)
                self._refuse_another(here)
                batch = self._data.read(upto, min(timeout_s, _MEMBERS_S))
                self._ready += batch.messages
                if batch.reached:
                    self._ready.append(batch.reached)
            case Enter(position=position):
                self._go(position, chain)
                if not self._uncommitted:
                    self.commit()
            case Wait(reason="members"):
                # this member has nothing to do before the others are done; commit, so that they see it
                if not self._uncommitted:
                    self.commit()
                self._control.poll(min(timeout_s, _MEMBERS_S))
            case Wait(reason="registry"):
                self._control.sync()
            case Wait():
                self._control.poll(min(timeout_s, _LONGEST_WAIT_S))

    def _go(self, position: FollowerPosition, chain: tuple[Switch, ...]) -> None:
        switch = link(chain, position.number)
        if switch is None:
            raise SwitchyardError(
                f"the position is at switch {position.number} of alias {self.alias}, which has {len(chain)}",
                fix=f"the position comes from another cluster: {AFRESH}",
            )
        # set the position last: without a broker any of these calls may fail, and is made again
        skip = self._keys_before(position, chain, switch)
        release = self._control.state.releases.get(switch.new)
        watched = switch.new if position.segment is None else None
        self._same.begin(
            position.topic,
            release.own_ids.get(position.topic) if release else None,
            progress_topic(watched) if watched else None,
        )
        if position.segment is not None:
            self._refuse_short(switch.delta[position.segment])
        self._data.assign(position.topic, position.offsets)
        self._control.watch(watched)
        self._skip, self._phase, self._offsets, self._release = skip, position, position.offsets, switch.new
        result = release.spec.outputs[self.result or ""] if release is not None else None
        self._schema = result.avro if result is not None else None
        self._columns = MappingProxyType(result.written if result is not None else {})

    def _follow_new_progress(self) -> None:
        """Reads the progress topic that replaced a lost one, with new clients. Raises Unavailable; the next step tries
        again.
        """
        self._control.reconnect()
        here = self._phase
        self._control.watch(self._release if here is not None and here.segment is None else None)
        self._same.forget_progress()

    def _refuse_another(self, here: FollowerPosition) -> None:
        """Raises SwitchyardError if the topic was recreated, unless the follower has read all of the old one."""
        if self._same.is_another and here.segment is not None:
            raise _lost_delta(here.topic)
        if self._same.is_another:
            lost = Loss(release=self._release, part="result", name=here.topic, how="another")
            raise SwitchyardError(lost.what, fix=f"{lost.way}; then {AFRESH}")

    def _keys_before(self, position: FollowerPosition, chain: tuple[Switch, ...], switch: Switch) -> set[bytes | None]:
        """The keys of the delta segments before that of `position`. They are read again, because a restart forgets
        them.
        """
        keys: set[bytes | None] = set()
        for index in earlier_segments(position, chain):
            segment = switch.delta[index]
            self._data.assign(segment.topic, {0: segment.start})
            reached = segment.start
            while reached < segment.end:
                batch = self._data.read({0: segment.end}, _LONGEST_WAIT_S)
                if not batch.messages and not batch.reached:
                    self._refuse_short(segment)
                keys.update(m.key() for m in batch.messages if self._is_mine(m))
                reached = batch.reached.get(0, reached)
        return keys

    def _refuse_short(self, segment: DeltaSegment) -> None:
        """Raises SwitchyardError if a delta's topic is gone, or ends before the segment does: the rest would never arrive."""
        self._data.partitions(segment.topic)
        end = end_of(self._settings, segment.topic, 1, committed=False, client=self._admin)[0]
        if end < segment.end:
            raise _lost_delta(segment.topic)

    def _chain(self) -> tuple[Switch, ...]:
        """The alias's chain, for the result that is followed."""
        now = self._control.state.chains[self.alias]
        if now is not self._chains[0]:
            self._chains = now, narrowed(now, self.result or "")
        return self._chains[1]

    def _is_mine(self, message: Message) -> bool:
        """Whether a delta's record belongs to the result that is followed."""
        return not self.result or (RESULT, self.result.encode()) in _headers(message)

    # -- the start

    def _begin(self, stored: FollowerPosition | Mapping[str, Any] | str | None, register: bool) -> None:
        state = self._control.sync()
        if not state.chains.get(self.alias):
            raise _unknown(self.alias, state)
        if register and self.group not in state.followers.get(self.alias, ()):
            self._register()
            state = self._control.sync()
        self.result = _result(self.alias, self.result, state)
        if self.result:
            self._refuse_shared_group()
        chain = self._chain()
        if stored is None:
            self._join(0.0)
            return
        position = _stored(stored)
        if position.alias != self.alias:
            raise BadUsage(
                f"the stored position is of alias {position.alias}, not of {self.alias}",
                fix="give the position that was stored for this alias",
            )
        if position.result != self.result:
            raise BadUsage(
                f"the stored position is of result {position.result}, not of {self.result}",
                fix="give the position that was stored for this result",
            )
        self._go(position, chain)

    def _refuse_shared_group(self) -> None:
        """Raises BadUsage if the group follows another result of the app: what one follower commits of a delta would
        count for both.
        """
        commits = read_commits(self._settings, self.group, self.alias)
        other = {result_of(topic) or c.result for topic, found in commits.items() for c in found.values()} - {
            self.result
        }
        if other:
            raise BadUsage(
                f"group {self.group} already follows result {', '.join(sorted(other))} of {self.alias}",
                fix="give the followers of each result a group of their own",
            )

    def _register(self) -> None:
        """Raises Refused if this user may not write the registry; a follower doesn't need that right otherwise."""
        if not is_group_name(self.group):
            raise BadUsage(f"{self.group!r} can't be a follower's group", fix="use text without control characters")
        with Registry(self._settings) as registry:
            try:
                registry.step(
                    lambda state: (
                        []
                        if self.group in state.followers.get(self.alias, ())
                        else [FollowerRegistered(alias=self.alias, group=self.group)]
                    )
                )
            except Refused as error:
                raise Refused(
                    f"{self.group} is not registered as a follower of {self.alias}, and has no right to register itself: {error.what}",
                    fix=f"ask an operator to run `switchyard register-follower {self.alias} {self.group}`, or follow with "
                    "register=False: then `retire` may delete results that it still needs",
                ) from error

    def _join(self, timeout_s: float) -> None:
        """Starts where the group says; waits a little if member 0 has not started."""
        chain = self._chain()
        commits = read_commits(self._settings, self.group, self.alias)
        first = oldest(chain, topic_names(self._settings, client=self._admin)) if self._earliest else None
        position = start(self.alias, commits, chain, self._partitions, self._member, first=first)
        if position is None:
            self._control.poll(min(timeout_s, _MEMBERS_S))
            return
        self._go(position, chain)
        if self._member.count > 1:
            self.commit()

    def _partitions(self, switch: Switch) -> int:
        topic = topic_of(switch)
        partitions = self._data.partitions(topic)
        if self._member.count > partitions:
            raise BadUsage(
                f"{self._member.count} members for the {partitions} partitions of {topic}",
                fix=f"use at most {partitions} members",
            )
        return partitions


def _result(alias: str, asked: str | None, state: RegistryState) -> str:
    """The result to follow. Raises BadUsage if there is no result of that name, or if the app has several and none is
    named.
    """
    names = results_of(state.chains[alias][-1:])
    if asked in names or (asked is None and len(names) == 1):
        return asked or names[0]
    if names == [""]:
        raise BadUsage(
            f"{alias} has only one result, which has no name", fix="leave out the name of the result (--result)"
        )
    known = ", ".join(names)
    if asked is None:
        raise BadUsage(f"{alias} has several results: {known}", fix=f"name one, as in --result {names[0]}")
    raise BadUsage(f"{alias} has no result {asked}", fix=f"its results are: {known}")


def _moved(phase: FollowerPosition, offsets: dict[int, int]) -> FollowerPosition:
    return phase.model_copy(update={"offsets": dict(offsets)})


def _headers(message: Message) -> tuple[tuple[str, bytes | None], ...]:
    # headers of a read message are a list of pairs; the client's types also allow what can be written
    found: Any = message.headers()
    return tuple(found or ())


def _member(given: tuple[int, int]) -> Member:
    index, count = given
    if count < 1 or not 0 <= index < count:
        raise BadUsage(f"there is no member {index} of {count}", fix="members are numbered from 0: (0, 2) and (1, 2)")
    return SOLE if count == 1 else Member(index, count)


def _stored(given: FollowerPosition | Mapping[str, Any] | str) -> FollowerPosition:
    if isinstance(given, FollowerPosition):
        return given
    try:
        data = json.loads(given) if isinstance(given, str) else dict(given)
        return FollowerPosition.model_validate(data)
    except ValueError as error:
        raise BadUsage(
            f"this is not a follower's position: {error}", fix="store `position.model_dump_json()`"
        ) from error


def _lost_delta(topic: str) -> SwitchyardError:
    return SwitchyardError(
        f"delta {topic}, which takes the follower from one result to the next, "
        "was deleted and recreated under the same name",
        fix=f"its records can't be restored: {AFRESH}",
    )


def _unknown(alias: str, state: RegistryState) -> SwitchyardError:
    releases = [r.name for r in state.of_app(alias)]
    if releases:
        return SwitchyardError(
            f"alias {alias} has no live release yet; staged: {', '.join(releases)}",
            fix=f"promote one: `switchyard promote {alias} --execute`",
        )
    known = sorted(state.chains)
    return BadUsage(
        f"{alias} has no release",
        fix=f"the apps with a live release are: {', '.join(known)}"
        if known
        else "`switchyard reprocess APP --execute`, then `switchyard approve ID --execute`, make a release live",
    )
