"""Resets as jobs, with the options, checks and plans of `switchyard reset` and `undo`; and `bisect`, which finds what
to skip.
"""

# no `from __future__ import annotations`: Dagster reads the class of `config` from the annotation

from enum import Enum
from pathlib import Path
from typing import Literal

from dagster import Config, OpExecutionContext, job, op
from pydantic import Field

from orchestration.defs.names import LIMITED, SPARK_POOL
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


# One class per position, because Dagster makes its choice out of them: the launchpad takes exactly one, by the name in
# `kind`, and completes its fields.
class ToEarliest(Config):
    """To the first offsets that are kept."""

    kind: Literal["to_earliest"] = "to_earliest"

    def options(self) -> PositionOptions:
        return PositionOptions(to_earliest=True)


class ToLatest(Config):
    """To the end of the input."""

    kind: Literal["to_latest"] = "to_latest"

    def options(self) -> PositionOptions:
        return PositionOptions(to_latest=True)


class ToCurrent(Config):
    """To the offsets of the consumer group."""

    kind: Literal["to_current"] = "to_current"

    def options(self) -> PositionOptions:
        return PositionOptions(to_current=True)


class ToDatetime(Config):
    """To the first records at or after a time."""

    kind: Literal["to_datetime"] = "to_datetime"
    time: str = Field(description="A date and time with its zone: 2026-11-01T00:00:00Z or ...+01:00.")

    def options(self) -> PositionOptions:
        return PositionOptions(to_datetime=self.time)


class ByDuration(Config):
    """To a time this long before now."""

    kind: Literal["by_duration"] = "by_duration"
    duration: str = Field(description="For example PT6H or P1DT12H.")

    def options(self) -> PositionOptions:
        return PositionOptions(by_duration=self.duration)


class ShiftBy(Config):
    """By a number of records."""

    kind: Literal["shift_by"] = "shift_by"
    records: int = Field(description="How many; backward if negative.")

    def options(self) -> PositionOptions:
        return PositionOptions(shift_by=self.records)


class ToOffset(Config):
    """To one offset on every partition."""

    kind: Literal["to_offset"] = "to_offset"
    offset: int = Field(description="The offset.")

    def options(self) -> PositionOptions:
        return PositionOptions(to_offset=self.offset)


class FromFile(Config):
    """To the positions in a file."""

    kind: Literal["from_file"] = "from_file"
    path: str = Field(description="A file on Dagster's machine, with lines of topic,partition,offset.")

    def options(self) -> PositionOptions:
        return PositionOptions(from_file=Path(self.path))


class Skip(Config):
    """To the current position, but skip exactly one record."""

    kind: Literal["skip"] = "skip"
    record: str = Field(description="The record, for example trades:0:1234; the job bisect finds it.")

    def options(self) -> PositionOptions:
        return PositionOptions(skip=self.record)


class ResetConfig(Config):
    """Where a release goes, and what happens to its state and its result. By default, the run only shows the plan."""

    release: str = Field(description="Name of the release, for example stock-stats.v2.")
    position: ToEarliest | ToLatest | ToCurrent | ToDatetime | ByDuration | ShiftBy | ToOffset | FromFile | Skip = (
        Field(discriminator="kind", description="The position to read from: choose one.")
    )
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
    force: bool = Field(default=False, description="Reset despite a refusal that says that force overrides it.")
    export: str | None = Field(
        default=None, description="With execute: write the new positions to this new file, for from_file."
    )
    # deleting a result can't be undone, so it takes the release's name, as on a terminal
    confirm: str | None = Field(default=None, description="With output truncate: the release's name, to confirm.")
    max_records_per_batch: int | None = Field(
        default=None,
        ge=1,
        description="Make the batches of the replay smaller. The limit ends when the driver next starts after the replay.",
    )
    timeout_s: float = Field(default=3600.0, gt=0, description="Longest time to wait for the replay, in seconds.")
    accept_missing_history: bool = Field(
        default=False,
        description="Accept that the new result lacks input that the old one contains and Kafka no longer keeps.",
    )
    reason: str | None = Field(default=None, description="Why you do this, for the audit trail.")
    execute: bool = Field(default=False, description="Carry out the plan; without it, the plan is only shown.")

    def request(self) -> Request:
        """The request. Raises BadUsage as the command does."""
        return Request(
            target=self.position.options().target(), inputs=topics_of(self.input_topics), until=until_of(self.until), state=self.state.value if self.state else None,
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
def reset_op(context: OpExecutionContext, config: ResetConfig, platform: Platform) -> None:
    """Makes a release read again from another position."""
    with failures_told(), platform.open(context.log.info) as operations:
        request = config.request()
        plan = plan_reset(operations, config.release, request, reason=config.reason)
        if config.execute and request.chosen_output == "truncate" and config.confirm != plan.releases[0]:
            raise Refused(
                f"this deletes the result of {plan.releases[0]} for good",
                fix=f"to confirm that, set confirm: {plan.releases[0]}",
            )
        if config.export is not None and config.execute:
            # someone who may launch runs need not be a user of this machine, so no existing file is overwritten
            export_to(Path(config.export), new_positions(operations, plan))
        run_plan(context, operations, lambda: plan, execute=config.execute)


@op
def undo_op(context: OpExecutionContext, config: UndoConfig, platform: Platform) -> None:
    """Takes a reset back: restores the position, state and result from before it."""
    with failures_told(), platform.open(context.log.info) as operations:
        run_plan(
            context,
            operations,
            lambda: plan_undo(
                operations, config.reset, stop=config.stop, timeout_s=config.timeout_s, reason=config.reason
            ),
            execute=config.execute,
        )


@op(pool=SPARK_POOL)
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
            f"{found.record} makes the next batch fail; to skip it, run the job reset with position: {{skip: {{record: '{found.skip}'}}}}"
        )


@job(name="reset", tags={"dagster/max_runtime": str(26 * 3600), LIMITED: "reset"})
def reset_job() -> None:
    """Make a release read again from another position. You choose the position, the state and the result."""
    reset_op.alias("reset")()


@job(name="undo", tags={"dagster/max_runtime": str(26 * 3600), LIMITED: "reset"})
def undo_job() -> None:
    """Take a reset back."""
    undo_op.alias("undo")()


@job(name="bisect", tags={"dagster/max_runtime": "3600"})
def bisect_job() -> None:
    """Find the record that makes the next batch of a release fail."""
    bisect_op.alias("bisect")()


RESETS = (reset_job, undo_job, bisect_job)
