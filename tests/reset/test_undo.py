"""Resets that are undone, with a consumer attached."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from orchestration.operations import journal
from orchestration.operations.execute import execute
from orchestration.operations.looking import costs
from orchestration.operations.looking.archives import archives_of
from orchestration.operations.planning.clean import plan_clean, to_clean
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.planning.run import plan_start
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.procedures.diff import diff
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.driver import Driver
from pipelines.engine.lease import take_lease
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.client import admin, producer
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import topic_names
from pipelines.model.entries import LeaseEnded, Opened, Staged
from pipelines.model.reset import Target
from tests.reset.undoing import (
    EACH_STAGE,
    EARLIEST,
    LATEST,
    MIDDLE,
    beside,
    finished_by_the_same_command,
    stands_still,
    switches,
    undo,
)
from tests.reset.world import PARTITIONS, START_MS, Following, World, ends
from tests.shared.stages import before_stage

pytestmark = [pytest.mark.spark, pytest.mark.broker]


@pytest.mark.long
def test_an_undo_takes_back_a_reset_that_consumers_followed(standing: World, along: Following) -> None:
    world, follower = standing, along
    first, last, before = world.release.generation, max(world.release.generations), switches(world)
    began = ends(world.settings, world.topic)
    done = world.reset(MIDDLE, stop=True)
    start = dict(world.release.generations[last + 1].start.sources["numbers"])
    world.produce(20)
    world.settle()
    follower.comes_to(world.expected(start))
    stood = dict(world.context.progress(world.name).boundary.position.sources["numbers"])  # type: ignore[union-attr]
    back = undo(world, done)
    assert world.release.generation == first
    # for both partitions: from, to, where the old generation ended, what it reads from there
    [positions] = back.tables
    assert positions.rows == tuple(
        (f"{world.topic}[{p}]", f"{stood[p]}", f"{began[p]}", f"{began[p] - stood[p]:+}", "10")
        for p in range(PARTITIONS)
    )
    assert back.undo.startswith(f"switchyard undo {back.id} --stop --execute (until ")
    assert back.figures["replay_records"] == 20 and back.facts["to read"].startswith("20 records, about ")
    assert (
        back.facts["result"].endswith("archived; the release writes its old topic again")
        and back.figures["result_records"] > 0
    )
    assert back.facts["followers"] == follower.group
    world.produce(20)
    world.settle()
    # as if there had been no reset, plus the input that came since
    follower.comes_to(world.expected({}))
    assert world.result() == world.expected({})
    assert switches(world) == before + 2
    with pytest.raises(Refused, match=f"{back.id} changed {world.name} after {done.id}"):
        plan_undo(world.context, done.id)
    # an undo can be undone like a reset
    world.run(plan_undo(world.context, back.id, stop=True))
    world.settle()
    follower.comes_to(world.expected(start))
    assert world.result() == world.expected(start)
    # the next generation's topic has a name that was never used
    world.reset(EARLIEST, stop=True)
    world.settle()
    assert world.release.result_topics[""] == f"{world.name}.g{last + 2}"
    follower.comes_to(world.expected({}))


@pytest.mark.parametrize(
    "world",
    [pytest.param(kind, marks=pytest.mark.long) for kind in ("windowed", "stateless", "stateful")],
    indirect=True,
)
def test_resets_of_windows_and_streams_are_undone_too(world: World, follower: Following) -> None:
    done = world.reset(EARLIEST, stop=True)
    world.produce(20)
    world.settle()
    follower.comes_to(world.expected({}))
    undo(world, done)
    world.produce(20)
    world.settle()
    # each record of a stream once, though it is in two results
    follower.comes_to(world.expected({}))
    assert world.release.generation == 1 and world.result() == world.expected({})


@pytest.mark.long
def test_an_undo_is_refused_if_retention_deleted_its_input(world: World, follower: Following) -> None:
    done = world.reset(EARLIEST, stop=True, stay_stopped=True)
    world.start()
    world.produce(20)
    world.settle()
    follower.comes_to(world.expected({}))
    [old] = world.release.ended[1].boundary.position.sources.values()
    gone = [TopicPartition(world.topic, p, old[p] + 1) for p in old]
    # kept until it has answered
    client = admin(world.settings)
    for future in client.delete_records(gone).values():
        future.result(30)
    with pytest.raises(Refused, match=rf"this is deleted: {world.topic}\[0\] {old[0]:,} to ") as error:
        plan_undo(world.context, done.id, stop=True)
    assert "--to-earliest" in error.value.fix
    assert world.release.generation == 2


@pytest.mark.long
def test_an_undo_reads_the_range_that_the_reset_skipped(world: World, follower: Following) -> None:
    world.stop()
    left_out = range(len(world.sent), len(world.sent) + 20)
    world.produce(20)
    done = world.reset(LATEST, state="keep")
    world.start()
    world.produce(20)
    world.settle()
    follower.comes_to(world.recompute([r for r in world.records() if json.loads(r.value or b"")["n"] not in left_out]))
    plan = plan_undo(world.context, done.id, stop=True)
    assert "stay in it" in plan.warnings[0]
    world.run(plan)
    world.start()
    world.settle()
    follower.comes_to(world.expected({}))


@pytest.mark.long
def test_a_live_release_that_stood_still_stands_still_again(world: World, follower: Following) -> None:
    world.stop()
    world.produce(20)
    done = world.reset(EARLIEST)
    assert stands_still(world)
    # consumers were moved all the same, at the end of the old result
    world.start()
    world.settle()
    follower.comes_to(world.expected({}))
    assert follower.got[-1].topic == f"{world.name}.g2"
    world.stop()
    world.run(plan_undo(world.context, done.id))
    assert stands_still(world)
    world.start()
    world.produce(20)
    world.reset(EARLIEST, stop=True, stay_stopped=True)
    assert stands_still(world)
    world.start()
    world.settle()
    follower.comes_to(world.expected({}))


def test_a_plan_says_what_will_be_missing_and_how_long_a_throttle_makes_it_take(standing: World) -> None:
    def plan(target: Target, **options: Any) -> Plan:
        return plan_reset(standing.context, standing.name, Request(target=target, stop=True, **options))

    missing = "the result will not contain input from before the new position; --to-earliest reads that input again too"
    middle = plan(Target(kind="offset", text="--to-offset 20", number=20))
    assert missing in middle.warnings
    assert "B: archived" in middle.facts["result"]
    elsewhere = standing.settings.model_copy(update={"bootstrap_servers": standing.settings.bootstrap})
    asked = Request(target=EARLIEST, stop=True)
    far = plan_reset(replace(standing.context, settings=elsewhere), standing.name, asked)
    assert "size on the broker unknown: archived" in far.facts["result"]
    slow = plan(EARLIEST, max_records_per_batch=2, timeout_s=1.0)
    assert not any("the result will not contain" in w for w in slow.warnings)
    assert slow.figures["replay_s"] >= slow.figures["replay_records"] / 2 * standing.settings.trigger_s - 0.1
    assert "give a longer --timeout" in slow.warnings[-1]
    assert not any("--timeout" in w for w in plan(EARLIEST).warnings)


def test_a_state_that_is_lost_is_not_kept(stopped: World) -> None:
    world, folder = stopped, release_folder(stopped.settings, stopped.name)
    elsewhere = folder.rename(folder.with_name("elsewhere"))
    asked = Request(target=MIDDLE, state="keep")
    with pytest.raises(
        Refused, match=f"holds no complete checkpoint of {world.name}, so there is no state to keep"
    ) as lost:
        plan_reset(world.context, world.name, asked)
    assert f"`switchyard reset {world.name} --to-earliest`" in lost.value.fix
    # --force can't override that either
    with pytest.raises(Refused, match="no state to keep"):
        plan_reset(world.context, world.name, replace(asked, force=True))
    assert plan_reset(world.context, world.name, Request(target=EARLIEST)).stages
    elsewhere.rename(folder)


def test_what_was_cleared_is_not_brought_back(standing: World, along: Following) -> None:
    world, old = standing, standing.release.result_topics[""]
    for output in ("tombstone", "truncate"):
        plan = plan_reset(world.context, world.name, Request(target=EARLIEST, output=output, stop=True))
        assert plan.undo == "" and "no undo" in " ".join(plan.warnings)
        world.run(plan)
        world.settle()
        along.comes_to(world.expected({}))
        with pytest.raises(Refused, match="can't be resumed"):
            plan_undo(world.context, plan.id, stop=True)
    assert old not in topic_names(world.settings)


def test_one_that_has_read_on_since_the_plan_stays_as_it_is(stopped: World) -> None:
    """It was to go to the end of its input, which was another one when the plans were made."""
    world, before = stopped, stopped.release.generations
    world.produce(4)
    plans = [plan_reset(world.context, world.name, Request(target=LATEST, state=state)) for state in ("keep", "clear")]
    world.start()
    world.settle()
    world.stop()
    for plan in plans:
        with pytest.raises(Refused, match=f"{world.name} has read more input since the plan was made"):
            world.run(plan)
        assert world.release.generations == before
    world.start()
    world.produce(4)
    world.settle()
    assert world.result() == world.expected({})


@pytest.mark.long
def test_the_archive_is_ended_by_its_time(world: World, follower: Following) -> None:
    done = world.reset(EARLIEST, stop=True)
    world.settle()
    follower.comes_to(world.expected({}))
    with pytest.raises(Refused, match=r"\(1\) are younger than 7 days"):
        plan_clean(world.context, world.name)
    world.until("the follower has not committed", lambda: _cleanable(world))

    def overdue(age_s: float) -> bool:
        at_ms = round(world.release.generations[2].at_ms + age_s * 1000)
        return world.name in to_clean(world.context, world.context.registry.state(), lambda: at_ms)

    # what the janitor ends, and when
    assert (overdue(604_700), overdue(604_900)) == (False, True)
    world.run(plan_clean(world.context, world.name, after_s=0))
    assert not overdue(604_900)
    assert f"{world.name}.g1" not in topic_names(world.settings)
    with pytest.raises(Refused, match="this is deleted: its result"):
        plan_undo(world.context, done.id, stop=True)
    follower.comes_to(world.expected({}))


@pytest.mark.long
def test_a_topic_is_the_archive_of_the_last_that_wrote_it(world: World, follower: Following) -> None:
    """The archive of a reset with kept state shares its result with the generation that continued in it."""
    world.stop()
    world.produce(4)
    first = world.reset(LATEST, state="keep")
    world.start()
    world.settle()
    second = world.reset(EARLIEST, stop=True)
    world.settle()
    follower.comes_to(world.expected({}))
    ages = {a.generation: a.topics for a in archives_of(world.context, world.context.registry.state(), world.release)}
    assert ages == {1: (), 2: (f"{world.name}.g1",)}
    over = world.release.generations[3].at_ms
    began = world.release.generations[2].at_ms
    world.until("the follower has not committed", lambda: _cleanable(world))
    # the term of the first has passed, that of the second has not
    world.run(plan_clean(world.context, world.name, after_s=0, clock_ms=lambda: (began + over) // 2))
    assert f"{world.name}.g1" in topic_names(world.settings)
    undo(world, second)
    world.settle()
    with pytest.raises(Refused, match="this is deleted: its state"):
        plan_undo(world.context, first.id, stop=True)


def _cleanable(world: World) -> bool:
    try:
        return bool(plan_clean(world.context, world.name, after_s=0))
    except Refused as error:
        assert "still needed by" in error.what
        return False


@pytest.mark.long
def test_resets_are_undone_one_after_the_other(world: World, follower: Following) -> None:
    first = world.reset(EARLIEST, stop=True)
    world.settle()
    second = world.reset(MIDDLE, stop=True)
    world.settle()
    undo(world, second)
    world.settle()
    undo(world, first)
    world.produce(20)
    world.settle()
    assert world.release.generation == 1 and world.result() == world.expected({})
    follower.comes_to(world.expected({}))


@pytest.mark.long
def test_what_was_never_started_is_taken_back_too(world: World, follower: Following) -> None:
    world.stop()
    world.produce(20)
    done = world.reset(LATEST)
    follower.comes_to({})
    undo(world, done)
    world.start()
    world.settle()
    follower.comes_to(world.expected({}))
    assert world.result() == world.expected({})


def test_where_it_goes_must_not_depend_on_what_it_still_reads(standing: World) -> None:
    for request in (
        Request(target=Target(kind="offset", text="--to-offset 99", number=99), state="keep", force=True, stop=True),
        Request(target=Target(kind="shift", text="--shift-by -5", number=-5), stop=True),
        Request(target=LATEST, stop=True),
        # the other partitions stay where they are
        Request(target=EARLIEST, inputs={standing.topic: (0,)}, force=True, stop=True),
        Request(target=EARLIEST, until=Target(kind="current", text="current"), output="keep", force=True, stop=True),
    ):
        with pytest.raises(Refused, match="depends on the position of") as refused:
            plan_reset(standing.context, standing.name, request)
        assert refused.value.what.startswith(request.target.text if request.until is None else "--until current ")


@pytest.mark.long
def test_one_that_has_just_begun_again_is_begun_anew_all_the_same(world: World) -> None:
    """A release at the position that it should move to reads on from there until it has stopped."""
    anew = Request(target=EARLIEST, output="truncate", stop=True, stay_stopped=True)
    world.run(plan_reset(world.context, world.name, anew))
    with Registry(world.settings, actor="a driver") as registry:
        take_lease(registry, world.name)
    plan_reset(world.context, world.name, anew)
    with pytest.raises(Refused, match="depends on the position of"):
        plan_reset(world.context, world.name, replace(anew, output="new"))


@pytest.mark.long
def test_a_result_that_someone_reads_is_not_deleted(world: World, follower: Following) -> None:
    context, second = world.context, beside(world)
    diff(context, second)
    follower.end()
    world.produce(20)
    world.settle()
    world.run(plan_promote(context, second))
    # the follower has not reached the end of what now belongs to the standby
    with pytest.raises(Refused, match=f"can't be deleted: still needed by follower {follower.group}"):
        plan_reset(context, world.name, Request(target=EARLIEST, output="truncate", stop=True))


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), pytest.param(SwitchyardError("the disk is full"), marks=pytest.mark.long)]
)
def test_a_reset_that_ends_before_it_begins_has_the_release_run_on(
    standing: World, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    world, before = standing, standing.release.generation
    plan = plan_reset(world.context, world.name, Request(target=EARLIEST, stop=True))

    def ended(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr("pipelines.kafka.cluster.Cluster.ensure_topic", ended)
        world.run(plan)
    assert world.release.wanted == "running" and world.release.generation == before
    world.produce(4)
    world.settle()
    assert world.result() == world.expected({})


# -- the checks before the first write


def test_a_release_that_runs_is_refused(standing: World) -> None:
    with pytest.raises(Refused, match="is run by process") as caught:
        plan_reset(standing.context, standing.name, Request(target=EARLIEST))
    assert "--stop" in caught.value.fix


def test_a_driver_that_is_still_starting_runs_it(stopped: World) -> None:
    """It is not a member of the consumer group yet, which would not show that it runs."""
    world, client = stopped, admin(stopped.settings)
    with Registry(world.settings, actor="a driver") as registry:
        token = take_lease(registry, world.name).token
        assert not client.describe_consumer_groups([world.name])[world.name].result(30).members
        before = _everything(world)
        with pytest.raises(Refused, match=r"is run by process .*, starting for"):
            plan_reset(world.context, world.name, Request(target=EARLIEST))
        assert _everything(world) == before
        registry.step(lambda _: [LeaseEnded(release=world.name, token=token)])


def test_nobody_starts_it_while_it_is_reset(standing: World) -> None:
    world, tried = standing, 0

    def start() -> None:
        nonlocal tried
        with pytest.raises(Refused, match="is under way on"):
            execute(world.context, plan_start(world.context, world.name))
        with pytest.raises(Refused, match="is run by process"):
            Driver(world.settings, world.name)
        tried += 1

    plan = plan_reset(world.context, world.name, Request(target=EARLIEST, stop=True))
    with before_stage(BeginGeneration, start):
        execute(world.context, plan)
    assert tried == 1
    world.settle()
    assert world.result() == world.expected({})


def test_a_release_of_a_similar_name_is_not_touched(standing: World) -> None:
    """`my-app` is not `my-app-v2`, and `my-app.v1` is not `my-app.v11`."""
    from pipelines.kafka.topics import RESULT_TABLE, ensure_topic

    world, own, number = standing, standing.release.result_topics[""], standing.release.generation
    others = [f"{world.app}-v2.v1.g{number}", f"{world.name}1.g{number}", f"{own}1"]
    for topic in others:
        ensure_topic(world.settings, topic, 1, RESULT_TABLE)
    names = (f"{world.app}-v2.v1", f"{world.name}1")
    folders = [release_folder(world.settings, name) / f"g{number}.t1" for name in names]
    for folder in folders:
        folder.mkdir(parents=True)
    world.reset(EARLIEST, output="truncate", stop=True)
    world.settle()
    assert set(others) <= topic_names(world.settings) and all(folder.is_dir() for folder in folders)
    assert own not in topic_names(world.settings)


@pytest.mark.long
def test_a_group_that_another_tool_moved_is_noticed_and_used_only_by_to_current(world: World) -> None:
    world.stop()
    _move_group(world, 30)
    world.produce(20)
    plan = plan_start(world.context, world.name)
    assert f"{world.topic}[0] from 100 to 30" in plan.warnings[0] and "--to-current" in plan.warnings[0]
    world.run(plan)
    world.settle()
    assert world.result() == world.expected({})
    world.stop()
    _move_group(world, 30)
    world.reset(Target(kind="current", text="--to-current"))
    world.start()
    world.settle()
    assert world.result() == world.expected({0: 30, 1: 30})


def _move_group(world: World, offset: int) -> None:
    """Does what `kafka-consumer-groups --reset-offsets` does."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    client = admin(world.settings)
    wanted = [TopicPartition(world.topic, p, offset) for p in (0, 1)]
    client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(world.name, wanted)])[world.name].result(10)


