"""A check per suite of expectations: runs the gate on a release's result as of the evidence cut."""

# no `from __future__ import annotations`: Dagster reads the class of `config` from the annotation

import warnings
from collections.abc import Sequence

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    Config,
    PreviewWarning,
    asset_check,
)
from pydantic import Field

from expectations.verdict import VOLUME_TOLERANCE
from orchestration.defs import report
from orchestration.defs.names import SPARK_POOL, releases_of, results_key
from orchestration.defs.resources import Platform, SparkResource
from orchestration.operations.comparing.evidence import are_compared, evidence_for
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import find_release, live_release
from orchestration.operations.planning.readiness import MAX_EVIDENCE_AGE_S
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from pipelines.errors import SwitchyardError, Unavailable
from pipelines.kafka.registry import now_ms
from pipelines.model.app import App


class Checking(Config):
    """How old the diff with the live release may be, and by how much the number of rows may differ."""

    max_evidence_age_s: float = Field(
        default=MAX_EVIDENCE_AGE_S, ge=0, description="Compare again if the last diff is older than this, in seconds."
    )
    volume_tolerance: float = Field(
        default=VOLUME_TOLERANCE,
        ge=0,
        description="Ratio by which the number of rows may differ from the live release's.",
    )


def gates(apps: Sequence[App]) -> list[AssetChecksDefinition]:
    """A check for the results of each app that names a suite, partitioned by release as the results are."""
    return [_gate(app, app.suite) for app in apps if app.suite is not None]


def _gate(app: App, suite: str) -> AssetChecksDefinition:
    with warnings.catch_warnings():
        # partitioned checks are a preview feature in this version of Dagster
        warnings.simplefilter("ignore", PreviewWarning)

        @asset_check(
            asset=results_key(app.name),
            name=suite,
            partitions_def=releases_of(app.name),
            pool=SPARK_POOL,
            description=f"Runs the Great Expectations suite `{suite}` over a fixed range of the release's result. If "
            "another release is live, the range ends at the evidence cut; both are compared first if the diff is too old.",
        )
        def run_suite(
            context: AssetCheckExecutionContext, config: Checking, platform: Platform, pyspark: SparkResource
        ) -> AssetCheckResult:
            return _check(context, context.op_execution_context.partition_key, config, platform, pyspark)

    return run_suite


def _check(
    context: AssetCheckExecutionContext, name: str, config: Checking, platform: Platform, pyspark: SparkResource
) -> AssetCheckResult:
    """Runs the check. One that can't be evaluated has not passed, and says why. Only an outage fails the run."""
    metadata: report.Metadata = {}
    try:
        with platform.open(context.log.info, pyspark) as operations:
            metadata |= _compare(operations, name, config.max_evidence_age_s)
            verdict = check(operations, name, volume_tolerance=config.volume_tolerance)
    except Unavailable as error:
        raise report.failure(error) from error
    except SwitchyardError as error:
        context.log.error(str(error))
        return AssetCheckResult(
            passed=False,
            description=f"could not be evaluated: {error.what}",
            metadata={**metadata, "error": error.what, "to do": error.fix},
        )
    return AssetCheckResult(
        passed=verdict.ok,
        description=f"{verdict.passed} passed, {verdict.failed} failed, {verdict.errored} errored",
        metadata={**metadata, **report.of_verdict(verdict)},
    )


def _compare(operations: Context, name: str, max_age_s: float) -> report.Metadata:
    """Compares with the live release, unless the last diff is recent enough or there is nothing to compare."""
    state = operations.registry.state()
    release = find_release(state, name)
    live = live_release(state, release.spec.app)
    if live is None or live is release or not are_compared(release, live):
        return {}
    evidence = evidence_for(state, release, live)
    if evidence is not None and (now_ms() - evidence.at_ms) / 1000 <= max_age_s:
        return {}
    return report.of_comparison(diff(operations, name))
