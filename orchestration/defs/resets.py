"""Resets as jobs, with the options, checks and plans of `switchyard reset` and `undo`; and `bisect`, which finds what
to skip.
"""

# no `from __future__ import annotations`: Dagster reads the class of `config` from the annotation

from enum import Enum
from pathlib import Path

from dagster import Config, OpExecutionContext, job, op
from pydantic import Field

from orchestration.defs.resources import Platform, SparkResource
from orchestration.defs.shell import failures_told, run_plan, tag_run
from orchestration.operations.planning.reset.export import new_positions
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.undo import plan_undo
from orchestration.operations.plans.positions import PositionOptions, export_to, topics_of, until_of
from orchestration.operations.procedures.bisect import bisect
from pipelines.errors import Refused


class State(Enum):
    clear = "clear"
    keep = "keep"


class Output(Enum):
    new = "new"
    truncate = "truncate"
    tombstone = "tombstone"
    keep = "keep"


class ResetConfig(Config):
    """Where a release goes, and what happens to its state and its result. By default, the run only shows the plan."""

    release: str = Field(description="Name of the release, for example stock-stats.v2.")
    to_earliest: bool = Field(default=False, description="To the first offsets that are kept.")
    to_latest: bool = Field(default=False, description="To the end of the input.")
    to_current: bool = Field(default=False, description="To the offsets of the consumer group.")
    to_datetime: str | None = Field(
        default=None, description="To the first records at or after this time, with its zone: ...Z or ...+01:00."
    )
    by_duration: str | None = Field(default=None, description="To this long before now, for example PT6H.")
    shift_by: int | None = Field(default=None, description="By this many records; backward if negative.")
    to_offset: int | None = Field(default=None, description="To this offset on every partition.")
    from_file: str | None = Field(
        default=None, description="To the positions in this file: lines of topic,partition,offset."
    )
    skip: str | None = Field(default=None, description="Skip exactly this record, for example trades:0:1234.")
    input_topics: str | None = Field(default=None, description="Move only these inputs: trades:0,1,orders.")
    until: str | None = Field(default=None, description="Stop at this position: current, latest, an offset or a time.")
    state: State | None = Field(
        default=None, description="Start with an empty state, or keep it; default: clear (with skip: keep)."
    )
    output: Output | None = Field(
        default=None, description="What happens to the result; default: new (with state keep: keep)."
    )
    stop: bool = Field(default=False, description="Stop the release first if it runs.")
    stay_stopped: bool = Field(default=False, description="Do not start the release afterwards.")
    force: bool = Field(default=False, description="Override the objections that can be overridden.")
    export: str | None = Field(
        default=None, description="With execute: write the new positions to this new file, for from_file."
    )
    # deleting a result can't be undone, so it takes the release's name, as on a terminal
    confirm: str | None = Field(default=None, description="With output truncate: the release's name, to confirm.")
    max_records_per_batch: int | None = Field(
        default=None, ge=1, description="Throttle the replay; lasts until the driver next starts after the replay."
    )
    timeout_s: float = Field(default=3600.0, gt=0, description="Longest time to wait for the replay, in seconds.")
    accept_missing_history: bool = Field(
        default=False, description="Accept that the result lacks input that the old one has and Kafka no longer keeps."
    )
    reason: str | None = Field(default=None, description="Why you do this, for the audit trail.")
    execute: bool = Field(default=False, description="Carry out the plan; without it, the plan is only shown.")

    def request(self) -> Request:
        """The request. Raises BadUsage as the command does."""
        target = PositionOptions(
            to_earliest=self.to_earliest, to_latest=self.to_latest, to_current=self.to_current,
            to_datetime=self.to_datetime, by_duration=self.by_duration, shift_by=self.shift_by,
            to_offset=self.to_offset, from_file=Path(self.from_file) if self.from_file else None, skip=self.skip,
        ).target()  # fmt: skip
        return Request(
            target=target, inputs=topics_of(self.input_topics), until=until_of(self.until), state=self.state.value if self.state else None,
            output=self.output.value if self.output else None, stop=self.stop, stay_stopped=self.stay_stopped,
            force=self.force, max_records_per_batch=self.max_records_per_batch, timeout_s=self.timeout_s,
            accept_missing=self.accept_missing_history,
        )  # fmt: skip


class UndoConfig(Config):
    reset: str = Field(description="The reset's id, as its run shows it.")
    stop: bool = Field(default=False, description="Stop the release first if it runs.")
    timeout_s: float = Field(
        default=3600.0, gt=0, description="Longest time to wait until both have read the same input, in seconds."
    )
    reason: str | None = Field(default=None, description="Why you do this, for the audit trail.")
    execute: bool = Field(default=False, description="Carry out the plan; without it, the plan is only shown.")


class BisectConfig(Config):
    release: str = Field(description="A release that is stopped or failed, for example stock-stats.v2.")


@op
def reset_op(context: OpExecutionContext, config: ResetConfig, platform: Platform, pyspark: SparkResource) -> None:
    """Has a release read again from another position."""
    with failures_told(), platform.open(context.log.info, pyspark) as operations:
        request = config.request()
        plan = plan_reset(operations, config.release, request, reason=config.reason)
        if config.execute and request.chosen_output == "truncate" and config.confirm != plan.releases[0]:
            raise Refused(
                f"this deletes the result of {plan.releases[0]} for good",
                fix=f"to confirm that, set confirm: {plan.releases[0]}",
            )
        if config.export is not None and config.execute:
            # someone who may launch runs need not be a user of this machine, so no existing file is overwritten
            export_to(Path(config.export), new_positions(operations, plan), over=False)
        run_plan(context, operations, lambda: plan, execute=config.execute)


@op
def undo_op(context: OpExecutionContext, config: UndoConfig, platform: Platform, pyspark: SparkResource) -> None:
    """Takes a reset back: restores the position, state and result from before it."""
    with failures_told(), platform.open(context.log.info, pyspark) as operations:
        run_plan(
            context,
            operations,
            lambda: plan_undo(
                operations, config.reset, stop=config.stop, timeout_s=config.timeout_s, reason=config.reason
            ),
            execute=config.execute,
        )


@op
def bisect_op(context: OpExecutionContext, config: BisectConfig, platform: Platform, pyspark: SparkResource) -> None:
    """Finds the record that makes the next batch of a release fail, on a copy of its state. Writes nothing to Kafka."""
    with failures_told(), platform.open(context.log.info, pyspark) as operations:
        found = bisect(operations, config.release)
        tag_run(context, config.release)
        if found is None:
            context.add_output_metadata({"record": "none: the next batch runs"})
            return
        # in the form that the job reset takes
        context.add_output_metadata({**found.facts, "skip": found.skip})
        context.log.warning(
            f"{found.record} makes the next batch fail; to skip it, run the job reset with skip: {found.skip}"
        )


@job(name="reset", tags={"dagster/max_runtime": str(26 * 3600)})
def reset_job() -> None:
    """Have a release read again from another position: choose its position, state and result."""
    reset_op.alias("reset")()


@job(name="undo", tags={"dagster/max_runtime": str(26 * 3600)})
def undo_job() -> None:
    """Take a reset back."""
    undo_op.alias("undo")()


@job(name="bisect", tags={"dagster/max_runtime": "3600"})
def bisect_job() -> None:
    """Find the record that makes the next batch of a release fail."""
    bisect_op.alias("bisect")()


RESETS = (reset_job, undo_job, bisect_job)