def test_what_an_app_forbids_or_the_disk_can_not_hold_is_refused(
    stopped: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, request = stopped, Request(target=EARLIEST, stop=True)
    figures = plan_reset(world.context, world.name, request).figures
    needed = figures["state_bytes"] + figures["result_bytes"]
    assert figures["state_bytes"] > 0 and figures["result_bytes"] > 0
    for free in (needed, needed - 1):
        with monkeypatch.context() as patch:
            patch.setattr(costs.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
            with nullcontext() if free == needed else pytest.raises(Refused, match=r"beside the archive, .* are free"):
                plan_reset(world.context, world.name, request)
    spec = world.release.spec.model_copy(update={"reset_allowed": False, "release": f"{world.app}.v9", "version": 9})
    begun = world.release.generations[1].model_copy(update={"release": spec.release})
    world.context.registry.step(lambda _: [Staged(spec=spec), begun])
    with pytest.raises(Refused, match="does not allow a reset"):
        plan_reset(world.context, spec.release, request)


@pytest.mark.long
def test_a_partition_added_to_the_input_is_read_too(world: World, follower: Following) -> None:
    """A new partition is past the old end: none of its records is in the old result."""
    from confluent_kafka.admin import NewPartitions

    world.stop()
    kafka = admin(world.settings)
    kafka.create_partitions([NewPartitions(world.topic, 3)])[world.topic].result(10)
    world.until("the partition is not there", lambda: 2 in ends(world.settings, world.topic))
    client = producer(world.settings)
    for number in range(30):
        client.produce(
            world.topic, json.dumps({"n": 1_000 + number}), f"k{number % 7}", timestamp=START_MS, partition=2
        )
    assert client.flush(30) == 0
    done = world.reset(EARLIEST)
    world.start()
    world.produce(4)
    world.settle()
    assert world.result() == world.expected({})
    follower.comes_to(world.expected({}))
    # and back, where the old generation does not know it
    undo(world, done)
    world.settle()
    assert world.result() == world.expected({})
    follower.comes_to(world.expected({}))


def test_a_dry_run_writes_nothing(stopped: World) -> None:
    world = stopped
    # an operation past its deadline, which the next command that writes will end
    overdue = Opened(id="stop-1", name="stop", releases=(world.name,), deadline_ms=1)
    world.context.registry.step(lambda _: [overdue])
    before = _everything(world)
    for options in ({}, {"force": True}, {"output": "truncate"}, {"output": "tombstone"}):
        plan_reset(world.context, world.name, Request(target=EARLIEST, **options))  # type: ignore[arg-type]
    assert _everything(world) == before
    closed = journal.expire(world.context.registry).operations[overdue.id].closed
    assert closed is not None and closed.outcome == "expired"


@pytest.mark.long
def test_a_dry_run_of_an_undo_writes_nothing(world: World) -> None:
    done = world.reset(EARLIEST, stop=True, stay_stopped=True)
    before = _everything(world)
    plan_undo(world.context, done.id)
    assert _everything(world) == before


def _everything(world: World) -> Any:
    """Topics with their ends and configurations, groups with their offsets, the checkpoint's files with their times."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    from pipelines.kafka.offsets import end_offsets, group_offsets

    topics = {t for t in topic_names(world.settings) if not t.startswith("__")}
    files = {p: p.stat().st_mtime_ns for p in release_folder(world.settings, world.name).rglob("*")}
    ends = end_offsets(world.settings, sorted(topics - {"switchyard.heartbeats"}), committed=False)
    client = admin(world.settings)
    asked = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)])
    configs = {r.name: {n: c.value for n, c in future.result(30).items()} for r, future in asked.items()}
    groups = {g.group_id for g in client.list_consumer_groups().result(30).valid}
    return topics, ends, configs, groups, group_offsets(world.settings, world.name), files


@pytest.mark.long
def test_a_throttled_replay_has_smaller_batches(world: World) -> None:
    from pipelines.kafka.progress import progress_history

    world.reset(EARLIEST, stop=True, max_records_per_batch=30)
    world.settle()
    second = [p for p in progress_history(world.settings, world.name) if p.generation == 2]
    assert 0 < max(p.batch.rows_in for p in second) <= 30


# at how many lines operators are killed: at five in `make test`; the long tests have these five and others, at most 48
KILLED = [
    pytest.param("new", 5),
    *(
        pytest.param(output, kills, marks=pytest.mark.long, id=f"{output}-{kills or 'before each stage'}")
        for output in ("new", "truncate", "tombstone", "keep")
        for kills in (12, EACH_STAGE)
    ),
]


@pytest.mark.parametrize(("output", "kills"), KILLED)
def test_the_same_command_finishes_a_reset_killed_anywhere(
    standing: World, along: Following, output: str, kills: int
) -> None:
    world, known, before = standing, set(standing.release.generations), switches(standing)
    keeps, left_out = output == "keep", range(0)
    position = ("--to-latest", "--state", "keep") if keeps else ("--to-earliest",)
    if keeps:
        world.stop()
        left_out = range(len(world.sent), len(world.sent) + 4)
        world.produce(4)
    finished_by_the_same_command(
        world, "reset", world.name, *position, "--output", output, "--stop", "--yes", kills=kills, story=output
    )
    world.start()
    world.produce(4)
    world.settle()
    expected = world.recompute([r for r in world.records() if json.loads(r.value or b"")["n"] not in left_out])
    assert set(world.release.generations) - known == {world.release.generation} == {max(known) + 1}
    assert world.result() == expected
    along.comes_to(expected)
    assert switches(world) == before + (output in ("new", "truncate"))
