"""An operator's process that sleeps and wakes up late deletes and fences nothing that is in use by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.operations.applying import consumers, generations, vigil
from orchestration.operations.applying.applier import Applier
from orchestration.operations.applying.work import Work
from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import (
    AwaitFollowers,
    BeginGeneration,
    DeleteCheckpoint,
    FinishBatch,
    GiveBack,
    InheritState,
    Reach,
    Seize,
    Tombstone,
    WriteClearing,
)
from orchestration.operations.plans.stages.releases import DeleteFiles, DeleteGroup, DeleteTopic, Launch, SetState
from pipelines.engine.lease import this_process
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.clock import now_ms
from pipelines.model.entries import (
    Carried,
    Closed,
    Entry,
    FollowerRegistered,
    GenerationStarted,
    Holder,
    InputSpec,
    LeaseEnded,
    LeaseTaken,
    Opened,
    Staged,
    StateSet,
    WantedSet,
)
from pipelines.model.progress import Progress
from pipelines.model.registry import RegistryState, fold
from pipelines.settings import Settings
from tests.operations.builders import ENDED, POSITION, Kafka, Log, context_of, generation, spec, staged, switched
from tests.shared.stages import before_stage

NAME = "a.v1"
ELSEWHERE = Holder(host="another-host", boot_id="b", pid=7, started=1)
ABANDONED = Closed(id="op-1", outcome="abandoned", detail="its operator is gone")
LIVE = [*staged(NAME), *switched(1, None, NAME)]
# it was reset, so its first generation is an archive; its second is read by consumers
RESET = [*LIVE, generation(NAME, 2, ended=ENDED)]
BEGIN = BeginGeneration(release=NAME, generation=2, start=POSITION, old=1, links=1)


class Lagging(Log):
    """A registry that knows only what it has read, as the real one does. `sleeps`: how often it is read before its
    process sleeps; `meanwhile`: what others do while it sleeps.
    """

    def __init__(self, *entries: Entry) -> None:
        super().__init__(*entries)
        self._read = fold(RegistryState(), self.entries)
        self.sleeps: int | None = None
        self.meanwhile: tuple[Entry, ...] = ()

    @property
    def known(self) -> RegistryState:
        return self._read

    def state(self, *, snapshots: bool = True) -> RegistryState:
        if self.sleeps == 0:
            self.sleeps = None
            self.entries += self.meanwhile
        elif self.sleeps is not None:
            self.sleeps -= 1
        self._read = fold(RegistryState(), self.entries)
        return self._read

    def step(self, decide: Callable[[RegistryState], Sequence[Entry]], **about: Any) -> RegistryState:
        self.state()
        super().step(decide, **about)
        return self.state()


@dataclass
class Deletes(Kafka):
    """A cluster that notes what is deleted."""

    gone: list[str] = field(default_factory=list)

    def delete_topics(self, names: list[str]) -> None:
        self.gone += names

    def delete_group(self, group: str) -> None:
        self.gone.append(group)


class Sleeper:
    """A process that applies a plan of one release, in a state folder of its own."""

    def __init__(self, state_dir: Path, *entries: Entry, operation: Kind, stages: tuple[Stage, ...] = ()) -> None:
        self.plan = Plan(id="op-1", operation=operation, releases=(NAME,), stages=stages)
        # a start is in no journal
        opened = [] if operation is Kind.START else [self.opened, Carried(id="op-1", holder=this_process(Settings()))]
        self.log, self.kafka, self.state_dir = Lagging(*entries, *opened), Deletes(), state_dir
        self.context = replace(context_of(self.log, self.kafka), settings=Settings(state_dir=state_dir))
        self.work = Work(self.context, self.plan)

    @property
    def opened(self) -> Opened:
        return Opened(id="op-1", name=self.plan.operation, releases=(NAME,), deadline_ms=2**60)

    def checkpoint(self, generation: int, token: int) -> Path:
        path = self.state_dir / "checkpoints" / NAME / f"g{generation}.t{token}"
        (path / "offsets").mkdir(parents=True, exist_ok=True)
        (path / "metadata").touch()
        return path

    def apply(self, stage: Stage, after: int, *entries: Entry) -> None:
        """Applies `stage`; the process sleeps when it has read the registry `after` times, and others write `entries`."""
        self.log.sleeps, self.log.meanwhile = after, entries
        applier = Applier(self.context, self.plan)
        applier._work = self.work
        applier.apply(stage)

    def run(self, *meanwhile: Entry) -> None:
        """Applies the plan. The process sleeps when it has said what its first stage does."""
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            if len(said) == 1:
                self.log.entries += meanwhile

        Applier(replace(self.context, say=say), self.plan).run()


@pytest.fixture(autouse=True)
def nobody_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "beats", lambda *_: {})
    monkeypatch.setattr(generations, "processed", lambda *_: ())


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The releases whose writers were fenced, instead of fencing them."""
    found: list[str] = []

    def last_of(context: Context, release: Any) -> Progress:
        found.append(release.name)
        return ENDED

    monkeypatch.setattr(generations, "last_of", last_of)
    return found


