"""How plans, diffs, verdicts and statuses look on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orchestration.commands.terminal import out, print_facts, print_json, print_table
from pipelines.model.text import visible

if TYPE_CHECKING:
    from expectations.verdict import Verdict
    from orchestration.operations.comparing.evidence import Comparison
    from orchestration.operations.plans.plan import Plan


_OUTCOMES = {"passed": "green", "failed": "red", "errored": "red", "skipped": "yellow"}


def show_plan(plan: Plan) -> None:
    """Prints a plan."""
    out(f"{plan.operation} {', '.join(plan.releases)} {plan.id}", style="bold")
    print_facts(plan.facts)
    for table in plan.tables:
        print_table(table.columns, table.rows, title=table.title)
    for number, step in enumerate(plan.steps(), 1):
        out(f"  {number}. {step}")
    for warning in plan.warnings:
        out(f"  note: {visible(warning)}", style="yellow")
    if plan.undo:
        out(f"  to undo: {visible(plan.undo)}")


def run_plan(
    plan: Plan, context: Any, *, apply: bool, as_json: bool, before: Callable[[], None] = lambda: None
) -> None:
    """Shows the plan and, with `apply`, carries it out. Without `apply`, says that nothing was changed.

    `before`: runs after the plan is shown and before it is carried out; may refuse.
    """
    if not as_json:
        show_plan(plan)
    before()
    if not apply:
        if as_json:
            print_json({**plan.as_json(), "executed": False})
        else:
            out("nothing is changed; add --execute to do it")
        return
    from orchestration.operations.execute import execute

    execute(context, plan)
    if as_json:
        print_json({**plan.as_json(), "executed": True})
    else:
        out("done")


@contextmanager
def what_failed_shown(as_json: bool) -> Iterator[None]:
    """If a release fails its checks, shows its diff and its checks before the error."""
    from orchestration.operations.procedures.examine import ChecksFailed

    try:
        yield
    except ChecksFailed as failed:
        if not as_json:
            show_found(failed.comparison, failed.verdict)
        raise


def show_found(comparison: Comparison | None, verdict: Verdict | None) -> None:
    """Prints a diff and a verdict, each unless it is None."""
    if comparison is not None:
        show_comparison(comparison)
    if verdict is not None:
        show_verdict(verdict)


def show_comparison(found: Comparison) -> None:
    """Prints a diff: counts, columns, samples; for each result, if the app has several."""
    late = [(said, f"{count:,}") for said, count in found.late]
    if not found.results:
        _show_result(found, late)
        return
    for name, each in found.results.items():
        _show_result(each, (), title=name)
    print_table(("", "rows"), late)


def _show_result(found: Comparison, late: Sequence[tuple[str, str]], title: str | None = None) -> None:
    counts = [
        *((found.label(name), getattr(found, name)) for name in ("only_live", "only_new", "changed")),
        *((f"  column {column}", number) for column, number in found.columns.items()),
        ("identical", found.identical),
    ]
    print_table(("", "keys"), [*((said, f"{number:,}") for said, number in counts), *late], title=title)
    for said, columns in found.left_out:
        out(visible(f"{said}: {', '.join(columns)}"))
    if found.samples:
        rows = [[_short(sample[name]) for name in ("key", "live", "new")] for sample in found.samples]
        print_table(("key", found.live, found.new), rows)


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def show_verdict(verdict: Verdict) -> None:
    """Prints a verdict: a line per check, then where the Data Docs are."""
    rows = [
        (each.name, each.outcome, each.detail, "" if each.unexpected is None else f"{each.unexpected:,}")
        for each in verdict.results
    ]
    print_table(("check", "outcome", "expected", "unexpected"), rows, styles=_OUTCOMES)
    out(f"{verdict.rows:,} rows of {verdict.release} generation {verdict.generation}: "
        f"{verdict.passed} passed, {verdict.failed} failed, {verdict.errored} errored, {verdict.skipped} skipped")  # fmt: skip
    if verdict.docs:
        out(f"Data Docs: {verdict.docs}")
