"""What runs and sensors tell Dagster: numbers for the UI to plot, plans and diffs as Markdown. Pure, but for where the
settings say that Data Docs are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetMaterialization,
    AssetObservation,
    Failure,
    MarkdownMetadataValue,
    MetadataValue,
)

from expectations.names import suite_names
from expectations.suites import SuiteInputs, checks_of
from expectations.verdict import check_of
from orchestration.defs.columns import columns_of
from orchestration.defs.names import check_name, input_key, live_key, results_key, verdict_name
from orchestration.local.data_docs import url_of
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.plans.plan import Plan, Table
from orchestration.operations.procedures.examine import ChecksFailed
from orchestration.operations.supervising.overview import ReleaseStatus
from pipelines.errors import SwitchyardError
from pipelines.model.entries import Switch, VerdictRecorded
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import Release
from pipelines.model.text import markdown, visible
from pipelines.settings import get_settings

if TYPE_CHECKING:
    from expectations.verdict import CheckResult, Verdict

log = logging.getLogger(__name__)

# outcomes that prevent no promotion
_NOT_AGAINST = ("passed", "skipped")
_OUTCOMES = {
    "passed": "passed",
    "failed": "failed",
    "errored": "could not be evaluated",
    "skipped": "skipped",
}


# Dagster's metadata: numbers, texts, MetadataValue
Metadata = dict[str, Any]


def failure(error: SwitchyardError, plan: Plan | None = None) -> Failure:
    """The failure of a run: what is wrong, what to do, the plan, and what was found, if anything. Retries only outages.

    Makes the texts of `error` and its causes visible, as Dagster prints them, too.
    """
    make_visible(error)
    metadata: Metadata = {"error": error.what, "to do": error.fix or "see the run's log", "exit_code": error.exit_code}
    if plan is not None:
        metadata["plan"] = MetadataValue.md(plan.markdown())
    if isinstance(error, ChecksFailed):
        metadata |= of_found(error.comparison, error.verdict)
    return Failure(description=str(error), metadata=metadata, allow_retries=error.retryable)


def make_visible(error: BaseException | None) -> None:
    """Escapes the control characters in the texts of an error and of what caused it: Dagster prints these texts on its
    terminal and keeps them, as they are.
    """
    while error is not None:
        error.args = tuple(visible(each, lines=True) if isinstance(each, str) else each for each in error.args)
        if isinstance(error, SwitchyardError):
            error.what, error.fix = visible(error.what, lines=True), visible(error.fix, lines=True)
        error = error.__cause__ or error.__context__


def of_plan(plan: Plan, *, executed: bool) -> Metadata:
    """A plan as Markdown, and whether it was carried out."""
    title = "" if executed else "**Nothing is changed.** Set `execute: true` to carry this out.\n\n"
    return {
        "plan": MetadataValue.md(title + plan.markdown()),
        "executed": executed,
        "operation": plan.id,
        "releases": ", ".join(plan.releases),
    }


def of_heartbeat(beat: Heartbeat) -> Metadata:
    """What a driver's heartbeat says, as numbers."""
    numbers: dict[str, int | float | None] = {
        "lag_records": beat.lag_records,
        "unread_records": beat.behind_records,
        "records": beat.total.rows_in,
        "results": beat.total.rows_out,
        "records_per_s": round(beat.processed_records_per_s, 1),
        "input_records_per_s": round(beat.input_records_per_s, 1),
        "late_dropped": beat.total.late_dropped,
        "dead_lettered": beat.total.dead_lettered,
        "batch_ms": beat.batch_ms,
        "memory_mib": beat.rss_bytes // 2**20,
        "generation": beat.generation,
    }
    return {name: value for name, value in numbers.items() if value is not None}


def of_found(comparison: Comparison | None, verdict: Verdict | None) -> Metadata:
    """A diff and a verdict, each unless it is None."""
    return {
        **(of_comparison(comparison) if comparison is not None else {}),
        **(of_verdict(verdict) if verdict is not None else {}),
    }


def of_comparison(found: Comparison) -> Metadata:
    """A diff: its counts as numbers, and all of it as Markdown. The UI plots numbers by their names, so these don't name
    the releases: `only_live` counts the keys that only the release has that `only_new` is compared with.
    """
    return {
        "changed": found.changed,
        "only_live": found.only_live,
        "only_new": found.only_new,
        "identical": found.identical,
        "diff_ratio": round(found.ratio, 6),
        "diff": MetadataValue.md(comparison_markdown(found)),
    }