# -- a new generation


def leased(token: int, op: str | None = None) -> LeaseTaken:
    return LeaseTaken(release=NAME, token=token, holder=this_process(Settings()), op=op)


@pytest.mark.parametrize("links", [1, None])
def test_a_start_that_was_overtaken_leaves_the_live_checkpoint(tmp_path: Path, links: int | None) -> None:
    """Someone else started the candidate's second generation and promoted it."""
    sleeper = Sleeper(tmp_path, *staged(NAME), operation=Kind.START)
    live = sleeper.checkpoint(2, 1)
    stage = replace(BEGIN, links=links, old=None if links is None else 1)
    others = [generation(NAME, 2), leased(1), *switched(1, None, NAME)]
    with pytest.raises(Refused, match="has changed since the plan was made" if links else "already has generation 2"):
        sleeper.apply(stage, 0, *others)
    assert (live / "offsets").is_dir()
    assert not any(isinstance(e, GenerationStarted) and e.op == "op-1" for e in sleeper.log.entries)


def test_nor_does_it_take_the_live_release_to_another_generation(tmp_path: Path) -> None:
    """The candidate was repaired by hand, started again as it was, and promoted."""
    sleeper = Sleeper(tmp_path, *staged(NAME), operation=Kind.START)
    with pytest.raises(Refused, match="has changed since the plan was made"):
        sleeper.apply(replace(BEGIN, links=0), 0, *switched(1, None, NAME))
    assert sleeper.log.state().releases[NAME].generation == 1


def test_what_an_earlier_attempt_left_of_a_generation_is_no_state_of_the_next(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path, *staged(NAME), leased(3), LeaseEnded(release=NAME, token=3), operation=Kind.START)
    old, left, newer = sleeper.checkpoint(1, 2), sleeper.checkpoint(2, 3), sleeper.checkpoint(2, 4)
    sleeper.apply(replace(BEGIN, links=0), 9)
    assert sleeper.log.state().releases[NAME].generation == 2
    assert old.exists() and not left.exists()
    # that of a driver that has started since is never what an earlier attempt left
    assert newer.exists()


OVERTAKEN: list[list[Entry]] = [
    [ABANDONED],
    [Carried(id="op-1", holder=ELSEWHERE)],
    [ABANDONED, leased(2, "reset-2"), generation(NAME, 2, ended=ENDED), LeaseEnded(release=NAME, token=2), leased(3)],
    [leased(2)],
]
REASONS = r"was abandoned in the meantime|has taken over op-1|was started in the meantime"


@pytest.mark.parametrize("others", OVERTAKEN, ids=["abandoned", "taken over", "reset by another", "started"])
def test_a_reset_that_slept_with_its_lease_neither_fences_nor_deletes(
    tmp_path: Path, fenced: list[str], others: list[Entry]
) -> None:
    sleeper = Sleeper(tmp_path, *LIVE, operation=Kind.RESET)
    sleeper.apply(Seize(release=NAME), 9)
    running = sleeper.checkpoint(2, 3)
    with pytest.raises(Refused, match=REASONS):
        sleeper.apply(BEGIN, 0, *others)
    assert running.exists() and fenced == []
    assert not any(isinstance(e, GenerationStarted) and e.op == "op-1" for e in sleeper.log.entries)


