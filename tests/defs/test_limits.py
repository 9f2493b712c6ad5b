"""How many runs Dagster carries out at once: what takes long leaves room for a rollback, and a start may wait."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from dagster import AssetsDefinition, DagsterInstance, DagsterRunStatus
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from orchestration.catalog import find_apps
from orchestration.defs import supervisor
from orchestration.defs.jobs import promote_job, rollback_job, start_job, watch_job
from orchestration.defs.names import HYDRATION_POOL, LIMITED, RELEASE_TAG, TOKEN_TAG
from orchestration.defs.resets import reset_job, undo_job
from orchestration.defs.results import results_assets
from orchestration.local import memory, ui
from pipelines.model.registry import RegistryState
from pipelines.settings import get_settings
from tests.operations.builders import release

STATE = RegistryState(releases={"sums.v1": release("sums.v1", token=3)})


def test_a_rollback_finds_room_beside_all_runs_that_take_long(tmp_path: Path) -> None:
    ui.prepare(tmp_path)
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        limits = {(each["key"], each["value"]): each["limit"] for each in queue.tag_concurrency_limits}
    limited = [(LIMITED, job.tags[LIMITED]) for job in (reset_job, start_job, watch_job)]
    assert sorted(limits) == sorted(limited) and undo_job.tags[LIMITED] == reset_job.tags[LIMITED]
    in_pools = [runs if runs is not None else memory.spark_runs(1 << 30, get_settings()) for runs in ui.POOLS.values()]
    assert queue.max_concurrent_runs > sum(in_pools) + sum(limits.values())
    assert all(LIMITED not in job.tags for job in (promote_job, rollback_job))


def test_what_waits_for_a_release_to_catch_up_is_in_a_pool() -> None:
    def pools(assets: AssetsDefinition) -> set[str | None]:
        return {assets.op.pool}

    assert all(pools(each) == {HYDRATION_POOL} for each in results_assets(find_apps()))


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        (DagsterRunStatus.QUEUED, True),
        (DagsterRunStatus.NOT_STARTED, True),
        # for longer than a start takes: its worker is gone
        (DagsterRunStatus.STARTED, False),
        (DagsterRunStatus.FAILURE, False),
    ],
)
def test_a_start_that_waits_in_the_queue_is_not_made_again(
    status: DagsterRunStatus, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DagsterInstance.ephemeral() as instance:
        run(instance, status)
        assert supervisor.starting(instance, STATE) == (
            {"sums.v1"} if status is not DagsterRunStatus.FAILURE else set()
        )
        monkeypatch.setattr(supervisor, "_START_RUN", timedelta(seconds=-1))
        assert supervisor.starting(instance, STATE) == ({"sums.v1"} if counts else set())


@pytest.mark.parametrize(
    ("status", "token", "of", "counts"),
    [
        (DagsterRunStatus.STARTED, 3, "this run", True),
        # someone has looked at the registry before
        (DagsterRunStatus.STARTED, 4, "this run", True),
        # a driver has the lease. If it dies with the worker of the run, the run stays "started"
        (DagsterRunStatus.STARTED, 2, "this run", False),
        # the tag of a run that this one repeats
        (DagsterRunStatus.STARTED, 2, "another run", True),
        # it will start a driver, whatever others have done meanwhile
        (DagsterRunStatus.QUEUED, 2, "this run", True),
    ],
)
def test_a_start_whose_driver_has_taken_the_lease_starts_nothing_more(
    status: DagsterRunStatus, token: int, of: str, counts: bool
) -> None:
    with DagsterInstance.ephemeral() as instance:
        made = run(instance, status)
        instance.add_run_tags(made, {TOKEN_TAG: f"{made if of == 'this run' else of}/{token}"})
        assert supervisor.starting(instance, STATE) == ({"sums.v1"} if counts else set())


def run(instance: DagsterInstance, status: DagsterRunStatus) -> str:
    """The id of a new run of `start` with that status."""
    location = ManagedGrpcPythonEnvCodeLocationOrigin(LoadableTargetOrigin(module_name="orchestration.definitions"))
    return create_run_for_test(
        instance,
        job_name=start_job.name,
        status=status,
        tags={RELEASE_TAG: "sums.v1"},
        remote_job_origin=RemoteJobOrigin(RemoteRepositoryOrigin(location, "all"), start_job.name),
        job_code_origin=JobPythonOrigin(start_job.name, RepositoryPythonOrigin("python", ModuleCodePointer("m", "f"))),
    ).run_id