def comparison_markdown(found: Comparison) -> str:
    """A diff as tables: counts, the columns that differ, samples; for each result, if the app has several."""
    if not found.results:
        return _result_markdown(found, found.late)
    parts = [f"### {markdown(name)}\n\n{_result_markdown(each, ())}" for name, each in found.results.items()]
    late = Table(
        title="late rows", columns=("", "rows"), rows=tuple((said, f"{count:,}") for said, count in found.late)
    )
    return "\n\n".join([*parts, late.markdown()])


def _result_markdown(found: Comparison, late: Sequence[tuple[str, int]]) -> str:
    counts = [
        *((name, getattr(found, name)) for name in ("identical", "changed")),
        *((f"column {column}", count) for column, count in found.columns.items()),
        *((found.label(name), getattr(found, name)) for name in ("only_live", "only_new")),
        *late,
    ]
    tables = [
        Table(
            title=f"{found.ratio:.2%} of {found.total:,} differ",
            columns=("", "keys"),
            rows=tuple((name, f"{count:,}") for name, count in counts),
        )
    ]
    if found.samples:
        rows = tuple((_text(s["key"]), _text(s["live"]), _text(s["new"])) for s in found.samples)
        tables.append(Table(title="samples", columns=("key", found.live, found.new), rows=rows))
    for title, columns in found.left_out:
        tables.append(Table(title=title, columns=("column",), rows=tuple((column,) for column in columns)))
    return "\n\n".join(table.markdown() for table in tables)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)


def of_verdict(verdict: Verdict) -> Metadata:
    """A verdict: its counts as numbers, a line per expectation as Markdown, its Data Docs."""
    lines = Table(
        title=f"{verdict.rows:,} rows of {verdict.release}, generation {verdict.generation}",
        columns=("check", "outcome", "expected", "unexpected", "sample"),
        rows=tuple(
            (r.name, r.outcome, r.detail, "" if r.unexpected is None else f"{r.unexpected:,}", "; ".join(r.sample[:1]))
            for r in verdict.results
        ),
    )
    metadata: Metadata = {
        "rows": verdict.rows,
        "passed": verdict.passed,
        "failed": verdict.failed,
        "errored": verdict.errored,
        "skipped": verdict.skipped,
        "checks": MetadataValue.md(lines.markdown()),
    }
    return metadata | data_docs(verdict.docs)


def counts(verdict: Verdict | VerdictRecorded) -> str:
    """The counts of a verdict, in words."""
    return f"{verdict.passed} passed, {verdict.failed} failed, {verdict.errored} errored"


def data_docs(page: Path | str | None) -> Metadata:
    """The page of a validation, as a link that a browser opens; as a path if no server of the settings has it."""
    if page is None:
        return {}
    url = url_of(get_settings(), Path(page))
    return {"data_docs": MetadataValue.path(str(page)) if url is None else MetadataValue.url(url)}


def check_result(app: str, result: CheckResult, verdict: Verdict) -> AssetCheckResult:
    """One expectation of a verdict on a release of `app`."""
    # what comes from records or from Spark is text, never Markdown
    found: dict[str, Any] = {
        {"errored": "error", "skipped": "why"}.get(result.outcome, "expected"): visible(result.detail),
        "found": None if result.observed is None else visible(result.observed),
        "unexpected": result.unexpected,
        "sample": MetadataValue.text(visible("\n".join(result.sample), lines=True)) if result.sample else None,
    }
    metadata = {**{name: value for name, value in found.items() if value is not None}, **data_docs(verdict.docs)}
    return _result_of(app, result.name, result.outcome, metadata)


def _result_of(app: str, check: str, outcome: str, metadata: Metadata) -> AssetCheckResult:
    """The result of one check. A newer version may have recorded an outcome that this one does not know."""
    return AssetCheckResult(
        asset_key=results_key(app),
        check_name=check_name(check),
        passed=outcome in _NOT_AGAINST,
        severity=AssetCheckSeverity.WARN if outcome == "skipped" else AssetCheckSeverity.ERROR,
        description=_OUTCOMES.get(outcome) or visible(outcome),
        metadata=metadata,
    )


