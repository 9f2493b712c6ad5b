"""Input that is lost, recreated topics, and parts that someone has deleted: each is named, and has a way back."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import TopicPartition

from demo.ledger.reader import read
from orchestration.defs.jobs import reprocess_job
from orchestration.defs.schedules import reprocessing_schedules
from orchestration.operations.looking.history import MissingHistory
from orchestration.operations.planning.diff import plan_diff
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.reprocess import Conditions, reprocess
from orchestration.operations.procedures.wait import wait_ready
from orchestration.operations.supervising.overview import statuses
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.code import code_path
from pipelines.engine.sink import Sink
from pipelines.engine.watch import PartLost, Watch
from pipelines.errors import Refused
from pipelines.kafka.client import admin
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.progress import ProgressLost
from pipelines.kafka.registry import Registry
from pipelines.kafka.topics import APPEND_ONLY, INPUT, delete_topics, ensure_topic, topic_names
from pipelines.model.entries import WantedSet
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC, dead_letter_topic, progress_topic
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.conftest import sweep
from tests.defs.jobs import DEPRECATED, dagster
from tests.e2e.harness import committed
from tests.reset.world import PARTITIONS, World, following, live_world, reader_of, recomputed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.long]

EARLIEST = Target(kind="earliest", text="--to-earliest")
# for busy cores. How many looks a loss takes is counted; tests/engine/test_watch.py bounds the time between two looks
PATIENCE_S = 60


class Looks:
    """What the drivers' looks for their parts have found since the last `forget`, oldest first."""

    def __init__(self) -> None:
        self.found: list[PartLost | None] = []

    @property
    def missed(self) -> int:
        """How many found nothing before one found a loss."""
        return next((number for number, lost in enumerate(self.found) if lost is not None), len(self.found))

    def forget(self) -> None:
        self.found.clear()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    counted, look = Looks(), Watch.look

    def counting(watch: Watch) -> PartLost | None:
        found = look(watch)
        counted.found.append(found)
        return found

    monkeypatch.setattr(Watch, "look", counting)
    return counted