@pytest.mark.parametrize("others", OVERTAKEN, ids=["abandoned", "taken over", "reset by another", "started"])
def test_one_that_slept_while_it_copied_a_state_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[Entry]
) -> None:
    """The driver of another operation's generation would take it for its own state."""
    sleeper = Sleeper(tmp_path, *LIVE, operation=Kind.RESET)
    sleeper.apply(Seize(release=NAME), 9)
    sleeper.checkpoint(1, 0)
    moved: list[object] = []
    monkeypatch.setattr(generations, "progress_of", lambda *_: ENDED)
    monkeypatch.setattr(generations.Checkpoint, "move_end_of", lambda *given: moved.append(given))
    inherit = InheritState(release=NAME, old=1, generation=2, at=POSITION, position=POSITION)
    with pytest.raises(Refused, match=REASONS):
        sleeper.apply(inherit, 1, *others)
    assert moved and [p.name for p in (tmp_path / "checkpoints" / NAME).iterdir() if not p.name.startswith(".")] == [
        "g1.t0"
    ]


def test_the_lease_that_another_process_of_the_same_operation_took_stays_its_own(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path, *LIVE, operation=Kind.RESET, stages=(Seize(release=NAME), BEGIN))
    others = (Carried(id="op-1", holder=ELSEWHERE), leased(2, "op-1"))
    with (
        before_stage(BeginGeneration, lambda: sleeper.log.entries.extend(others)),
        pytest.raises(Refused, match="process 7 on another-host has taken over op-1"),
    ):
        Applier(sleeper.context, sleeper.plan).run()
    known = sleeper.log.state().releases[NAME]
    assert (known.token, known.lease_ended) == (2, False)


def test_who_resumes_an_operation_gives_back_the_lease_that_was_left(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path, *LIVE, leased(4, "op-1"), operation=Kind.RESET)
    sleeper.apply(GiveBack(release=NAME), 9)
    assert sleeper.log.state().releases[NAME].lease_ended


def left_by(holder: Holder, op: str | None) -> LeaseTaken:
    # just now: nothing else says that its holder may be dead
    return LeaseTaken(release=NAME, token=4, holder=holder, op=op, at_ms=now_ms())


def test_who_takes_an_operation_over_from_another_host_takes_the_lease_that_was_left(tmp_path: Path) -> None:
    """The journal has made sure that nobody carries the operation out there any more."""
    sleeper = Sleeper(tmp_path, *LIVE, left_by(ELSEWHERE, "op-1"), operation=Kind.RESET)
    sleeper.apply(Seize(release=NAME), 9)
    assert sleeper.log.state().releases[NAME].token == 5
    for op in ("op-2", None):
        other = Sleeper(tmp_path, *LIVE, left_by(ELSEWHERE, op), operation=Kind.RESET)
        with pytest.raises(Refused, match="run by process 7 on another-host"):
            other.apply(Seize(release=NAME), 9)


def test_one_that_was_taken_over_gives_no_lease_back(tmp_path: Path) -> None:
    sleeper = Sleeper(tmp_path, *LIVE, operation=Kind.RESET)
    sleeper.log.entries += [Carried(id="op-1", holder=ELSEWHERE), left_by(ELSEWHERE, "op-1")]
    generations.give_back(sleeper.work, NAME)
    assert not sleeper.log.state().releases[NAME].lease_ended


# -- what can be done twice without harm: it is not done either


ENDED_ELSEWHERE = pytest.mark.parametrize("others", OVERTAKEN[:2], ids=["abandoned", "taken over"])


@ENDED_ELSEWHERE
@pytest.mark.parametrize("stage", [Launch(release=NAME), FinishBatch(release=NAME, timeout_s=9)], ids=lambda s: s.kind)
def test_one_that_slept_starts_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage, others: list[Entry]
) -> None:
    monkeypatch.setattr(generations, "progress_of", lambda *_: ENDED)
    monkeypatch.setattr(generations, "is_unfinished", lambda *_: True)
    sleeper = Sleeper(tmp_path, *LIVE, operation=Kind.RESET)
    launched: list[str] = []
    launcher: Any = SimpleNamespace(launch=lambda name, **_: launched.append(name))
    sleeper.work.context = replace(sleeper.context, launcher=launcher)
    with pytest.raises(Refused, match=REASONS):
        sleeper.apply(stage, 1, *others)
    assert launched == []


