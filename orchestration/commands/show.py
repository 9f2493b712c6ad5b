"""How plans, diffs, verdicts and statuses look on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestration.commands.context import console, print_facts, print_json

if TYPE_CHECKING:
    from expectations.verdict import Verdict
    from orchestration.operations.evidence import Comparison
    from orchestration.operations.plan import Plan


def say(line: str) -> None:
    """A line of what happens, beside the output proper."""
    print(f"  {line}", file=sys.stderr, flush=True)


def show_plan(plan: Plan) -> None:
    """A plan as text."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    out.print(Text(f"{plan.operation} {', '.join(plan.releases)}", style="bold"), Text(plan.id, style="dim"))
    print_facts(plan.facts)
    for table in plan.tables:
        shown = Table(*table.columns, title=table.title)
        for row in table.rows:
            shown.add_row(*(Text(cell) for cell in row))
        out.print(shown)
    for number, step in enumerate(plan.steps(), 1):
        out.print(Text(f"  {number}. {step}"))
    for warning in plan.warnings:
        out.print(Text(f"  note: {warning}", style="yellow"))
    if plan.undo:
        out.print(Text(f"  to go back: {plan.undo}"))


def run_plan(
    plan: Plan, context: Any, *, apply: bool, as_json: bool, before: Callable[[], None] = lambda: None
) -> None:
    """Shows the plan and, with `apply`, carries it out; without, says that nothing was changed.

    `before`: what is done once the plan is shown, and may refuse.
    """
    if not as_json:
        show_plan(plan)
    before()
    if not apply:
        if as_json:
            print_json({**plan.as_json(), "executed": False})
        else:
            print("nothing is changed; add --execute to do it")
        return
    from orchestration.operations.release import execute

    execute(context, plan)
    if as_json:
        print_json({**plan.as_json(), "executed": True})
    else:
        print("done")


@contextmanager
def what_failed_shown(as_json: bool) -> Iterator[None]:
    """Shows the diff and the checks of a release that failed them, before its error."""
    from orchestration.operations.reprocess import ChecksFailed

    try:
        yield
    except ChecksFailed as failed:
        if not as_json:
            show_found(failed.comparison, failed.verdict)
        raise


def show_found(comparison: Comparison | None, verdict: Verdict | None) -> None:
    """A diff and a verdict, as far as there are."""
    if comparison is not None:
        show_comparison(comparison)
    if verdict is not None:
        show_verdict(verdict)


def show_comparison(found: Comparison) -> None:
    """A diff: counts, columns, samples."""
    from rich.table import Table
    from rich.text import Text

    counts = Table("", "keys")
    for name in ("only_live", "only_new", "changed", "identical"):
        counts.add_row(name.replace("_", " "), f"{getattr(found, name):,}")
    for column, number in found.columns.items():
        counts.add_row(f"  in {column}", f"{number:,}")
    counts.add_row("late dropped (live, new)", f"{found.live_late_dropped:,}, {found.new_late_dropped:,}")
    out = console()
    out.print(counts)
    if found.samples:
        samples = Table("key", "live", "new")
        for sample in found.samples:
            samples.add_row(*(Text(_short(sample[name])) for name in ("key", "live", "new")))
        out.print(samples)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def show_verdict(verdict: Verdict) -> None:
    """A verdict: a line per check, then where the Data Docs are."""
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "outcome", "expected", "unexpected")
    styles = {"passed": "green", "failed": "red", "errored": "red", "skipped": "yellow"}
    for result in verdict.results:
        unexpected = "" if result.unexpected is None else f"{result.unexpected:,}"
        table.add_row(
            Text(result.name), Text(result.outcome, style=styles[result.outcome]), Text(result.detail), unexpected
        )
    out = console()
    out.print(table)
    out.print(Text(f"{verdict.rows:,} rows of {verdict.release} generation {verdict.generation}: "
                   f"{verdict.passed} passed, {verdict.failed} failed, {verdict.errored} errored, {verdict.skipped} skipped"))  # fmt: skip
    if verdict.docs:
        out.print(Text(f"Data Docs: {verdict.docs}"))
