"""A supervisor's turn on a registry without a broker: what it enters, what it ends, whom it tells."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest

from orchestration.local.process import ProcessRef
from orchestration.local.running import Running
from orchestration.operations.context import Context
from orchestration.operations.supervising import overview
from orchestration.operations.supervising import turns as supervision
from orchestration.operations.supervising.alerts import (
    Alert,
    DriverHung,
    EntriesUnread,
    GivenUp,
    HeartbeatsUnread,
    ProgressUnread,
    ReleaseFailed,
    told,
)
from orchestration.operations.supervising.decide import Memory
from orchestration.operations.supervising.turns import bring_up, last_lines, take_turns, turn
from pipelines.engine.code import code_path
from pipelines.engine.lease import this_process
from pipelines.errors import BadUsage, Refused, SwitchyardError, Unavailable
from pipelines.kafka.clock import now_ms
from pipelines.kafka.heartbeats import Heartbeats
from pipelines.model.entries import (
    Entry,
    Holder,
    LeaseEnded,
    LeaseTaken,
    MarkOrdered,
    Opened,
    StateSet,
    SwitchAborted,
    WantedSet,
)
from pipelines.model.parts import AnotherRegistry
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import RegistryState, Release
from pipelines.model.unread import Unread
from pipelines.settings import Settings
from pipelines.signals import StopSignal
from tests.operations.builders import POSITION, Log, staged

NAME = "sums.v1"


class Launcher:
    """Remembers what was launched. `log`: the log of every driver."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.launched: list[str] = []

    def launch(self, release: str, **_: object) -> str:
        self.launched.append(release)
        return "nowhere"

    def log_path(self, release: str) -> Path:
        return self.log


