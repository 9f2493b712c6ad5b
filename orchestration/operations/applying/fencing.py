"""Fences the writer of a release and finds its last batch: no batch can come after it."""

from __future__ import annotations

from orchestration.operations.context import Context
from orchestration.operations.looking.progress import end_by_group
from pipelines.engine.librdkafka import LibrdkafkaProducer
from pipelines.engine.writer import Writer
from pipelines.kafka.progress import ProgressLost
from pipelines.model.names import progress_topic
from pipelines.model.progress import Progress
from pipelines.model.registry import Release


def last_of(context: Context, release: Release) -> Progress | None:
    """The last committed progress record of the generation under way. Fences every writer that could commit another
    one. Then raises ProgressLost if the progress topic is gone.
    """
    writer = Writer(context.settings, release.name, release.result_partitions, LibrdkafkaProducer)
    try:
        last = writer.connect()
        if last is not None and last.generation == release.generation:
            return last
        # its driver has never connected, so its first progress record is not written yet
        seed = release.under.seed if release.under else None
        if seed is None:
            return None
        there = context.cluster.topic_ids(release.result_partitions)
        lost = [topic for topic in release.result_partitions if topic not in there]
        return seed.model_copy(update={"result": release.result_start if lost else writer.acknowledged()})
    finally:
        writer.close()


def has_lost_progress(context: Context, release: Release) -> bool:
    """Whether the progress topic is not the one that the release had."""
    topic = progress_topic(release.name)
    now = context.cluster.topic_ids([topic]).get(topic)
    return now != release.own_ids.get(topic, now)


def end_of(context: Context, release: Release) -> Progress | None:
    """As `last_of`, for a release that consumers leave. If its progress topic is lost, its consumer group tells: its offsets
    were committed together with the progress. Raises ProgressLost if it does not tell the end exactly.
    """
    try:
        last = last_of(context, release)
    except ProgressLost:
        # all its writers are fenced by now
        return end_by_group(context, release)
    return end_by_group(context, release) if has_lost_progress(context, release) else last
