"""Compares a candidate with the live release, then checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.operations.comparing.evidence import Comparison, are_compared
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import live_release
from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from pipelines.errors import Refused
from pipelines.model.names import app_of

if TYPE_CHECKING:
    from expectations.verdict import Verdict


class ChecksFailed(Refused):
    """A release failed its checks. `comparison`, `verdict`: what was found."""

    def __init__(self, name: str, comparison: Comparison | None, verdict: Verdict) -> None:
        names = ", ".join(r.name for r in verdict.results if r.outcome in ("failed", "errored"))
        super().__init__(
            f"{name} failed its checks: {names or 'all were skipped'}",
            fix=f"see {verdict.docs}; fix the app, then `switchyard reprocess {app_of(name)} [--from FOLDER] --execute` releases it as the next version",
        )
        self.comparison = comparison
        self.verdict = verdict


def examine(context: Context, name: str, volume_tolerance: float) -> tuple[Comparison | None, Verdict | None]:
    """Compares a release with the live one if a promotion needs that, then checks it if it has a suite.

    Raises ChecksFailed if the verdict is not good, and what `diff` and `check` raise.
    """
    state = context.registry.state()
    release = state.releases[name]
    live = live_release(state, release.spec.app)
    compared = live is not None and live.name != name and are_compared(release, live)
    found = diff(context, name) if compared else None
    verdict = check(context, name, volume_tolerance=volume_tolerance) if release.spec.suites else None
    if verdict is not None and not verdict.ok:
        raise ChecksFailed(name, found, verdict)
    return found, verdict
