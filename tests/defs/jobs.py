"""Dagster's jobs and schedules in the test's process, on its releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from dagster import (
    DagsterInstance,
    ExecuteInProcessResult,
    JobDefinition,
    RunRequest,
    ScheduleDefinition,
    build_schedule_context,
)

from orchestration.defs.resources import Platform, SparkResource
from orchestration.operations.context import Context
from orchestration.operations.reading import Say
from tests.reset.world import World

# warnings of Dagster's own, from the pydantic that it needs
DEPRECATED = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")


class Dagster:
    """Runs jobs in this process, on a test's releases."""

    def __init__(self, world: World, instance: DagsterInstance) -> None:
        class Here(Platform):
            @contextmanager
            def open(self, say: Say, spark: object = None) -> Iterator[Context]:
                yield world.context

        self.resources = {"platform": Here(), "pyspark": SparkResource()}
        self.instance = instance

    def run(self, job: JobDefinition, **config: Any) -> dict[str, Any]:
        """The metadata of a run's output, including its tags; of a failed run, those of its failure."""
        return self._run(job, {"ops": {job.name: {"config": config}}})

    def tick(self, due: ScheduleDefinition) -> dict[str, Any]:
        """Has a schedule's turn come, and runs what it asks for. Returns the same as `run`."""
        asked: Any = due(build_schedule_context(self.instance, resources={"platform": self.resources["platform"]}))
        assert isinstance(asked, RunRequest), asked
        return self._run(due.job, asked.run_config)

    def _run(self, job: Any, config: Mapping[str, Any]) -> dict[str, Any]:
        result: ExecuteInProcessResult = job.execute_in_process(
            run_config=config,
            resources=self.resources,
            instance=self.instance,
            raise_on_error=False,
        )
        if not result.success:
            failure = result.failure_data_for_node(job.name)
            assert failure is not None and failure.user_failure_data is not None
            return {key: each.value for key, each in failure.user_failure_data.metadata.items()}
        [output] = [event.step_output_data for event in result.all_events if event.is_successful_output]
        found = {key: each.value for key, each in output.metadata.items()}
        return {**found, **result.dagster_run.tags, **self.instance.get_run_by_id(result.run_id).tags}  # type: ignore[union-attr]


@contextmanager
def dagster(world: World) -> Iterator[Dagster]:
    with DagsterInstance.ephemeral() as instance:
        yield Dagster(world, instance)
