"""Applies the stages that move consumers of a release to the result of its next generation."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from orchestration.operations.applying.effects import applies
from orchestration.operations.applying.generations import still_held, take_lease
from orchestration.operations.applying.vigil import Vigil
from orchestration.operations.applying.work import Work
from orchestration.operations.comparing.delta_topic import DeltaTopic, write_delta
from orchestration.operations.comparing.fold import compare_at
from orchestration.operations.comparing.tags import prefix
from orchestration.operations.looking.in_use import followers_before
from orchestration.operations.plans.stages.generations import (
    AppendGeneration,
    AwaitFollowers,
    CompareGenerations,
    Reach,
    Tombstone,
    WriteClearing,
)
from pipelines.engine.librdkafka import LibrdkafkaProducer
from pipelines.engine.writer import Writer
from pipelines.errors import SwitchyardError
from pipelines.kafka.client import consumer
from pipelines.kafka.progress import ProgressTail
from pipelines.kafka.records import read_changes
from pipelines.kafka.topics import APPEND_ONLY
from pipelines.model.entries import DeltaSegment, Entry, EvidenceRecorded, Switch
from pipelines.model.names import delta_topic, result_of
from pipelines.model.positions import ResultPosition
from pipelines.model.progress import Mark, Progress
from pipelines.model.registry import RegistryState, Release
from pipelines.model.switch import promotion


@applies(Tombstone)
def write_tombstones(work: Work, stage: Tombstone) -> None:
    """Writes all tombstones in one transaction. The new generation's first progress record shows them to followers."""
    work.refuse_foreign(stage.release)
    last = work.context.progress(stage.release)
    if last is not None and last.generation == stage.generation:
        return
    # an earlier attempt may have given it back, though the answer was lost
    if stage.release not in work.tokens or work.release(stage.release).lease_ended:
        take_lease(work, stage.release)
    release = still_held(work, stage.release)
    ended = release.under.ended if release.under else None
    keys = _keys(work, release, ended.result) if ended else {}
    writer = Writer(work.context.settings, stage.release, release.result_partitions, LibrdkafkaProducer)
    try:
        # reading the keys may have taken long
        still_held(work, stage.release)
        last = writer.connect()
        if last is not None and last.generation == stage.generation:
            # its driver has started in the meantime
            return
        writer.begin()
        for topic, gone in keys.items():
            writer.send(topic, ((key, None, None) for key in gone))
        writer.acknowledged()
        writer.commit()
    finally:
        writer.close()
    work.context.say(f"wrote tombstones for {sum(map(len, keys.values())):,} keys")


@applies(Reach)
def reach(work: Work, stage: Reach) -> None:
    context, name = work.context, stage.release
    tail, vigil = ProgressTail(context.settings, name), Vigil(context, name)

    def reached() -> bool:
        release = work.now().releases[name]
        if release.state == "failed":
            raise SwitchyardError(f"{name} failed: {release.failure}",
                                  fix=f"to take the reset back: `switchyard abandon {work.plan.id}`, then `switchyard undo {work.plan.id} --stop --execute`")  # fmt: skip
        if _met(work, release, tail.poll(0)) is not None:
            return True
        vigil.look()
        return False

    try:
        context.until(
            f"{name} has not read to where the old result ended",
            reached,
            timeout_s=stage.timeout_s,
            fix=f"see `switchyard status {name}`",
            poll_s=0.25,
        )
    finally:
        tail.close()


def _met(work: Work, release: Release, last: Progress | None) -> Mark | None:
    """The mark where the generation under way reached the old one's end, by its newest progress; None: not yet."""
    reached = last.reached if last is not None and last.generation == release.generation else None
    return reached if reached is not None and reached.op == work.plan.id else None


def _at_the_end(work: Work, release: Release) -> Mark:
    """The mark where the generation under way reached the old one's end. Raises SwitchyardError if it has not."""
    found = _met(work, release, work.context.progress(release.name))
    if found is None:
        raise SwitchyardError(
            f"{release.name} has not reached the end of the old result",
            fix=f"`switchyard status {release.name}` shows how far it is; then `switchyard resume {work.plan.id}` finishes the {work.plan.operation}",
        )
    return found


