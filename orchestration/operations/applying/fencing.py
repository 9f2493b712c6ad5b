"""Fences the writer of a release and finds its last batch: no batch can come after it."""

from __future__ import annotations

from orchestration.operations.context import Context
from pipelines.engine.writer import Writer
from pipelines.model.progress import Progress
from pipelines.model.registry import Release


def last_of(context: Context, release: Release) -> Progress | None:
    """The last committed progress record of the generation under way. Fences every writer that could commit another
    one.
    """
    writer = Writer(context.settings, release.name, release.result_partitions)
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