@ENDED_ELSEWHERE
def test_one_that_slept_while_it_read_the_keys_writes_no_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[Entry]
) -> None:
    sleeper = Sleeper(tmp_path, *RESET, operation=Kind.RESET)

    def keys(*_: Any, **__: Any) -> dict[str, list[str]]:
        sleeper.log.entries += others
        return {}

    monkeypatch.setattr(consumers, "_keys", keys)
    monkeypatch.setattr(consumers, "DeltaTopic", lambda *_: pytest.fail("a delta is written"))
    with pytest.raises(Refused, match=REASONS):
        sleeper.apply(WriteClearing(release=NAME, old=1), 99)


# -- tombstones


class Written:
    """A writer that notes what it does. `last`: the newest progress, which it finds after it has fenced."""

    def __init__(self, last: Progress | None) -> None:
        self.last = last
        self.did: list[str] = []

    def connect(self) -> Progress | None:
        self.did.append("fenced")
        return self.last

    def send(self, topic: str, records: Any) -> None:
        self.did.append(f"{topic}: {len(list(records))}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.did.append(name)


def tombstoning(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch, last: Progress | None, *others: Entry) -> list[str]:
    """What the writer of tombstones does; the process slept while it read the keys."""
    writer = Written(last)

    def keys(*_: Any) -> dict[str, list[str]]:
        sleeper.log.entries += others
        return {"a.v1.g1": ["ibm"]}

    monkeypatch.setattr(Context, "progress", lambda *_: ENDED)
    monkeypatch.setattr(consumers, "_keys", keys)
    monkeypatch.setattr(consumers, "Writer", lambda *_: writer)
    sleeper.apply(Tombstone(release=NAME, generation=2), 9)
    return writer.did


def test_tombstones_are_written_once_and_before_the_driver_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared = generation(NAME, 2, ended=ENDED, result=1, cleared=True)
    did = tombstoning(Sleeper(tmp_path, *LIVE, cleared, operation=Kind.RESET), monkeypatch, ENDED)
    assert did == ["fenced", "begin", "a.v1.g1: 1", "acknowledged", "commit", "close"]
    # another process has finished this stage, and a driver has written since
    ran = ENDED.model_copy(update={"generation": 2})
    did = tombstoning(Sleeper(tmp_path, *LIVE, cleared, operation=Kind.RESET), monkeypatch, ran)
    assert did == ["fenced", "close"]


@pytest.mark.parametrize("others", OVERTAKEN, ids=["abandoned", "taken over", "reset by another", "started"])
def test_a_process_that_slept_while_it_read_the_keys_fences_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[Entry]
) -> None:
    cleared = generation(NAME, 2, ended=ENDED, result=1, cleared=True)
    did: list[str] = []
    with pytest.raises(Refused, match=REASONS):
        did = tombstoning(Sleeper(tmp_path, *LIVE, cleared, operation=Kind.RESET), monkeypatch, ENDED, *others)
    assert did == []


# -- deleting

UNDONE: list[Entry] = [ABANDONED, GenerationStarted(release=NAME, generation=1, start=POSITION, op="undo-1")]
OLD = (DeleteTopic(name="a.v1.g1"), DeleteCheckpoint(release=NAME, generation=1))


@pytest.mark.parametrize("stage", OLD, ids=lambda stage: stage.kind)
@pytest.mark.parametrize(
    ("others", "why"),
    [
        (UNDONE, "op-1 was abandoned in the meantime: its operator is gone"),
        ([Closed(id="op-1", outcome="expired", detail="deadline passed")], "op-1 has expired in the meantime"),
        ([Carried(id="op-1", holder=ELSEWHERE)], "process 7 on another-host has taken over op-1"),
        # by an undo between the plan and its start
        (UNDONE[1:], r"op-1 would delete .*, but that is in use by a\.v1"),
    ],
    ids=["undone", "expired", "taken over", "in use"],
)
def test_a_clean_that_slept_deletes_nothing(tmp_path: Path, stage: Stage, others: list[Entry], why: str) -> None:
    sleeper = Sleeper(tmp_path, *RESET, operation=Kind.CLEAN, stages=(stage,))
    resumed = sleeper.checkpoint(1, 5)
    with pytest.raises(Refused, match=why):
        sleeper.run(*others)
    assert sleeper.kafka.gone == [] and resumed.exists()


