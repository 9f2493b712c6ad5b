"""One turn of a supervisor: starts releases that are down, replaces drivers that hang, gives up on those that keep
dying.

The command `switchyard supervise` and Dagster's sensor are shells around it. Several supervisors do no harm: whichever
driver gets the lease runs the release, and each entry written here is checked against the token that it was decided on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException

from orchestration.local.presence import say_gone, say_present
from orchestration.local.process import ProcessRef
from orchestration.local.running import Running, running_with
from orchestration.operations.context import Context
from orchestration.operations.looking.parts import belongs_elsewhere
from orchestration.operations.looking.unread import unread_progress
from orchestration.operations.planning.run import plan_start
from orchestration.operations.reading import Say
from orchestration.operations.supervising.alerts import Alert, DriverHung, GivenUp, ReleaseFailed, Send
from orchestration.operations.supervising.decide import (
    Memory,
    decide,
    unreadable,
    unreadable_heartbeats,
    unreadable_progress,
)
from orchestration.operations.supervising.overview import ReleaseStatus, statuses
from pipelines.engine.lease import is_alive, this_process
from pipelines.errors import BadUsage, SwitchyardError
from pipelines.model.entries import Entry, LeaseEnded, LeaseTaken, StateSet
from pipelines.model.names import HEARTBEATS_TOPIC
from pipelines.model.parts import AnotherRegistry
from pipelines.model.registry import RegistryState, Release
from pipelines.model.text import visible
from pipelines.settings import Settings
from pipelines.signals import StopSignal

log = logging.getLogger(__name__)

# how much of a driver's log an alert shows
_LOG_LINES = 12
_LOG_BYTES = 8_192
_LOG_CHARS = 2_000


Start = Callable[[str], None]
Tell = Callable[[Alert], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a turn found, and the releases that it started."""

    found: Sequence[ReleaseStatus]
    state: RegistryState
    started: tuple[str, ...]


def turn(
    context: Context,
    memory: Memory,
    *,
    alert: Send,
    start: Start | None = None,
    elsewhere: Collection[str] = (),
    now: Callable[[], int] | None = None,
) -> Turn:
    """One turn. Raises Unavailable without a broker; `memory` then counts the silence of drivers from zero again.

    `start`: starts a release, and may raise SwitchyardError; by default it launches the driver here. `elsewhere`:
    releases that something else is starting.

    If the topic of heartbeats was deleted, the turn only creates it again. Otherwise:

    1. Ends operations past their deadline. 2. Fences and kills drivers that hang. 3. Starts releases that are wanted
    running and that nobody runs. 4. Sets releases to failed that were started too often. Registry entries that can't be
    read here are alerted once, and so is a progress record; the turn does not touch the releases that they hold, nor those of
    another host. All alerts are sent at the end, also if the turn fails.
    """
    alerts: list[Alert] = []
    try:
        return _turn(context, memory, alert=alerts.append, start=start, elsewhere=elsewhere, now=now)
    finally:
        # a webhook may be slow
        if alerts:
            alert(*alerts)


def _turn(
    context: Context,
    memory: Memory,
    *,
    alert: Tell,
    start: Start | None,
    elsewhere: Collection[str],
    now: Callable[[], int] | None,
) -> Turn:
    say_present(context.settings)
    try:
        found = statuses(context, parts=False)
    except SwitchyardError:
        memory.silent = {}
        raise
    state = context.registry.known
    for alarm in (unreadable(memory, state), unreadable_heartbeats(memory, context.registry.heartbeats.unread)):
        if alarm is not None:
            alert(alarm)
    unheard = any(s.beat is None and s.release.wanted == "running" for s in found)
    if unheard and context.registry.ensure_heartbeats():
        # until now nobody could be heard, whoever runs
        memory.silent = {}
        context.say(f"the topic {HEARTBEATS_TOPIC} was deleted; it was created again, empty")
        return Turn(found=found, state=state, started=())
    down = [s.release for s in found if s.health == "down"]
    unread = {name: error.in_one_line for name, error in unread_progress(context, down).items()}
    for progress_unread in unreadable_progress(memory, unread):
        alert(progress_unread)
    processes = _drivers(context) if any(s.health == "down" for s in found) else []
    decision = decide(
        memory,
        found,
        living=_held_by(found, alive=True),
        unknown=_held_by(found, alive=None),
        booting={*elsewhere, *_booting(context, found, processes)},
        now=(now or context.now_ms)(),
        limit=context.settings.restart_limit,
        room=max(2, os.cpu_count() or 1),
        held={
            *(name for name in state.releases if state.not_understood(name) is not None),
            *_of_other_hosts(context, memory, found),
            *unread,
        },
    )
    # before anything that may fail: the memory already knows of them
    for name in set(decision.failed) - set(decision.give_up):
        release = context.registry.known.releases[name]
        alert(ReleaseFailed(release=name, failure=release.failure, log=last_lines(context, name)))
    for name in decision.hung:
        _replace(context, name, processes, alert)
    started = tuple(name for name in decision.start if _start(context, memory, name, start or launcher(context)))
    for name in decision.give_up:
        _give_up(context, memory, name, alert)
    return Turn(found=found, state=context.registry.known, started=started)