@applies(CompareGenerations)
def compare_generations(work: Work, stage: CompareGenerations) -> None:
    context, settings = work.context, work.context.settings
    state = context.registry.state()
    if any(e.id == work.plan.id for e in state.evidence):
        return
    release = state.releases[stage.release]
    there, here = _at_the_end(work, release), release.ended[stage.old]
    found = compare_at(
        settings,
        work.plan.id,
        live=(release.spec, here.result),
        new=(release.spec, there.result),
        tolerance=0.0,
        samples=10,
        check=work.check,
    )
    work.now()
    forward, backward = write_delta(settings, release.spec.app, work.plan.id, release.spec.tables)
    entry = EvidenceRecorded(
        id=work.plan.id, live=release.name, live_generation=stage.old, new=release.name, new_generation=stage.new,
        cut=here.boundary.position, live_result=here.result, new_result=there.result,
        summary=found.as_json(), forward=forward, backward=backward,
    )  # fmt: skip
    work.step(lambda _: [entry])
    context.say(
        f"{found.changed:,} keys change, {found.only_live:,} are deleted, {found.only_new:,} are new, {found.identical:,} stay the same"
    )


@applies(WriteClearing)
def write_clearing(work: Work, stage: WriteClearing) -> None:
    if work.context.registry.state().operations[work.plan.id].promoted is not None:
        return
    release = work.release(stage.release)
    ended, old = release.ended.get(stage.old), release.topics_of(stage.old)
    lost = {t for name, t in old.items() if name in release.spec.tables and _is_lost(work, release, t)}
    for topic in sorted(lost):
        work.context.say(f"{topic} is lost, so its keys are unknown: consumers keep the rows that they have from it")
    keys = _keys(work, release, ended.result, but=lost) if ended else {}
    topic = delta_topic(release.spec.app, work.plan.id)
    # reading the keys may have taken long
    work.now()
    work.context.cluster.ensure_topic(topic, 1, APPEND_ONLY)
    work.cleared = DeltaTopic(work.context.settings, topic).append(
        (prefix(result_of(table)) + key, None) for table, gone in keys.items() for key in gone
    )


@applies(AppendGeneration)
def append_generation(work: Work, stage: AppendGeneration) -> None:
    work.step(lambda state: _switch(work, state, stage))


def _switch(work: Work, state: RegistryState, stage: AppendGeneration) -> Sequence[Entry]:
    operation = state.operations[work.plan.id]
    if operation.promoted is not None:
        return []
    release = state.releases[stage.release]
    ended, start = release.ended.get(stage.old), release.first_of(stage.new)
    if stage.met:
        start = _at_the_end(work, release).result
    old_end: ResultPosition | None = ended.result if ended else release.first_of(stage.old)
    if not stage.met and any(_is_lost(work, release, topic) for topic in release.topics_of(stage.old).values()):
        # a lost result can't be read to its end
        old_end = None
    switch = Switch(
        number=stage.number,
        old=release.name,
        # the generation whose result consumers read; a later generation may have written to it too
        old_generation=state.chains[stage.alias][-1].new_generation,
        old_end=old_end,
        new=release.name,
        new_generation=stage.new,
        new_start=start,
        delta=tuple(_segments(work, state)),
        cut=ended.boundary.position if ended and stage.met else None,
    )
    return promotion(state, stage.alias, work.plan.id, switch)


def _segments(work: Work, state: RegistryState) -> Iterator[DeltaSegment]:
    for evidence in state.evidence:
        if evidence.id == work.plan.id and evidence.forward is not None:
            yield evidence.forward
    if work.cleared is not None:
        yield work.cleared


@applies(AwaitFollowers)
def await_followers(work: Work, stage: AwaitFollowers) -> None:
    context = work.context
    context.until(
        f"followers of {stage.alias} have not passed switch {stage.number}",
        lambda: not followers_before(context, work.now(), stage.alias, stage.number),
        timeout_s=stage.timeout_s,
        fix=f"start them, or `switchyard forget-follower {stage.alias} GROUP` for one that will not come back",
        poll_s=0.25,
    )


def _is_lost(work: Work, release: Release, topic: str) -> bool:
    """Whether a result topic of a release was deleted, or recreated under the same name."""
    now = work.context.cluster.topic_ids([topic]).get(topic)
    return now is None or now != release.own_ids.get(topic, now)


def _keys(
    work: Work, release: Release, upto: ResultPosition, *, but: Container[str] = frozenset()
) -> dict[str, list[str]]:
    """Topic -> the keys that its table has at a position of the results. `but`: topics to leave out."""
    timeout_s = work.context.settings.request_timeout_s * 3
    client = consumer(work.context.settings, auto_offset_reset="earliest", enable_partition_eof=True)
    keys: dict[str, list[str]] = {}
    try:
        for topic, end in upto.only(release.spec.tables).topics.items():
            if topic not in but:
                found, _ = read_changes(client, topic, dict.fromkeys(end, 0), end, timeout_s)
                keys[topic] = sorted(key for key, value in found.items() if value is not None)
    finally:
        client.close()
    return keys