@pytest.mark.parametrize("operation", [Kind.CLEAN, Kind.RESET])
def test_nor_a_result_that_consumers_still_read(tmp_path: Path, operation: Kind) -> None:
    sleeper = Sleeper(tmp_path, *RESET, operation=operation, stages=OLD)
    with pytest.raises(Refused, match=r"would delete topic a\.v1\.g1, but that is in use by alias a") as error:
        sleeper.run()
    assert f"run the same `switchyard {operation} a.v1` again" in error.value.fix
    assert sleeper.kafka.gone == []


def test_nor_one_that_another_release_came_to_read(tmp_path: Path) -> None:
    reader = Staged(spec=spec("b.v1", inputs={"counts": InputSpec(topic="a.v1.g1", partitions=1)}))
    sleeper = Sleeper(tmp_path, *staged(NAME), generation(NAME, 2, ended=ENDED), operation=Kind.CLEAN, stages=OLD)
    with pytest.raises(Refused, match=r"would delete topic a\.v1\.g1, but that is in use by b\.v1"):
        sleeper.run(reader)
    assert sleeper.kafka.gone == []


def test_nor_one_that_an_undo_came_to_write_while_followers_were_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = Sleeper(tmp_path, *staged(NAME), generation(NAME, 2, ended=ENDED), operation=Kind.CLEAN, stages=OLD)

    def nobody(*_: Any) -> list[str]:
        sleeper.log.entries += UNDONE
        return []

    monkeypatch.setattr("orchestration.operations.applying.releases.needing_result", nobody)
    with pytest.raises(Refused, match="op-1 was abandoned in the meantime"):
        sleeper.run()
    assert sleeper.kafka.gone == []


def test_an_archive_that_nobody_needs_is_deleted(tmp_path: Path) -> None:
    driver = (leased(2), LeaseEnded(release=NAME, token=2))
    sleeper = Sleeper(
        tmp_path, *staged(NAME), generation(NAME, 2, ended=ENDED), *driver, operation=Kind.CLEAN, stages=OLD
    )
    archived, current = sleeper.checkpoint(1, 1), sleeper.checkpoint(2, 2)
    sleeper.run()
    assert sleeper.kafka.gone == ["a.v1.g1"]
    assert not archived.exists() and current.exists()


def test_a_checkpoint_that_is_in_use_again_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = (leased(2), LeaseEnded(release=NAME, token=2))
    stages = (DeleteCheckpoint(release=NAME, generation=1),)
    sleeper = Sleeper(
        tmp_path, *staged(NAME), generation(NAME, 2, ended=ENDED), *driver, operation=Kind.CLEAN, stages=stages
    )
    archived, forget = sleeper.checkpoint(1, 1), generations.forget_checkpoint

    def sleeps(*given: Any) -> None:
        # meanwhile another host finished the operation, and an undo started the generation again
        archived.rename(archived.with_name("g1.t3"))
        forget(*given)

    monkeypatch.setattr(generations, "forget_checkpoint", sleeps)
    sleeper.run()
    assert archived.with_name("g1.t3").exists()


@pytest.mark.parametrize(
    "stage",
    [DeleteTopic(name="a.v1.progress"), DeleteGroup(group=NAME), DeleteFiles(release=NAME, code_digest=None)],
    ids=lambda stage: stage.kind,
)
def test_nor_does_a_retirement_that_slept(tmp_path: Path, stage: Stage) -> None:
    retired = StateSet(release=NAME, state="retired")
    sleeper = Sleeper(tmp_path, *staged(NAME), retired, operation=Kind.RETIRE, stages=(stage,))
    left = sleeper.checkpoint(1, 1)
    with pytest.raises(Refused, match="op-1 was abandoned in the meantime"):
        sleeper.run(ABANDONED)
    assert sleeper.kafka.gone == [] and left.exists()