def _of_other_hosts(context: Context, memory: Memory, found: Sequence[ReleaseStatus]) -> list[str]:
    """The releases that are down and belong to another host. Its supervisor starts them; here they would fail."""
    names = [s.release.name for s in found if s.health == "down" and belongs_elsewhere(context, s.release)]
    settings = context.settings
    store = settings.store_dir if settings.bucket is None else settings.bucket.url
    for name in names:
        if name not in memory.of_other_hosts:
            context.say(
                f"{name} should run, but has no driver, and its frozen code or its state is not in {store}: "
                "the supervisor of its host starts it"
            )
    memory.of_other_hosts = names
    return names


def launcher(context: Context) -> Start:
    """A function that starts a release's driver on this host, if its inputs still hold what it needs."""

    def start(name: str) -> None:
        plan_start(context, name)
        try:
            where = context.launcher.launch(name)
        except OSError as error:
            raise SwitchyardError(
                f"the driver of {name} can't be started: {error}",
                fix="see the limits of this machine: processes, memory, disk",
            ) from error
        context.say(f"driver of {name}: {where}")

    return start


def take_turns(
    settings: Settings,
    open_: Callable[[], Context],
    *,
    stopped: StopSignal,
    every_s: float,
    alert: Send,
    say: Say,
) -> None:
    """Does a turn every `every_s` seconds until `stopped` is set. Drivers keep running after that. Without Kafka it
    waits, and says so once.

    Raises BadUsage for wrong settings.
    """
    memory, context, trouble, mistake = Memory(), None, "", ("", "")
    try:
        while not stopped.is_set():
            try:
                context = context or open_()
                turn(context, memory, alert=alert)
                if trouble:
                    say("Kafka answers again")
                trouble, mistake = "", ("", "")
            except BadUsage:
                raise
            except (SwitchyardError, KafkaException) as error:
                what, fix = (error.what, error.fix) if isinstance(error, SwitchyardError) else (str(error), "")
                if what != trouble:
                    say(f"no release is supervised until this is fixed: {what}" + (f"; {fix}" if fix else ""))
                trouble, memory.silent = what, {}
                if isinstance(error, AnotherRegistry):
                    # the memory belongs to the old registry
                    memory = Memory()
                if context is not None:
                    context.registry.close()
                context = None
            except Exception as error:
                # a bug, or trouble of this machine: the supervisor must survive it
                before, mistake = mistake, (type(error).__name__, str(error))
                if mistake != before:
                    log.exception("a turn of the supervisor failed; it tries again")
            stopped.wait(every_s)
    finally:
        say_gone(settings)
        if context is not None:
            context.registry.close()


def bring_up(context: Context, *, timeout_s: float, alert: Send) -> list[ReleaseStatus]:
    """Starts every release that should run, as a supervisor does, and waits until each runs.

    Returns the releases that should run here, as they are then. After `timeout_s` seconds some may still not run;
    failed ones do not run either.
    """
    memory, deadline = Memory(), context.monotonic() + timeout_s
    try:
        while True:
            found = turn(context, memory, alert=alert).found
            wanted = [
                s
                for s in found
                if s.release.wanted == "running"
                and s.release.state != "retired"
                and s.release.name not in memory.of_other_hosts
            ]
            if all(s.health not in ("down", "starting") for s in wanted) or context.monotonic() > deadline:
                return wanted
            context.sleep(1.0)
    finally:
        say_gone(context.settings)


