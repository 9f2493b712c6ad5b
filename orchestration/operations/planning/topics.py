"""The stages that create a release's topics."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.releases import CreateTopic
from pipelines.kafka.topics import PROGRESS, RESULT_STREAM, RESULT_TABLE
from pipelines.model.entries import ReleaseSpec
from pipelines.model.names import result_topic
from pipelines.model.parts import Loss
from pipelines.model.registry import Release


def create_results(spec: ReleaseSpec, generation: int) -> tuple[CreateTopic, ...]:
    """The stages that create the result topics of a generation."""
    return tuple(
        CreateTopic(
            name=result_topic(spec.release, generation, name),
            partitions=result.partitions,
            config=dict(RESULT_TABLE if result.table else RESULT_STREAM),
        )
        for name, result in spec.outputs.items()
    )


def lost_topics_again(release: Release, lost: Sequence[Loss]) -> tuple[Stage, ...]:
    """The stages that create a release's progress and dead-letter topics again if they were deleted."""
    configs = {"progress": PROGRESS, "dead letters": RESULT_STREAM}
    return tuple(
        CreateTopic(name=loss.name, partitions=1, config=dict(configs[loss.part]))
        for loss in lost
        if loss.part in configs and loss.how == "gone"
    )