def event_of(result: AssetCheckResult, partition: str) -> AssetCheckEvaluation:
    """The event of a result that no run yields: a check that the run was not asked for, or a recorded verdict."""
    assert result.asset_key is not None and result.check_name is not None
    return AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
        partition=partition,
    )


def verdict_events(release: Release, verdict: VerdictRecorded) -> list[AssetCheckEvaluation]:
    """A verdict from the registry, as the results of the release's checks: the suite's, and that of each expectation of
    it. For a suite that is not there (any more), or that fails on the release's settings, only the verdict's own.
    """
    metadata: Metadata = {
        "passed": verdict.passed,
        "failed": verdict.failed,
        "errored": verdict.errored,
        "generation": verdict.generation,
    }
    if verdict.failures:
        metadata["failures"] = of_lines(verdict.failures)
    page = data_docs(verdict.docs)
    results = [
        AssetCheckResult(
            asset_key=results_key(release.spec.app),
            check_name=verdict_name(release.spec.suites),
            passed=verdict.passed > 0 and not verdict.failed and not verdict.errored,
            description=counts(verdict),
            metadata={**metadata, **page},
        )
    ]
    # earlier builds recorded only which ones failed or could not be evaluated
    found = verdict.outcomes or dict.fromkeys(verdict.failures, "failed")
    for result, suite in release.spec.suites.items():
        if suite in suite_names():
            names = (check_of(result, name) for name in _checks_of(suite, release))
            results += [_result_of(release.spec.app, name, found.get(name, "passed"), page) for name in names]
    return [event_of(result, release.name) for result in results]


def _checks_of(suite: str, release: Release) -> list[str]:
    """The names of a suite's checks of a release; none if this version of the suite fails on the release's settings."""
    try:
        return [each.name for each in checks_of(suite, SuiteInputs(app_settings=release.spec.settings))]
    except Exception as error:
        log.warning("the checks of suite %s aren't known for %s: %s", suite, release.name, error)
        return []


def of_lines(lines: Iterable[str]) -> MarkdownMetadataValue:
    """A list as Markdown. Its texts, which may come from records, are escaped."""
    return MetadataValue.md("\n".join(f"- {markdown(line)}" for line in lines) or "none")


def of_release(release: Release, beat: Heartbeat | None) -> Metadata:
    """What the registry and the driver say about a release."""
    return {
        "state": release.state,
        "change": release.spec.change,
        "code": release.spec.code_digest[:12],
        "generation": release.generation,
        **(of_heartbeat(beat) if beat is not None else {}),
    }


def ready_event(release: Release, beat: Heartbeat | None) -> AssetMaterialization:
    """The event that a release has caught up, which materializes its partition."""
    return AssetMaterialization(
        asset_key=results_key(release.spec.app),
        partition=release.name,
        description=f"{release.name} has caught up",
        metadata={**of_release(release, beat), **columns_of(release)},
    )


def running_event(status: ReleaseStatus) -> AssetObservation:
    """The event that shows how a running release is doing."""
    release = status.release
    return AssetObservation(
        asset_key=results_key(release.spec.app),
        partition=release.name,
        description=visible(f"{release.name}: {status.health}"),
        metadata=of_release(release, status.beat),
    )


def live_event(status: ReleaseStatus, switch: Switch) -> AssetMaterialization:
    """The event that the live result is up to date, by its driver's last heartbeat."""
    release = status.release
    return AssetMaterialization(
        asset_key=live_key(release.spec.app),
        description=visible(f"{release.name}, run by {status.holder}"),
        metadata={
            "release": release.name,
            "switch": switch.number,
            **of_release(release, status.beat),
            **columns_of(release),
        },
    )


def of_offsets(first: Mapping[int, int], end: Mapping[int, int]) -> Metadata:
    """The number of records in a topic and the next offset of each partition."""
    return {
        "records": sum(offset - first.get(partition, 0) for partition, offset in end.items()),
        **{f"offset_{partition}": offset for partition, offset in sorted(end.items())},
    }


def input_event(topic: str, first: Mapping[int, int], end: Mapping[int, int]) -> AssetObservation:
    """The event that shows how far an input topic is filled."""
    return AssetObservation(asset_key=input_key(topic), metadata=of_offsets(first, end))