def last_lines(context: Context, name: str) -> str:
    """The last lines of the log of a release's driver, with control characters escaped; empty if it is not on this
    machine.
    """
    try:
        path = context.launcher.log_path(name)
        if path is None or not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    except (OSError, SwitchyardError) as error:
        # for example a link, or another user's file: the alert goes out without it
        log.warning("the log of %s can't be read: %s", name, error)
        return ""
    return visible("\n".join(lines), lines=True)[-_LOG_CHARS:]


def _start(context: Context, memory: Memory, name: str, start: Start) -> bool:
    attempt = memory.attempt(name)
    count = attempt.count if attempt is not None else 1
    context.say(
        f"{name} should run, but has no driver; starting one, attempt {count} of {context.settings.restart_limit}"
    )
    try:
        start(name)
    except SwitchyardError as error:
        memory.trouble[name] = error.what
        context.say(f"{name} could not be started: {error}")
        return False
    except Exception as error:
        # one release's trouble must not keep the others from being started
        log.exception("%s could not be started", name)
        memory.trouble[name] = f"{type(error).__name__}: {error}"
        context.say(f"{name} could not be started: {memory.trouble[name]}")
        return False
    return True


def _drivers(context: Context) -> list[Running]:
    return [each for each in running_with(context.settings.state_dir) if each.release is not None]


def _held_by(found: Sequence[ReleaseStatus], *, alive: bool | None) -> set[str]:
    """Releases whose lease is held by a process that is alive; None: by one that may be, as on another host."""
    held = [(s.release.name, s.release.lease) for s in found if s.release.lease and not s.release.lease_ended]
    return {name for name, lease in held if is_alive(lease.holder) is alive}


def _booting(context: Context, found: Sequence[ReleaseStatus], processes: Sequence[Running]) -> set[str]:
    """Releases with a young driver process on this host that does not have the lease yet."""
    holders = {ProcessRef.of_holder(s.release.lease.holder) for s in found if s.release.lease is not None}
    longest_s = context.settings.boot_timeout_s
    return {
        each.release
        for each in processes
        if each.release is not None
        and each.process not in holders
        and (each.process.uptime_s() or longest_s) < longest_s
    }


def _replace(context: Context, name: str, processes: Sequence[Running], alert: Tell) -> None:
    """Fences the driver of `name`, which lives but is not heard, and kills its process. A later turn starts a new one."""
    known = context.registry.known.releases[name]
    lease = known.lease
    if lease is None:
        return
    mine, fenced = this_process(context.settings), False

    def decide_(state: RegistryState) -> list[Entry]:
        nonlocal fenced
        release = state.releases[name]
        # not if it was heard in the meantime, or another supervisor replaced it
        fenced = release.token == lease.token and not release.lease_ended and _is_silent(context, release)
        if not fenced:
            return []
        token = release.next_token
        return [LeaseTaken(release=name, token=token, holder=mine), LeaseEnded(release=name, token=token)]

    why = f"process {lease.holder.pid} is alive, but has sent no heartbeat for {context.settings.lease_timeout_s:g} s"
    context.registry.step(decide_, reason=why)
    if not fenced:
        return
    alert(DriverHung(release=name, why=why, log=last_lines(context, name)))
    # kills only a process that is visibly this release's driver: the registry's word alone is not enough
    for each in processes:
        if each.release == name and each.process == ProcessRef.of_holder(lease.holder):
            each.process.kill()


def _is_silent(context: Context, release: Release) -> bool:
    return context.holder(release) is None


def _give_up(context: Context, memory: Memory, name: str, alert: Tell) -> None:
    """Sets a release that was started too often to failed, with the reason as far as it is known."""
    token = context.registry.known.releases[name].token
    reason = (
        f"its driver was started {context.settings.restart_limit} times in a row and did not keep running: "
        f"{memory.trouble.get(name, 'it reported no reason')}"
    )
    lines, given_up = last_lines(context, name), False

    def decide_(state: RegistryState) -> list[Entry]:
        nonlocal given_up
        release = state.releases[name]
        given_up = (
            release.token == token
            and release.wanted == "running"
            and release.state not in ("failed", "retired")
            and _is_silent(context, release)
        )
        return [StateSet(release=name, state="failed")] if given_up else []

    context.registry.step(decide_, reason=f"{reason}\n{lines}" if lines else reason)
    memory.attempts.pop(name, None)
    if given_up:
        memory.failed = sorted({*(memory.failed or ()), name})
        alert(GivenUp(release=name, reason=reason, log=lines))
