"""Waits until a release has caught up, and records that it is ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestration.operations.context import Context
from orchestration.operations.lifecycle import after_failure, find_release, live_release
from orchestration.operations.looking.history import history_of
from orchestration.operations.planning.reset.refusals import refuse_over
from orchestration.operations.procedures.accept import accept_now
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.progress import ProgressLost
from pipelines.model.entries import Entry, ReadyRecorded, StateSet
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import RegistryState, Release
from pipelines.model.text import counted


def _measured_rate(release: Release) -> float | None:
    """The records per second that a release reached while it hydrated; None: not measured. After that it only keeps up."""
    return release.ready.rate if release.ready else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hydration:
    """How far a release is. `eta_s`: seconds to the current end of the input, at the current rate; None: unknown.

    `busy`: what its driver does before it has read anything, such as `its driver is starting`; None: it has read something.
    `error`: the error after which its driver tries again. `late_dropped`, `dead_lettered`: since its generation started.
    """

    release: str
    position_records: int
    total_records: int
    records_per_s: float
    unread_records: int | None
    eta_s: float | None
    done: bool
    busy: str | None = None
    error: str | None = None
    late_dropped: int = 0
    dead_lettered: int = 0

    @property
    def left_out(self) -> str | None:
        """Input that is in no result, in words, with the command that shows more; None: there is none."""
        late = f"dropped {counted(self.late_dropped, 'late row')}" if self.late_dropped else ""
        dead = f"wrote {counted(self.dead_lettered, 'dead letter')}" if self.dead_lettered else ""
        if not late and not dead:
            return None
        shows = (
            f"`switchyard dead-letters {self.release}` shows {'the dead letters' if late else 'them'}" if dead else ""
        )
        shows = shows or f"`switchyard status {self.release}` shows how many there are by now"
        return f"{self.release} {' and '.join(filter(None, (late, dead)))}; {shows}"


class CaughtUp:
    """Judges from heartbeats whether a release has caught up, and stayed caught up for `for_s` seconds.

    It has caught up if the newest batch left at most `unread_records` of the records that were there when it was planned.
    That holds for one moment only. It has stayed caught up if a later batch says the same, or if no more than
    `unread_records` are left to read now.
    """

    def __init__(self, *, unread_records: int, for_s: float) -> None:
        self._may_leave = unread_records
        self._for_s = for_s
        # when it had caught up, and by which batch
        self._since: tuple[float, int] | None = None

    def lost(self) -> None:
        """Starts over, because the driver sends no heartbeats."""
        self._since = None

    def by(self, beat: Heartbeat, unread_records: int | None, now_s: float) -> bool:
        """Whether the release has stayed caught up, by this heartbeat, heard at `now_s`."""
        # while a batch is retried, the figures are those of the last good batch
        tells = beat.state == "running" and beat.error is None and beat.batch_id >= 0 and unread_records is not None
        if not tells or (unread_records or 0) > self._may_leave:
            self._since = None
            return False
        if self._since is None:
            self._since = (now_s, beat.batch_id)
        since_s, batch_id = self._since
        if now_s - since_s < self._for_s:
            return False
        nothing_more = beat.lag_records is not None and beat.lag_records <= self._may_leave
        return nothing_more or self._for_s == 0 or beat.batch_id > batch_id


def wait_ready(
    context: Context,
    name: str,
    *,
    unread_records: int = 0,
    for_s: float = 10.0,
    timeout_s: float = 3600.0,
    accept_missing: bool = False,
    on_progress: Callable[[Hydration], None] = lambda _: None,
) -> Hydration:
    """Waits until a release has caught up and stayed so for `for_s` seconds, as `CaughtUp` judges; then sets it to
    ready.

    Raises SwitchyardError if the release fails, stops, dropped more late rows than the live release, or has not caught
    up within `timeout_s` seconds; Refused if it is stopped, and nothing is going to start it; MissingHistory if it lacks
    input that the live release has read, unless that was accepted before, or `accept_missing` accepts it now.
    """
    state = context.state_for_planning()
    release = find_release(state, name)
    accept_now(context, history_of(context, state, release), accept=accept_missing)
    found, beat, fastest = _until_caught_up(
        context,
        release,
        CaughtUp(unread_records=unread_records, for_s=for_s),
        timeout_s=timeout_s,
        on_progress=on_progress,
    )
    _late_drops(context, state, release)
    # retention may have deleted more input in the meantime
    state = context.registry.state()
    history_of(context, state, state.releases[release.name]).require(accept=False)
    facts = {
        "unread_records": found.unread_records,
        "late_dropped": beat.total.late_dropped,
        "rows_in": beat.total.rows_in,
        "records_per_s": round(fastest),
    }

    def decide(s: RegistryState) -> list[Entry]:
        ready = ReadyRecorded(release=release.name, generation=release.generation, facts=facts, via=context.via)
        entries: list[Entry] = [ready]
        if s.releases[release.name].state in ("hydrating", "staged"):
            entries.append(StateSet(release=release.name, state="ready"))
        return entries

    context.registry.step(decide)
    if found.left_out is not None:
        context.say(found.left_out)
    return found


def _until_caught_up(
    context: Context,
    release: Release,
    caught_up: CaughtUp,
    *,
    timeout_s: float,
    on_progress: Callable[[Hydration], None],
) -> tuple[Hydration, Heartbeat, float]:
    """How far the release is when it has caught up, the heartbeat that says so, and its best rate in records per
    second.
    """
    began = context.monotonic()
    again = release.ready is not None and release.ready.generation == release.generation
    fastest = (_measured_rate(release) or 0.0) if again else 0.0
    trouble: str | None = None
    while True:
        now = context.monotonic()
        if now - began > timeout_s:
            raise SwitchyardError(
                f"{release.name} has not caught up within {timeout_s:g} s",
                fix=f"run `switchyard wait {release.name}` again, with a longer --timeout; see `switchyard status {release.name}`",
            )
        beats = context.beats(30)
        beat = beats.get(release.name)
        state = context.registry.state()
        current = state.releases[release.name]
        if current.state == "failed":
            raise SwitchyardError(f"{release.name} failed: {current.failure}", fix=after_failure(current))
        # the heartbeat of an earlier driver says nothing about now
        heard = beat is not None and beat.token == current.token
        holder = context.holder_by(current, beats) if heard else None
        trouble = beat.error if beat is not None else trouble
        if beat is None or holder is None or beat.state in ("failed", "stopped"):
            caught_up.lost()
            _refuse_stopped(state, current)
            if now - began > context.settings.boot_timeout_s:
                raise SwitchyardError(
                    f"{release.name} isn't running" + (f": {trouble}" if trouble else ""),
                    fix=f"`switchyard start {release.name} --execute`",
                )
        else:
            found = _hydration(current, beat)
            fastest = max(fastest, beat.best_records_per_s)
            on_progress(found)
            if caught_up.by(beat, found.unread_records, now):
                return found, beat, fastest
        context.sleep(0.25)


def _refuse_stopped(state: RegistryState, release: Release) -> None:
    """Raises Refused for a release without a driver that nobody is going to start. An operation under way might."""
    refuse_over(release)
    if release.wanted == "stopped" and state.blocking(release.name) is None:
        raise Refused(
            f"{release.name} isn't running, and nobody has asked it to run",
            fix=f"`switchyard start {release.name} --execute`, then wait again",
        )


def _hydration(release: Release, beat: Heartbeat) -> Hydration:
    lag = beat.lag_records or 0
    done = beat.total.rows_in
    rate = beat.processed_records_per_s
    return Hydration(
        release=release.name,
        position_records=done,
        total_records=done + lag,
        records_per_s=rate,
        # if the batch does not say, the lag: it is never less than what the batch left
        unread_records=beat.lag_records if beat.behind_records is None else beat.behind_records,
        eta_s=lag / rate if rate > 0 else None,
        done=beat.lag_records == 0,
        busy=_busy(beat),
        error=beat.error,
        late_dropped=beat.total.late_dropped,
        dead_lettered=beat.total.dead_lettered,
    )


def _busy(beat: Heartbeat) -> str | None:
    if beat.state == "starting":
        return "its driver is starting"
    if beat.state == "running" and beat.batch_id < 0 and beat.lag_records:
        return "its first batch is under way"
    return None


def _late_drops(context: Context, state: RegistryState, release: Release) -> None:
    live = live_release(state, release.spec.app)
    if live is None or live is release:
        return
    try:
        theirs = context.progress(live.name)
    except ProgressLost as error:
        context.say(f"{error.what}: how many late rows it dropped is unknown")
        return
    ours = context.progress(release.name)
    if theirs and ours and ours.total.late_dropped > theirs.total.late_dropped:
        raise SwitchyardError(
            f"{release.name} dropped {ours.total.late_dropped:,} late rows, more than the live release {live.name}, which dropped {theirs.total.late_dropped:,}",
            fix=f"the partitions of its input cover different times; larger batches drop fewer rows: raise SWITCHYARD_MAX_RECORDS_PER_BATCH, then `switchyard reset {release.name} --to-earliest --stop --execute`",
        )
