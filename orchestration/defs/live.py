"""`live/<app>`: the alias that consumers ask for. Materializing it promotes a release, if the registry allows that."""

# no `from __future__ import annotations`: Dagster reads the class of `config` from the annotation

from collections.abc import Iterator, Sequence
from datetime import timedelta

from dagster import (
    AssetExecutionContext,
    AssetObservation,
    AssetsDefinition,
    Config,
    FreshnessPolicy,
    MaterializeResult,
    asset,
)
from pydantic import Field

from orchestration.defs import report
from orchestration.defs.columns import columns_of, expected_columns
from orchestration.defs.names import APP_TAG, OWNERS, group_of, live_key, results_key
from orchestration.defs.resources import Platform
from orchestration.defs.shell import carry_out, failures_told
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.readiness import MAX_EVIDENCE_AGE_S
from pipelines.model.app import App


class Promotion(Config):
    """What to promote, and what to refuse. By default, the run shows the plan and changes nothing."""

    version: int | None = Field(default=None, description="Version; default: the newest candidate.")
    max_evidence_age_s: float = Field(
        default=MAX_EVIDENCE_AGE_S, ge=0, description="Refuse if the diff is older than this, in seconds."
    )
    max_changed: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Refuse if more than this share of the keys differs; default: only report it.",
    )
    accept_missing_history: bool = Field(
        default=False,
        description="Accept that the result lacks input that the live release has read and Kafka no longer keeps.",
    )
    reason: str | None = Field(default=None, description="Why you do this, for the audit trail.")
    execute: bool = Field(default=False, description="Carry out the plan; without it, the plan is only shown.")


def live_assets(apps: Sequence[App]) -> list[AssetsDefinition]:
    """The asset of each app's alias. While it is fresh, the supervisor also materializes it once a minute."""
    return [_live(app) for app in apps]


def _live(app: App) -> AssetsDefinition:

    @asset(
        key=live_key(app.name),
        deps=[results_key(app.name)],
        group_name=group_of(app),
        description=f"What consumers of `{app.name}` read. Materialize with `execute: true` to move consumers to a release "
        "that is ready, compared and checked. Without it, the run only shows the plan. "
        "The registry decides, not the checks of this run.",
        kinds={"kafka", "alias"},
        owners=OWNERS,
        tags={APP_TAG: app.name},
        metadata=expected_columns(app),
        freshness_policy=FreshnessPolicy.time_window(
            fail_window=timedelta(minutes=10), warn_window=timedelta(minutes=5)
        ),
        # a run that only shows the plan materializes nothing
        output_required=False,
    )
    def live(
        context: AssetExecutionContext, config: Promotion, platform: Platform
    ) -> Iterator[AssetObservation | MaterializeResult[None]]:
        with failures_told(), platform.open(context.log.info) as operations:
            plan = carry_out(
                context,
                operations,
                lambda: plan_promote(operations, app.name, version=config.version,
                                     max_evidence_age_s=config.max_evidence_age_s, max_changed=config.max_changed,
                                     reason=config.reason, accept_missing=config.accept_missing_history),
                execute=config.execute,
            )  # fmt: skip
            shown = report.of_plan(plan, executed=config.execute)
            if not config.execute:
                yield AssetObservation(asset_key=live_key(app.name), description="a plan, not executed", metadata=shown)
                return
            name = plan.releases[0]
            release = operations.registry.state().releases[name]
            beat = operations.beats().get(name)
            found = {**report.of_release(release, beat), **columns_of(release)}
            yield MaterializeResult(metadata={**shown, "release": name, **found})

    return live
