"""The checks of each suite of expectations: they run the gate on a release's result as of the evidence cut."""

# no `from __future__ import annotations`: Dagster reads the class of `config` from the annotation

import warnings
from collections.abc import Iterator, Sequence

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSpec,
    Config,
    PreviewWarning,
    multi_asset_check,
)
from pydantic import Field

from expectations.suites import SuiteInputs, checks_of
from expectations.verdict import VOLUME_TOLERANCE, check_of
from orchestration.defs import report
from orchestration.defs.names import SPARK_POOL, check_name, name_of, releases_of, results_key, verdict_name
from orchestration.defs.resources import Platform, SparkResource
from orchestration.operations.comparing.evidence import are_compared, evidence_for
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import find_release, live_release
from orchestration.operations.planning.readiness import MAX_EVIDENCE_AGE_S
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from pipelines.errors import BadUsage, SwitchyardError, Unavailable
from pipelines.model.app import App


class Checking(Config):
    """How old the diff with the live release may be, and by how much the number of rows may differ."""

    max_evidence_age_s: float = Field(
        default=MAX_EVIDENCE_AGE_S, ge=0, description="Compare again if the last diff is older than this, in seconds."
    )
    volume_tolerance: float = Field(
        default=VOLUME_TOLERANCE,
        ge=0,
        description="Share by which the number of rows may differ from the live release's; 0.1 is 10%.",
    )


def gates(apps: Sequence[App]) -> list[AssetChecksDefinition]:
    """The checks of the results of each app that names a suite, partitioned by release as the results are: one for
    each of its expectations, and one for the verdict. Raises BadUsage if two have the same name in Dagster.
    """
    return [_gate(app) for app in apps if app.suites]


def _gate(app: App) -> AssetChecksDefinition:
    with warnings.catch_warnings():
        # partitioned checks are a preview feature in this version of Dagster
        warnings.simplefilter("ignore", PreviewWarning)

        # whichever are chosen, the suite runs once, and as a whole: the verdict is about all of it
        @multi_asset_check(name=f"check_{name_of(app.name)}", specs=_specs(app), can_subset=True, pool=SPARK_POOL)
        def run_suite(
            context: AssetCheckExecutionContext, config: Checking, platform: Platform, pyspark: SparkResource
        ) -> Iterator[AssetCheckResult]:
            chosen = {key.name for key in context.selected_asset_check_keys}
            for result in _check(context, app, config, platform, pyspark):
                if result.check_name in chosen:
                    yield result
                else:
                    # log_event accepts it, although its annotation does not say so
                    context.op_execution_context.log_event(report.event_of(result, context.partition_key))  # type: ignore[arg-type]

    return run_suite


def _specs(app: App) -> list[AssetCheckSpec]:
    verdict, suites = verdict_name(app.suites), " and ".join(f"`{suite}`" for suite in app.suites.values())
    described = {
        verdict: f"The verdict of {suites} over a fixed range of the release's result: passed if at least one "
        "check passed and none failed. If another release is live, the range ends at the evidence cut; both are compared "
        "first if the diff is too old."
    }
    for result, suite in app.suites.items():
        for each in checks_of(suite, SuiteInputs(app_settings=app.settings)):
            name = check_name(check_of(result, each.name))
            if name in described:
                raise BadUsage(
                    f"suite {suite} has two checks that Dagster calls {name}",
                    fix=f"rename the check {each.name!r}; {verdict} is the name of the verdict",
                )
            # of a check that is skipped here, the detail says only why
            described[name] = each.name if each.expectation is None else each.detail
    return [
        AssetCheckSpec(name, asset=results_key(app.name), partitions_def=releases_of(app.name), description=text)
        for name, text in described.items()
    ]


def _check(
    context: AssetCheckExecutionContext,
    app: App,
    config: Checking,
    platform: Platform,
    pyspark: SparkResource,
) -> list[AssetCheckResult]:
    """Runs the suite. What can't be evaluated has not passed, and says why. Only an outage fails the run."""
    metadata: report.Metadata = {}
    name, verdict_check = context.partition_key, verdict_name(app.suites)
    try:
        with platform.open(context.log.info, pyspark) as operations:
            metadata |= _compare(operations, name, config.max_evidence_age_s)
            verdict = check(operations, name, volume_tolerance=config.volume_tolerance)
    except Unavailable as error:
        raise report.failure(error) from error
    except SwitchyardError as error:
        report.make_visible(error)
        context.log.error(str(error))
        return [
            AssetCheckResult(
                asset_key=spec.asset_key,
                check_name=spec.name,
                passed=False,
                description=f"could not be evaluated: {error.what}",
                metadata={"error": error.what, "to do": error.fix, **(metadata if spec.name == verdict_check else {})},
            )
            for spec in context.check_specs
        ]
    return [
        AssetCheckResult(
            asset_key=results_key(app.name),
            check_name=verdict_check,
            passed=verdict.ok,
            description=report.counts(verdict),
            metadata={**metadata, **report.of_verdict(verdict)},
        ),
        *(report.check_result(app.name, result, verdict) for result in verdict.results),
    ]


def _compare(operations: Context, name: str, max_age_s: float) -> report.Metadata:
    """Compares with the live release, unless the last diff is recent enough or there is nothing to compare."""
    state = operations.registry.state()
    release = find_release(state, name)
    live = live_release(state, release.spec.app)
    if live is None or live is release or not are_compared(release, live):
        return {}
    evidence = evidence_for(state, release, live)
    if evidence is not None and (operations.now_ms() - evidence.at_ms) / 1000 <= max_age_s:
        return {}
    return report.of_comparison(diff(operations, name))