def test_code_that_is_staged_while_a_large_checkpoint_is_deleted_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retired = StateSet(release=NAME, state="retired")
    stage = DeleteFiles(release=NAME, code_digest="0" * 64)
    sleeper = Sleeper(tmp_path, *staged(NAME), retired, operation=Kind.RETIRE, stages=(stage,))
    code = tmp_path / "code" / f"{'0' * 64}.zip"
    code.parent.mkdir()
    code.touch()
    deleted: list[str] = []

    def remove(_: Path, *parts: str) -> None:
        deleted.append("/".join(parts))
        sleeper.log.entries += staged("a.v2") if len(deleted) == 1 else []

    monkeypatch.setattr("orchestration.operations.applying.releases.remove", remove)
    sleeper.run()
    assert deleted == ["checkpoints/a.v1", "run/a.v1"] and code.exists()


# -- the next stage, and what waits


def test_before_each_stage_the_registry_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process knows may be hours old."""
    stages = (SetState(release=NAME, state="ready"), OLD[1])
    sleeper = Sleeper(tmp_path, *RESET, operation=Kind.CLEAN, stages=stages)
    said: list[str] = []
    applier = Applier(replace(sleeper.context, say=said.append), sleeper.plan)

    def apply(stage: Stage) -> None:
        sleeper.log.entries.append(ABANDONED)

    monkeypatch.setattr(applier, "apply", apply)
    with pytest.raises(Refused, match="op-1 was abandoned in the meantime"):
        applier.run()
    assert said == [stages[0].describe()]


def waiting(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch, stage: Stage, *others: Entry) -> tuple[float, Exception]:
    """After how many seconds the wait of `stage` ends, and with which error. Others write after 100 s."""
    passed = 0.0

    def sleep(seconds: float) -> None:
        nonlocal passed
        passed += seconds
        if passed - seconds < 100 <= passed:
            sleeper.log.entries += others

    tail: Any = SimpleNamespace(poll=lambda _: None, close=lambda: None)
    monkeypatch.setattr(consumers, "ProgressTail", lambda *_: tail)
    context = replace(sleeper.context, sleep=sleep, monotonic=lambda: passed)
    with pytest.raises(SwitchyardError) as error:
        Applier(cast(Any, context), sleeper.plan).apply(stage)
    return passed, error.value


REACH = Reach(release=NAME, timeout_s=3600)
RUNNING = [*LIVE, WantedSet(release=NAME, wanted="running")]


def test_a_reset_that_waits_for_a_dead_driver_ends_within_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vigil, "is_supervised", lambda _: False)
    monkeypatch.setattr(vigil, "running_with", lambda _: [])
    dead = this_process(Settings()).model_copy(update={"started": 1})
    sleeper = Sleeper(
        tmp_path, *RUNNING, LeaseTaken(release=NAME, token=1, holder=dead), operation=Kind.RESET, stages=(REACH,)
    )
    waited, error = waiting(sleeper, monkeypatch, REACH)
    assert waited < 10 and "has died, and no supervisor starts it again" in str(error)


def test_one_that_lives_is_waited_for_until_the_operation_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(tmp_path, *RUNNING, leased(1), operation=Kind.RESET, stages=(REACH,))
    waited, error = waiting(sleeper, monkeypatch, REACH, ABANDONED)
    assert 100 <= waited < 102 and "op-1 was abandoned in the meantime" in str(error)


def test_so_are_followers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.operations.looking.in_use.committed_number", lambda *_: None)
    stage = AwaitFollowers(alias="a", number=2, timeout_s=3600)
    follower = FollowerRegistered(alias="a", group="late")
    sleeper = Sleeper(tmp_path, *RUNNING, follower, operation=Kind.RESET, stages=(stage,))
    waited, error = waiting(sleeper, monkeypatch, stage, ABANDONED)
    assert 100 <= waited < 102 and "op-1 was abandoned in the meantime" in str(error)