@pytest.fixture
def world(broker: Settings, spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    with live_world(broker, spark, "count", tmp_path) as made:
        yield made


def cut(world: World, upto: int) -> None:
    """Deletes the input's records before `upto`, as retention does."""
    # kept until it has answered
    client = admin(world.settings)
    gone = [TopicPartition(world.topic, p, upto) for p in range(PARTITIONS)]
    for future in client.delete_records(gone).values():
        future.result(30)


def named(world: World, name: str, *words: str) -> str:
    """Waits until the release has failed with an error that contains `words`. Returns all that the registry says."""

    def failed() -> bool:
        release = world.context.registry.state().releases[name]
        return release.state == "failed" and not world.drivers.alive(name)

    world.until(f"{name} has not failed", failed, timeout_s=PATIENCE_S)
    failure = world.context.registry.state().releases[name].failure or ""
    assert all(word in failure for word in words), failure
    beat = latest_heartbeats(world.settings)[name]
    assert beat.state == "failed" and words[0] in (beat.error or "")
    return failure


def in_status(world: World, name: str) -> str:
    return "\n".join(note for s in statuses(world.context) if s.release.name == name for note in s.notes)


@DEPRECATED
def test_missing_history_moves_no_consumer_unless_it_is_accepted(world: World) -> None:
    context, second = world.context, f"{world.app}.v2"
    cut(world, 30)
    missing = rf"{second} can't read all the input that {world.name} has read: deleted by retention: {world.topic}\[0\] 0 to 29"
    again = {"version": 2, "same_as": world.name, "correction": "scheduled"}
    # at its first step
    with pytest.raises(MissingHistory, match=missing):
        reprocess(context, world.app, **again, conditions=Conditions(auto_promote=True))  # type: ignore[arg-type]
    # so does Dagster: when its schedule is due, and when someone runs the job
    [schedule] = reprocessing_schedules([cast(Any, SimpleNamespace(name=world.app))])
    with dagster(world) as jobs:
        for failed in (
            jobs.tick(schedule),
            jobs.run(reprocess_job, app=world.app, **again, auto_promote=True, execute=True),
        ):
            assert re.match(missing, failed["error"]) and "--missing-history accept" in failed["to do"]
            assert failed["exit_code"] == 3
    chain = context.registry.state().chains[world.app]
    assert [link.new for link in chain] == [world.name]
    assert second not in context.registry.state().releases and f"{second}.g1" not in topic_names(world.settings)
    said = world.cli("stage", world.app, "--same-as", world.name, "--correction", "late data", "--execute")
    assert said.code == 3 and "(60 offsets)" in said.text and "--missing-history accept" in said.text
    said = world.cli("stage", world.app, "--same-as", world.name, "--correction", "late", "--missing-history", "accept", "--execute")  # fmt: skip
    assert said.code == 0, said.text
    # what was accepted need not be accepted again; what goes missing later must be
    world.run(plan_start(context, second))
    wait_ready(context, second, for_s=0.1, timeout_s=120)
    found = diff(context, second)
    assert found.changed == 7
    plan = plan_promote(context, second)
    assert "accepted before" in plan.facts["missing history"]
    world.run(plan_stop(context, second))
    world.produce(40)
    world.settle()
    cut(world, 110)
    unread = rf"{world.topic}\[0\] 100 to 109"
    for step in (
        lambda: wait_ready(context, second),
        lambda: plan_diff(context, second),
        lambda: plan_promote(context, second),
    ):
        with pytest.raises(MissingHistory, match=unread):
            step()
    # it would start again, after all the records that are gone
    with pytest.raises(MissingHistory, match=rf"{world.topic}\[0\] 30 to 109"):
        plan_start(context, second)
    # a driver that runs stops with the same words
    context.registry.step(lambda _: [WantedSet(release=second, wanted="running")])
    world.drivers.launch(second)
    named(world, second, "deleted by retention", f"{world.topic}[0] 100 to 109", "--missing-history accept")
    world.run(plan_start(context, second, accept_missing=True))
    wait_ready(context, second, for_s=0.1, timeout_s=120)
    assert context.registry.state().releases[second].generation == 2
    # nor does the live one silently read less of it
    with pytest.raises(MissingHistory, match=rf"{world.topic}\[0\] 0 to 109"):
        plan_reset(context, world.name, Request(target=EARLIEST, stop=True))
    assert plan_reset(context, world.name, Request(target=EARLIEST, stop=True, accept_missing=True)).stages


def test_retention_that_deletes_what_a_batch_is_about_to_read_stops_the_driver(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is planned, and the first half of its records is deleted before Spark reads them."""
    batches: list[int] = []
    process_batch = Sink.process_batch

    def process(sink: Sink, rows: DataFrame, batch_id: int) -> None:
        if batch_id > before.boundary.batch_id and not batches:
            cut(world, 105)
            batches.append(batch_id)
        process_batch(sink, rows, batch_id)

    with following(world) as follower:
        follower.comes_to(world.expected({}))
        world.stop()
        known, before = world.result(), committed(world.settings, world.name)
        world.produce(20)
        monkeypatch.setattr(Sink, "process_batch", process)
        # as an operator's command does; whoever waits for the start may see the failure first
        context = world.context
        context.registry.step(lambda _: [WantedSet(release=world.name, wanted="running")])
        world.drivers.launch(world.name)
        named(world, world.name, "deleted by retention", f"{world.topic}[0] 100 to 104", "--missing-history accept")
        assert batches == [before.boundary.batch_id + 1]
        # nothing of the batch was committed, the half that is there included
        assert committed(world.settings, world.name) == before and world.result() == known
        world.reset(EARLIEST, accept_missing=True)
        world.start()
        world.produce(20)
        world.settle()
        assert world.release.generation == 2 and world.result() == world.expected({0: 105, 1: 105})
        follower.comes_to(world.expected({}))


def test_a_recreated_input_stops_the_release_until_it_starts_in_the_new_topic(world: World) -> None:
    with following(world) as follower:
        follower.comes_to(world.expected({}))
        before = world.context.progress(world.name)
        delete_topics(world.settings, [world.topic])
        ensure_topic(world.settings, world.topic, PARTITIONS, INPUT)
        world.sent.clear()
        world.produce(400)
        failure = named(world, world.name, "was deleted", "restore the old topic")
        assert "--to-earliest --output new" in failure and "switchyard stage" not in failure
        assert in_status(world, world.name).count("was deleted") == 1
        after = world.context.progress(world.name)
        assert before is not None and after is not None
        # no other driver has tried, nor has another generation begun
        assert (after.generation, after.token) == (before.generation, before.token)
        with pytest.raises(Refused, match=f"input {world.topic} of {world.name} was deleted"):
            plan_start(world.context, world.name)
        with pytest.raises(MissingHistory, match="recreated under the same name"):
            plan_reset(world.context, world.name, Request(target=EARLIEST))
        world.reset(EARLIEST, accept_missing=True)
        world.start()
        world.produce(20)
        world.settle()
        assert world.release.generation == 2 and world.result() == world.expected({})
        follower.comes_to(world.expected({}))


def test_lost_parts_are_named_and_recreated_one_after_the_other(world: World, tmp_path: Path, looks: Looks) -> None:
    context, settings, name = world.context, world.settings, world.name
    with following(world) as follower:
        follower.comes_to(world.expected({}))
        for number, part in enumerate((world.release.result_topics[""], progress_topic(name)), 2):
            delete_topics(settings, [part])
            looks.forget()
            failure = named(world, name, f"{part} of {name} is gone", "--to-earliest --output new")
            # one may have been under way
            assert looks.missed <= 1
            assert "switchyard reset" in failure and f"{part} of {name} is gone" in in_status(world, name)
            with pytest.raises(Refused, match=f"{part} of {name} is gone"):
                plan_start(context, name)
            world.reset(EARLIEST)
            world.start()
            world.produce(20)
            world.settle()
            assert world.release.generation == number and world.result() == world.expected({})
            follower.comes_to(world.expected({}))
        # what a release can run without is created again while it runs
        for part in (dead_letter_topic(name), HEARTBEATS_TOPIC):
            delete_topics(settings, [part])
            world.until(
                f"{part} was not made again", lambda part=part: part in topic_names(settings), timeout_s=PATIENCE_S
            )
        world.until(
            "lost letters are not named", lambda: "the dead letters before that are lost" in in_status(world, name)
        )
        world.produce(20)
        world.settle()
        follower.comes_to(world.expected({}))
        # the checkpoint, while it runs
        world.until("it isn't heard", lambda: name in latest_heartbeats(settings))
        shutil.rmtree(release_folder(settings, name))
        looks.forget()
        # the next batch makes the folder again
        world.produce(20)
        named(world, name, "checkpoint", "is gone")
        assert looks.missed <= 1
        world.reset(EARLIEST)
        world.start()
        world.produce(20)
        world.settle()
        follower.comes_to(world.expected({}))
        assert in_status(world, name) == ""
        # its code: staged again from the same folder, both releases have it
        path = code_path(settings, world.release.spec.code_digest)
        path.rename(path.with_suffix(".kept"))
        assert f"frozen code {path} of {name} is gone" in in_status(world, name)
        world.run(plan_stage(context, world.app, version=2, code_dir=tmp_path / "code", correction="it was lost"))
        assert path.is_file() and in_status(world, name) == ""


@pytest.mark.parametrize(("kind", "again"), [("count", True), ("count", False), ("stateless", True)])
def test_consumers_go_back_from_a_release_whose_progress_is_lost(
    kind: str, again: bool, broker: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    """By a comparison of both tables as they are, by the delta of the last diff, and without any for a stream."""
    with live_world(broker, spark, kind, tmp_path) as world, following(world) as follower:
        context, first = world.context, world.name
        world.run(plan_stage(context, world.app, version=2, same_as=first, correction="the same again"))
        world.run(plan_start(context, f"{world.app}.v2"))
        wait_ready(context, f"{world.app}.v2", for_s=0.1, timeout_s=120)
        diff(context, f"{world.app}.v2")
        world.run(plan_promote(context, world.app))
        world.version = 2
        # reset, it has something to undo, and is not compared: its consumers follow generation 2
        reset = world.reset(EARLIEST, stop=True) if again else None
        world.start()
        world.produce(20)
        for world.version in (1, 2):
            world.settle()
        follower.comes_to(world.expected({}))
        ended = committed(world.settings, world.name)
        lost = progress_topic(world.name)
        delete_topics(world.settings, [lost])
        named(world, world.name, f"progress {lost} of {world.name} is gone")
        if reset is not None:
            with pytest.raises(ProgressLost, match=f"{lost} of {world.name} is gone") as refused:
                plan_undo(context, reset.id)
            assert f"`switchyard reset {world.name} --to-earliest --output new --execute`" in refused.value.fix
        # a new version does not need it: the consumer group tells what the live release has read
        assert plan_stage(context, world.app, same_as=first, correction="the same again").stages
        plan = plan_rollback(context, world.app)
        names = [type(stage).__name__ for stage in plan.stages]
        assert names[0] == "Fence" and ("Compare" in names) is (again and kind == "count")
        said = world.cli("rollback", world.app, "--execute")
        assert said.code == 0, said.text
        link = context.registry.state().chains[world.app][-1]
        assert (link.old, link.new) == (world.name, first) and link.old_end is not None and link.cut is not None
        assert link.cut.same(ended.boundary.position) and link.old_end.dominates(ended.result)
        assert world.release.wanted == "stopped" and not world.drivers.alive(world.name)
        world.version = 1
        world.produce(20)
        world.settle()
        # a stream's consumer gets each record once: the standby has a boundary exactly where the other ended
        follower.comes_to(world.expected({}))


def counted(upstream: World) -> dict[str, Any]:
    """What a reader of the records of `upstream` counts now: key -> row."""
    found = read(upstream.settings.bootstrap, upstream.release.result_topics[""])
    return cast(
        dict[str, Any],
        recomputed("count", [r._replace(key=json.loads(r.key or b"")["k"].encode()) for r in found]),
    )


def test_consumers_move_to_a_version_that_reads_the_new_topic_of_an_input(
    broker: Settings, spark: SparkSession, tmp_path: Path
) -> None:
    """The input is another release's result. It is lost, and the reset that restores it writes a new topic."""
    folder = tmp_path / "reader"
    folder.mkdir()
    with (
        live_world(broker, spark, "stateless", tmp_path) as upstream,
        reader_of(upstream, folder, pinned=True) as reader,
    ):
        reader.make_live()
        context, first = reader.context, reader.name
        assert reader.release.spec.inputs["numbers"].release == upstream.name
        with following(reader) as follower:
            follower.comes_to(counted(upstream))
            lost = upstream.release.result_topics[""]
            delete_topics(upstream.settings, [lost])
            failure = named(reader, first, f"input {lost} of {first} was deleted", f"switchyard status {upstream.name}")
            named(upstream, upstream.name, f"result {lost} of {upstream.name} is gone", "--to-earliest --output new")
            upstream.reset(EARLIEST)
            upstream.start()
            upstream.produce(20)
            upstream.settle()
            # it never runs again
            with pytest.raises(Refused, match="was deleted"):
                plan_start(context, first)
            with pytest.raises(Refused, match="was deleted"):
                plan_reset(context, first, Request(target=EARLIEST, accept_missing=True))
            ended = committed(reader.settings, first)
            [way] = re.findall(r"`switchyard (reprocess [^`]*)`", failure)
            said = reader.cli(*way.split(), "--for", "0.1s", "--auto-promote")
            assert said.code == 0, said.text
            reader.version = 2
            assert reader.release.spec.topics == {"numbers": upstream.release.result_topics[""]} != {"numbers": lost}
            link = context.registry.state().chains[reader.app][-1]
            assert (link.old, link.new) == (first, reader.name) and link.old_end is not None
            assert link.old_end.dominates(ended.result)
            old = context.registry.state().releases[first]
            assert (old.state, old.wanted) == ("failed", "stopped") and not reader.drivers.alive(first)
            upstream.produce(20)
            upstream.settle()
            reader.settle()
            assert reader.result() == counted(upstream)
            follower.comes_to(counted(upstream))


def test_a_new_diff_replaces_a_lost_delta_and_lost_evidence(world: World) -> None:
    context, second = world.context, f"{world.app}.v2"
    world.run(plan_stage(context, world.app, version=2, same_as=world.name, correction="the same again"))
    world.run(plan_start(context, second))
    wait_ready(context, second, for_s=0.1, timeout_s=120)
    diff(context, second)
    assert in_status(world, second) == ""
    evidence = context.registry.state().evidence[-1]
    assert evidence.forward is not None
    delete_topics(world.settings, [evidence.forward.topic])
    shutil.rmtree(world.settings.state_dir / "evidence" / evidence.id)
    said = in_status(world, second)
    assert (
        f"delta {evidence.forward.topic} of {second} is gone" in said
        and "evidence" in said
        and "switchyard diff" in said
    )
    diff(context, second)
    assert in_status(world, second) == ""
    # a start creates a candidate's own parts again
    delete_topics(world.settings, [progress_topic(second), f"{second}.g1"])
    named(world, second, "is gone")
    world.run(plan_start(context, second))
    wait_ready(context, second, for_s=0.1, timeout_s=120)
    assert diff(context, second).changed == 0
    # a standby's parts: no loss stops the live one, and each has its way back
    first = world.name
    world.run(plan_promote(context, world.app))
    delete_topics(world.settings, [f"{first}.g1", progress_topic(first)])
    named(world, first, f"result {first}.g1 of {first} is gone", "--to-earliest --output new")
    assert f"progress {progress_topic(first)} of {first} is gone" in in_status(world, first)
    assert in_status(world, second) == ""
    world.reset(EARLIEST)
    world.start()
    world.settle()
    assert world.result() == world.expected({})
    world.stop()
    admin_client = admin(world.settings)
    admin_client.delete_consumer_groups([first])[first].result(30)
    assert in_status(world, first).startswith(f"group {first} of {first} is gone; the next driver creates it again")
    world.start()
    world.produce(20)
    world.settle()
    assert in_status(world, first) == ""
    world.stop()
    shutil.rmtree(release_folder(world.settings, first))
    assert f"checkpoint {release_folder(world.settings, first)} of {first} is gone" in in_status(world, first)
    world.reset(EARLIEST)
    world.start()
    world.settle()
    assert world.result() == world.expected({}) and in_status(world, first) == ""
    # an aborted release has no parts: what was deleted by hand is not missed, and the rest goes with it
    delete_topics(world.settings, [progress_topic(first)])
    named(world, first, "is gone")
    world.run(plan_retire(context, first, after_s=0))
    assert in_status(world, first) == "" and not [t for t in topic_names(world.settings) if t.startswith(first)]


def test_a_recreated_registry_stops_a_driver_of_the_old_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made, find = threading.Event(), Watch._find

    def later(watch: Watch) -> PartLost | None:
        # two looks at a registry that is not there yet would call it gone
        assert made.wait(PATIENCE_S)
        return find(watch)

    monkeypatch.setattr(Watch, "_find", later)
    delete_topics(world.settings, [REGISTRY_TOPIC])
    ensure_topic(world.settings, REGISTRY_TOPIC, 1, APPEND_ONLY)
    made.set()

    def heard() -> bool:
        beat = latest_heartbeats(world.settings).get(world.name)
        said = (beat.error or "") if beat is not None and beat.state == "failed" else ""
        return "registry switchyard.registry" in said and "was deleted and recreated" in said

    world.until("the driver has not said so", heard, timeout_s=PATIENCE_S)
    with Registry(world.settings) as new:
        assert not new.state().releases and not [*new.history()]


@pytest.fixture
def swept(broker: Settings) -> Iterator[None]:
    """Deletes all topics after the test. Without a registry, no other test could start."""
    yield
    sweep(broker)


@pytest.mark.usefixtures("swept")
def test_a_lost_registry_is_not_recreated_while_releases_exist(world: World) -> None:
    delete_topics(world.settings, [REGISTRY_TOPIC])

    def heard() -> bool:
        beat = latest_heartbeats(world.settings).get(world.name)
        return beat is not None and beat.state == "failed" and "registry switchyard.registry" in (beat.error or "")

    world.until("the driver has not said so", heard, timeout_s=PATIENCE_S)
    for command in (("status",), ("start", world.name, "--execute"), ("stage", world.app, "--execute")):
        said = world.cli(*command)
        assert said.code == 3 and "the registry, topic switchyard.registry, is gone" in said.text
        assert "restore the topic" in said.text
    with pytest.raises(Refused, match=world.name):
        Registry(world.settings)
    assert REGISTRY_TOPIC not in topic_names(world.settings)
