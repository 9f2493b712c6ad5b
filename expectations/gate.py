"""The gate: a suite of expectations, run by Great Expectations on Spark over a fixed range of a result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from great_expectations import ExpectationSuite, ValidationDefinition
from great_expectations.core.expectation_validation_result import (
    ExpectationSuiteValidationResult,
    ExpectationValidationResult,
)
from great_expectations.core.run_identifier import RunIdentifier
from pyspark.sql import DataFrame, SparkSession

from expectations.docs import build_page, open_context
from expectations.reading import read_rows
from expectations.rows import rows_against
from expectations.suites import Check, SuiteInputs, checks_of
from expectations.verdict import CheckResult, GateRequest, Verdict
from pipelines.model.names import result_topic
from pipelines.secrets import withheld

_log = logging.getLogger(__name__)


def run_gate(spark: SparkSession, request: GateRequest, read: Callable[[], DataFrame] | None = None) -> Verdict:
    """Runs the suite over the range and writes its Data Docs. One gate at a time per session.

    1. build the suite (BadUsage if there is none of that name); 2. read, unless someone does: `read` then returns the rows;
    3. validate; 4. write the docs.
    """
    # a suite that comes with the app is an author's code; this process has an operator's secrets
    with withheld(request.settings.driver_environment):
        checks = checks_of(request.suite, _inputs(request), request.code)
    rows = read() if read is not None else read_rows(spark, request)
    try:
        return check_rows(rows, checks, request)
    finally:
        rows.unpersist()


def _inputs(request: GateRequest) -> SuiteInputs:
    return SuiteInputs(
        live_rows=request.live_rows,
        late_dropped=request.late_dropped,
        volume_tolerance=request.volume_tolerance,
        app_settings=request.app_settings,
    )


def check_rows(rows: DataFrame, checks: Sequence[Check], request: GateRequest, *, docs: bool = True) -> Verdict:
    """The verdict of `checks` on `rows`, a result's final rows. Writes the Data Docs to `request.docs_dir`.

    `docs=False`: writes nothing, as a test of a suite needs no page. GX's SQL metrics share one temporary view of the
    session, so never run two of these at once in a session.
    """
    # if the result can't be read, fail here once, not in each check
    count = rows.count()
    context = open_context(request.docs_dir if docs else None)
    release = result_topic(request.release, request.generation, request.result)
    # persist=False: GX would never unpersist it; no spark_config: GX would restart the session
    source = context.data_sources.add_spark(name="results", persist=False)
    batch = source.add_dataframe_asset(name=release).add_batch_definition_whole_dataframe("range")
    # all of this may call an author's code: what makes an expectation, and an expectation of a class of the app's own
    with withheld(request.settings.driver_environment):
        suite = context.suites.add_or_update(_suite(checks, request))
        definition = context.validation_definitions.add(ValidationDefinition(name=release, data=batch, suite=suite))
        validation = definition.run(
            batch_parameters={"dataframe": rows},
            result_format="BASIC",
            run_id=RunIdentifier(run_name=release, run_time=datetime.now(UTC)),
        )
        page = build_page(context, validation) if docs else None
    return Verdict(
        suite=request.suite,
        release=request.release,
        generation=request.generation,
        rows=count,
        results=_results(checks, validation),
        docs=page,
    )


def _suite(checks: Sequence[Check], request: GateRequest) -> ExpectationSuite:
    """GX's suite. Skipped checks are in its notes, so that the docs show them."""
    ranges = ", ".join(f"{p}: {request.start.get(p, 'first')} to {end}" for p, end in sorted(request.end.items()))
    notes = [f"{request.topic}, offsets by partition, end exclusive: {ranges}"]
    expectations = []
    for check in checks:
        if check.expectation is None:
            notes.append(f"Skipped: {check.name}: {check.detail}")
        else:
            named = {"meta": {"check": check.name}, "description": f"{check.name}: {check.detail}"}
            expectations.append(check.expectation().copy(update=named))
    return ExpectationSuite(name=request.suite, expectations=expectations, notes=notes)


def _results(checks: Sequence[Check], validation: ExpectationSuiteValidationResult) -> tuple[CheckResult, ...]:
    """One result per check, in the suite's order. A check without a result from GX could not be evaluated."""
    found = {
        result.expectation_config.meta["check"]: result for result in validation.results if result.expectation_config
    }
    return tuple(_result(check, found.get(check.name)) for check in checks)


def _result(check: Check, found: ExpectationValidationResult | None) -> CheckResult:
    if check.expectation is None:
        return CheckResult(name=check.name, outcome="skipped", detail=check.detail)
    if found is None:
        return CheckResult(name=check.name, outcome="errored", detail="Great Expectations returned no result")
    error = _error(found.exception_info or {})
    if error is not None:
        _log.error("check %s could not be evaluated: %s", check.name, error)
        return CheckResult(name=check.name, outcome="errored", detail=error)
    unexpected, sample = rows_against(found.result)
    return CheckResult(
        name=check.name,
        outcome="passed" if found.success else "failed",
        detail=check.detail,
        observed=str(found.result.get("observed_value")),
        unexpected=unexpected,
        sample=sample,
    )


def _error(info: dict[str, Any]) -> str | None:
    """The first line of the exception, None if there was none. GX may nest the facts by metric."""
    facts = [info] if "raised_exception" in info else [v for v in info.values() if isinstance(v, dict)]
    raised = next((f for f in facts if f.get("raised_exception")), None)
    if raised is None:
        return None
    return (str(raised.get("exception_message") or "").strip().splitlines() or ["no reason given"])[0]