class World:
    """A registry with `sums.v1`, live and to be run, and its supervisors' world. Times in milliseconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = Settings(bootstrap_servers="127.0.0.1:1", state_dir=folder, restart_limit=2)
        self.log = Log(*staged(NAME), StateSet(release=NAME, state="live"), WantedSet(release=NAME, wanted="running"))
        code = code_path(self.settings, self.log.known.releases[NAME].spec.code_digest)
        code.parent.mkdir(parents=True)
        code.touch()
        self.launcher = Launcher(folder / "driver.log")
        self.said: list[str] = []
        self.alerts: list[Alert] = []
        self.beats: dict[str, Heartbeat] = {}
        self.processes: list[Running] = []
        self.now = now_ms()
        monkeypatch.setattr(Context, "beats", lambda _: self.beats)
        monkeypatch.setattr(self.log, "now_ms", lambda: self.now)
        monkeypatch.setattr(overview, "notes", lambda *_: ())
        monkeypatch.setattr(supervision, "running_with", lambda _: self.processes)
        monkeypatch.setattr(supervision, "plan_start", lambda *_: None)

    @property
    def context(self) -> Context:
        return Context(
            settings=self.settings, registry=cast(Any, self.log), launcher=cast(Any, self.launcher), say=self.said.append,
            sleep=self._pass,
        )  # fmt: skip

    def hear(self, *alerts: Alert) -> None:
        self.alerts += alerts

    def _pass(self, seconds: float) -> None:
        self.now += int(seconds * 1000)

    def enter(self, *entries: Entry) -> None:
        self.log.entries += entries

    def turns(self, memory: Memory, seconds: int) -> None:
        for _ in range(seconds):
            turn(self.context, memory, alert=self.hear, now=lambda: self.now)
            self.now += 1000

    def beat(self, **changes: Any) -> None:
        self.beats[NAME] = Heartbeat(
            **{"release": NAME, "generation": 1, "token": self.token, "host": "h", "pid": 1, "at_ms": self.now,
               "state": "running", **changes}
        )  # fmt: skip

    @property
    def token(self) -> int:
        return self.log.known.releases[NAME].token


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_release_without_a_driver_is_started_until_it_fails_too_often(world: World) -> None:
    world.launcher.log.write_text("".join(f"line {n}\n" for n in range(99)) + "ValueError: \x1b[31mno heap\n")
    memory = Memory(trouble={NAME: "the JVM has ended"})
    world.turns(memory, 30)
    assert world.launcher.launched == [NAME, NAME]
    release = world.log.known.releases[NAME]
    assert release.state == "failed" and release.failure is not None
    assert "started 2 times in a row" in release.failure and "the JVM has ended" in release.failure
    assert "line 98" in release.failure and "no heap" in release.failure and "\x1b" not in release.failure
    [alert] = world.alerts
    assert isinstance(alert, GivenUp) and alert.release == NAME and "line 98" in alert.log
    assert f"{NAME} has failed: its driver was started 2 times in a row" in told(alert) and "line 98" in told(alert)
    # it stays failed until someone starts it
    world.turns(memory, 400)
    assert (world.launcher.launched, len(world.alerts)) == ([NAME, NAME], 1)


def test_of_two_supervisors_one_sets_it_to_failed_and_tells(world: World) -> None:
    one, other = (Memory(attempts={NAME: (2, world.now - 60_000)}) for _ in range(2))
    for memory in (one, other):
        turn(world.context, memory, alert=world.hear, now=lambda: world.now)
    assert sum(isinstance(e, StateSet) and e.state == "failed" for e in world.log.entries) == 1
    assert len(world.alerts) == 1


def test_one_that_someone_has_run_meanwhile_is_not_set_to_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    token = world.token + 1
    ran = [
        LeaseTaken(release=NAME, token=token, holder=this_process(world.settings)),
        LeaseEnded(release=NAME, token=token),
    ]

    def while_the_log_is_read(*_: object) -> str:
        world.enter(*ran)
        return ""

    monkeypatch.setattr(supervision, "last_lines", while_the_log_is_read)
    memory = Memory(attempts={NAME: (2, world.now - 60_000)})
    turn(world.context, memory, alert=world.hear, now=lambda: world.now)
    assert world.token == token and world.log.known.releases[NAME].state == "live"
    assert world.alerts == []


def test_a_start_that_is_refused_counts_and_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise SwitchyardError("retention has deleted its input")

    monkeypatch.setattr(supervision, "plan_start", refuse)
    world.turns(Memory(), 30)
    assert world.launcher.launched == []
    assert "retention has deleted its input" in (world.log.known.releases[NAME].failure or "")


def test_a_release_that_can_not_be_started_does_not_prevent_other_starts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.enter(*staged("aaa.v1"), WantedSet(release="aaa.v1", wanted="running"))

    def fail(_: Context, name: str) -> None:
        if name == "aaa.v1":
            raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(supervision, "plan_start", fail)
    turn(world.context, Memory(), alert=world.hear, now=lambda: world.now)
    assert world.launcher.launched == [NAME]
    assert any("aaa.v1 could not be started: ZeroDivisionError: a mistake of ours" in line for line in world.said)


def test_a_failure_that_a_driver_entered_itself_is_told(world: World) -> None:
    memory = Memory()
    world.turns(memory, 1)
    world.enter(StateSet(release=NAME, state="failed", reason="batch 7: not a price"))
    world.turns(memory, 3)
    assert world.alerts == [ReleaseFailed(release=NAME, failure="batch 7: not a price", log="")]


@pytest.mark.parametrize("fails", [False, True])
def test_alerts_wait_until_all_else_is_done_and_are_sent_though_it_fails(world: World, fails: bool) -> None:
    memory = Memory()
    world.enter(*staged("aaa.v1"))
    world.turns(memory, 1)
    world.launcher.launched.clear()
    world.enter(StateSet(release=NAME, state="failed", reason="batch 7: not a price"))
    world.enter(cast(Entry, Unread(offset=50, reason="odd")), WantedSet(release="aaa.v1", wanted="running"))
    sent: list[tuple[list[type[Alert]], list[str]]] = []

    def send(*alerts: Alert) -> None:
        sent.append(([type(each) for each in alerts], list(world.launcher.launched)))

    def start(name: str) -> None:
        world.launcher.launch(name)
        if fails:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        turn(world.context, memory, alert=send, start=start, now=lambda: world.now)
    assert sent == [([EntriesUnread, ReleaseFailed], ["aaa.v1"])]


def test_one_whose_process_can_not_be_killed_is_told_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_: ProcessRef) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(ProcessRef, "kill", kill)
    hung(world)
    memory = Memory()
    world.turns(memory, 5)
    with pytest.raises(PermissionError):
        world.turns(memory, 2)
    assert [type(each) for each in world.alerts] == [DriverHung] and world.log.known.releases[NAME].lease_ended


def hung(world: World, *, pid: int | None = None) -> Holder:
    """The driver of `sums.v1` is this very process, which lives, and was heard a minute ago."""
    holder = this_process(world.settings)
    world.enter(LeaseTaken(release=NAME, token=1, holder=holder, at_ms=world.now - 900_000))
    world.beat(at_ms=world.now - 60_000)
    process = ProcessRef.of_holder(holder if pid is None else holder.model_copy(update={"pid": pid}))
    world.processes = [Running(process=process, program="d", release=NAME, cluster=None)]
    return holder


def test_a_driver_that_hangs_is_fenced_and_killed_and_then_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(ProcessRef, "kill", lambda self: killed.append(self.pid))
    holder = hung(world)
    memory = Memory()
    world.turns(memory, 5)
    assert (killed, world.launcher.launched) == ([], [])
    world.turns(memory, 2)
    assert killed == [holder.pid]
    assert world.token == 2 and world.log.known.releases[NAME].lease_ended
    assert world.launcher.launched == [NAME]
    [alert] = world.alerts
    assert isinstance(alert, DriverHung) and alert.release == NAME and f"process {holder.pid} is alive" in alert.why


def test_heartbeats_that_can_not_be_read_are_alerted_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heartbeats, "unread", 2)
    world.turns(Memory(), 3)
    assert [each for each in world.alerts if isinstance(each, HeartbeatsUnread)] == [HeartbeatsUnread(records=2)]


def test_a_release_whose_progress_can_not_be_read_is_held_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Refused("its newest record can't be read", fix="upgrade")
    found = {NAME: odd}

    def unread(_: object, releases: Iterable[Release]) -> dict[str, Refused]:
        return {release.name: found[release.name] for release in releases if release.name in found}

    monkeypatch.setattr(supervision, "unread_progress", unread)
    memory = Memory()
    world.turns(memory, 400)
    assert world.launcher.launched == [] and world.log.known.releases[NAME].state == "live"
    assert world.alerts == [ProgressUnread(release=NAME, why="its newest record can't be read; upgrade")]
    found.clear()
    world.turns(memory, 2)
    assert world.launcher.launched == [NAME]


def test_a_release_of_another_host_is_left_to_its_supervisor(world: World) -> None:
    there = Holder(host="another", boot_id="b", pid=1, started=1)
    world.enter(LeaseTaken(release=NAME, token=1, holder=there), LeaseEnded(release=NAME, token=1))
    memory = Memory()
    world.turns(memory, 3)
    # its files may be on a disk that both hosts share
    assert world.launcher.launched == [NAME]
    code_path(world.settings, world.log.known.releases[NAME].spec.code_digest).unlink()
    world.said.clear()
    world.turns(memory, 400)
    assert world.launcher.launched == [NAME] and not world.alerts
    assert world.log.known.releases[NAME].state == "live"
    [said] = world.said
    assert said.startswith(f"{NAME} should run, but has no driver, and its frozen code or its state is not in")
    assert bring_up(world.context, timeout_s=60, alert=world.hear) == []
    # its own host says which part is lost
    here = this_process(world.settings)
    world.enter(LeaseTaken(release=NAME, token=2, holder=here), LeaseEnded(release=NAME, token=2))
    world.turns(Memory(), 1)
    assert world.launcher.launched == [NAME] * 2


@pytest.mark.parametrize(
    ("release", "age_s", "launched"), [(NAME, 5.0, []), (NAME, 601.0, [NAME]), ("sums.v2", 5.0, [NAME])]
)
def test_one_that_is_being_started_is_not_started_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch, release: str, age_s: float, launched: list[str]
) -> None:
    """Its process runs, but has no lease yet."""
    monkeypatch.setattr(ProcessRef, "uptime_s", lambda _: age_s)
    world.settings = world.settings.model_copy(update={"boot_timeout_s": 600.0})
    world.processes = [Running(process=ProcessRef(pid=7, started="1"), program="d", release=release, cluster=None)]
    world.turns(Memory(), 1)
    assert world.launcher.launched == launched


def test_while_nobody_can_be_heard_nobody_hangs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(ProcessRef, "kill", lambda self: killed.append(self.pid))
    hung(world)
    world.beats.clear()
    memory, deleted = Memory(), [True]
    world.turns(memory, 5)
    # it is found at the turn at which the driver would be fenced
    monkeypatch.setattr(world.log, "ensure_heartbeats", lambda: bool(deleted and deleted.pop()))
    world.turns(memory, 3)
    assert (killed, world.launcher.launched) == ([], []) and deleted == []
    assert world.said == ["the topic switchyard.heartbeats was deleted; it was created again, empty"]
    # one that stays silent is found all the same
    world.turns(memory, 4)
    assert len(killed) == 1


def test_only_a_process_that_is_seen_to_be_the_driver_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(ProcessRef, "kill", lambda self: killed.append(self.pid))
    # the registry names this process; no driver of the release runs as that
    hung(world, pid=1)
    world.turns(Memory(), 8)
    assert (killed, world.token) == ([], 2)


def test_a_driver_that_is_heard_at_the_last_moment_is_left_alone(world: World) -> None:
    hung(world)
    memory = Memory()
    world.turns(memory, 5)
    memory.turned, found = world.now, dict(world.beats)
    step = world.log.step

    def heard(*given: Any, **more: Any) -> Any:
        world.beat(at_ms=world.now)
        return step(*given, **more)

    world.log.step = heard  # type: ignore[method-assign]
    world.turns(memory, 1)
    assert found != world.beats
    assert (world.token, world.alerts, world.launcher.launched) == (1, [], [])


def test_of_two_supervisors_one_fences(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessRef, "kill", lambda _: None)
    hung(world)
    memories = Memory(), Memory()
    for _ in range(6):
        for memory in memories:
            turn(world.context, memory, alert=world.hear, start=lambda _: None, now=lambda: world.now)
        world.now += 1000
    assert [e.token for e in world.log.entries if isinstance(e, LeaseEnded)] == [2]
    assert len(world.alerts) == 1


def test_a_mark_past_its_deadline_is_void_by_whichever_supervisor_comes_first(world: World) -> None:
    world.beat()
    opened = Opened(
        id="promote-1", name="promote", deadline_ms=world.now + 900_000, releases=(NAME, "sums.v2"), alias="sums"
    )
    mark = MarkOrdered(
        id="promote-1", release=NAME, past=POSITION, switch=2, alias="sums", deadline_ms=world.now + 2_500
    )
    world.enter(opened, mark)
    memories = Memory(), Memory()
    for second in range(5):
        for memory in memories:
            turn(world.context, memory, alert=world.hear, now=lambda: world.now)
        assert world.log.known.operations["promote-1"].aborted == (second > 2), second
        world.now += 1000
    assert sum(isinstance(e, SwitchAborted) for e in world.log.entries) == 1


# -- the loop


def attended(world: World, error: Exception) -> list[str]:
    """What is said by a loop whose first three turns end by `error`, and whose fourth is its last."""
    stopped, said, tries = StopSignal(), list[str](), 0

    def open_() -> Context:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise error
        stopped.set()
        return world.context

    world.log.close = lambda: None  # type: ignore[attr-defined]
    take_turns(world.settings, open_, stopped=stopped, every_s=0.001, alert=world.hear, say=said.append)
    assert tries == 4
    return said


def test_the_loop_waits_for_an_absent_broker_says_so_once_and_ends_when_told(world: World) -> None:
    said = attended(world, Unavailable("no Kafka broker answers", "start it with `switchyard up`"))
    assert said == [
        "no release is supervised until this is fixed: no Kafka broker answers; start it with `switchyard up`",
        "Kafka answers again",
    ]
    assert world.launcher.launched == [NAME]


def test_of_another_registry_nothing_is_remembered(world: World) -> None:
    stopped, said, opened, asked = StopSignal(), list[str](), 0, 0
    world.enter(cast(Entry, Unread(offset=50, reason="odd")))
    world.log.close = lambda: None  # type: ignore[attr-defined]

    def state(*, snapshots: bool = True) -> RegistryState:
        nonlocal asked
        asked += 1
        if asked > 100:
            stopped.set()
        raise AnotherRegistry

    def open_() -> Context:
        nonlocal opened
        opened += 1
        if opened == 2:
            # shorter than the old one
            world.log.entries[-1] = cast(Entry, Unread(offset=3, reason="odd"))
            del world.log.state  # type: ignore[method-assign]
        return world.context

    def alert(*found: Alert) -> None:
        world.alerts.extend(found)
        if opened == 1:
            world.log.state = state  # type: ignore[method-assign]
        else:
            stopped.set()

    take_turns(world.settings, open_, stopped=stopped, every_s=0.001, alert=alert, say=said.append)
    assert [type(each) for each in world.alerts] == [EntriesUnread] * 2
    assert [line for line in said if "was deleted and recreated" in line and "no release is supervised" in line]


@pytest.mark.parametrize("mistake", [ZeroDivisionError("a bug"), AssertionError()])
def test_a_turn_that_fails_by_a_mistake_is_logged_once_and_the_next_ones_come(
    world: World, caplog: pytest.LogCaptureFixture, mistake: Exception
) -> None:
    # nothing of Kafka, which has answered all the time
    assert attended(world, mistake) == []
    assert world.launcher.launched == [NAME]
    assert len([r for r in caplog.records if r.message == "a turn of the supervisor failed; it tries again"]) == 1


def test_a_log_that_can_not_be_read_keeps_nothing_from_being_told(world: World, tmp_path: Path) -> None:
    world.launcher.log.unlink(missing_ok=True)
    world.launcher.log.symlink_to(tmp_path)
    assert last_lines(world.context, NAME) == ""


def test_the_loop_ends_for_settings_that_mean_nothing(world: World) -> None:
    def open_() -> Context:
        raise BadUsage("the broker is another's")

    with pytest.raises(BadUsage):
        take_turns(world.settings, open_, stopped=StopSignal(), every_s=0.001, alert=print, say=print)


# -- after a reboot


def test_every_release_that_should_run_is_started(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.enter(*staged("sums.v2", "sums.v3"), WantedSet(release="sums.v2", wanted="running"))
    launch = world.launcher.launch

    def launched(release: str, **_: object) -> str:
        holder = this_process(world.settings)
        world.enter(LeaseTaken(release=release, token=1, holder=holder, at_ms=world.now))
        world.beats[release] = Heartbeat(
            release=release, generation=1, token=1, host="h", pid=1, at_ms=world.now, state="running"
        )
        return launch(release)

    monkeypatch.setattr(world.launcher, "launch", launched)
    found = bring_up(world.context, timeout_s=60, alert=world.hear)
    assert {s.release.name: s.health for s in found} == {NAME: "running", "sums.v2": "running"}
    assert sorted(world.launcher.launched) == [NAME, "sums.v2"]


def test_what_does_not_come_up_is_told(world: World) -> None:
    clock = iter(range(100))
    context = Context(
        settings=world.settings, registry=cast(Any, world.log), launcher=cast(Any, world.launcher),
        monotonic=lambda: float(next(clock)), sleep=lambda _: None,
    )  # fmt: skip
    [found] = bring_up(context, timeout_s=3, alert=world.hear)
    assert (found.release.name, found.health) == (NAME, "down")


def test_the_end_of_a_log_is_short_and_printable(world: World) -> None:
    assert last_lines(world.context, NAME) == ""
    world.launcher.log.write_bytes(b"\xff" * 20_000 + b"\nlast \x07line\n")
    said = last_lines(world.context, NAME)
    assert said.endswith("last \\x07line") and len(said) <= 2_000
