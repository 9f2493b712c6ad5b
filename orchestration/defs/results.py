"""`results/<app>`: a partition per release. Materializing one is a run that ends, around a query that does not."""

# no `from __future__ import annotations`: Dagster reads the class of `config` from the annotation

import inspect
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dagster import AssetExecutionContext, AssetsDefinition, Config, MaterializeResult, MetadataValue, asset
from pydantic import Field

from orchestration.catalog import in_words, topics_of
from orchestration.defs import report
from orchestration.defs.columns import columns_of, expected_columns
from orchestration.defs.names import APP_TAG, HYDRATION_POOL, OWNERS, group_of, input_key, releases_of, results_key
from orchestration.defs.resources import Platform
from orchestration.defs.shell import RunContext, carry_out, failures_told, tag_run
from orchestration.operations.context import Context
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import Asked
from orchestration.operations.plans.kind import Kind
from orchestration.operations.procedures.reprocess import first_step
from orchestration.operations.procedures.wait import Hydration, wait_ready
from pipelines.errors import BadUsage
from pipelines.model.app import App, Table
from pipelines.model.names import split_release

_TELL_EVERY_S = 5.0


class Staging(Config):
    """How to stage a release that is not staged yet. A staged release never changes; options that differ are refused."""

    code_dir: str | None = Field(
        default=None, description="Folder with the app's modules; default: the apps that come with Switchyard."
    )
    same_as: str | None = Field(
        default=None, description="A release whose frozen code and settings to use instead of a folder's code."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the app that differ from its defaults."
    )
    correction: str | None = Field(
        default=None, description="Reason to run unchanged code again: late data, an upstream fix."
    )
    upstream: list[str] = Field(
        default_factory=list, description="Releases of other apps to read instead of the live ones."
    )
    accept_missing_history: bool = Field(
        default=False,
        description="Accept that the result lacks input that the live release has read and Kafka no longer keeps.",
    )

    def asked(self, version: int | None) -> Asked:
        """The options for `first_step`."""
        return {
            "version": version,
            "code_dir": Path(self.code_dir) if self.code_dir else None,
            "same_as": self.same_as,
            "settings": self.settings,
            "correction": self.correction,
            "accept_missing": self.accept_missing_history,
            "upstream": self.upstream,
        }


class Hydrating(Staging):
    """How to stage a release, and when it counts as ready."""

    unread_records: int = Field(
        default=0,
        ge=0,
        description="How many records a batch may leave unread while the release still counts as caught up.",
    )
    for_s: float = Field(default=10.0, ge=0, description="How long it must stay caught up, in seconds.")
    timeout_s: float = Field(
        default=3600.0, gt=0, description="Longest time to wait, in seconds. The driver keeps running after that."
    )


def results_assets(apps: Sequence[App]) -> list[AssetsDefinition]:
    """The asset of each app's results."""
    return [_results(app) for app in apps]


def _results(app: App) -> AssetsDefinition:
    kinds = {"table" if isinstance(each, Table) else "stream" for each in app.results.values()}
    kind = in_words(app)
    # Markdown shows indented lines as code
    does = inspect.getdoc(app.function) or ""

    @asset(
        key=results_key(app.name),
        partitions_def=releases_of(app.name),
        deps=[*map(input_key, topics_of(app)), *(results_key(of.app) for of in app.upstream.values())],
        group_name=group_of(app),
        description=f"{does}\n\n{kind[0].upper()}{kind[1:]}. A partition is a release. Materialize it to stage and start that release; a driver "
        "that already runs is kept. The run ends when the release has caught up; the driver keeps running.",
        kinds={"pyspark", "kafka", *kinds},
        owners=OWNERS,
        tags={APP_TAG: app.name},
        pool=HYDRATION_POOL,
        metadata={
            "settings": MetadataValue.json(dict(app.settings)),
            "watermark": app.watermark or "none",
            **expected_columns(app),
        },
    )
    def results(context: AssetExecutionContext, config: Hydrating, platform: Platform) -> MaterializeResult[None]:
        name = context.partition_key
        tag_run(context, name)
        with failures_told(), platform.open(context.log.info) as operations:
            metadata = hydrate(context, operations, app.name, name, config)
        return MaterializeResult(metadata=metadata)

    return results


def hydrate(context: RunContext, operations: Context, app: str, name: str, config: Hydrating) -> report.Metadata:
    """Stages release `name` unless it is staged, starts it unless it runs, waits until it is ready. Returns its
    numbers.
    """
    parts = split_release(name)
    if parts is None or parts[0] != app:
        raise BadUsage(f"{name} is not a release of {app}", fix=f"name the partition like {app}.v2")
    metadata: report.Metadata = {"release": name}
    plan = carry_out(context, operations, lambda: first_step(operations, app, **config.asked(parts[1])), execute=True)
    if plan.operation is Kind.STAGE:
        metadata["plan"] = MetadataValue.md(plan.markdown())
        carry_out(context, operations, lambda: plan_start(operations, name), execute=True)
    wait_ready(
        operations,
        name,
        unread_records=config.unread_records,
        for_s=config.for_s,
        timeout_s=config.timeout_s,
        on_progress=teller(context),
    )
    release = operations.registry.state().releases[name]
    return metadata | report.of_release(release, operations.beats().get(name)) | columns_of(release)


def teller(context: RunContext, clock: Callable[[], float] = time.monotonic) -> Callable[[Hydration], None]:
    """Logs how far a release is, every few seconds."""
    told_s = clock() - _TELL_EVERY_S

    def tell(found: Hydration) -> None:
        nonlocal told_s
        if clock() - told_s < _TELL_EVERY_S:
            return
        told_s = clock()
        eta = "" if found.eta_s is None else f", {found.eta_s:,.0f} s left"
        context.log.info(
            f"{found.release}: {found.position_records:,} of {found.total_records:,} records, "
            f"{found.records_per_s:,.0f}/s{eta}"
        )

    return tell
