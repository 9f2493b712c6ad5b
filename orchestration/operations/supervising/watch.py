"""The watch after a promotion: keeps checking the new live release, and rolls back, one time only, if a check fails."""

from __future__ import annotations

from dataclasses import dataclass

from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.lifecycle import live_release
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.procedures.check import check
from orchestration.operations.supervising.alerts import Alert, CheckNotRun, ChecksNotEvaluated, Send, to_nobody, told
from pipelines.errors import Refused, SwitchyardError

_INTERVAL_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """How a watch ended. `checks`: how often the suite ran."""

    rolled_back: bool
    checks: int
    message: str


def watch(
    context: Context, name: str, *, for_s: float, interval_s: float = _INTERVAL_S, alert: Send = to_nobody
) -> Watched:
    """Checks the live release `name` again and again for `for_s` seconds.

    A failed expectation causes one rollback, and only while `name` is still live: a check takes time, and someone may
    have rolled back in the meantime. A check that can't be evaluated is logged and alerted, but causes no rollback.
    """

    def tell(found: Alert) -> None:
        context.say(told(found))
        alert(found)

    deadline, checks = context.monotonic() + for_s, 0
    app = context.registry.state().releases[name].spec.app
    while True:
        if not _is_live(context, app, name):
            return _over(name, checks)
        try:
            verdict = check(context, name)
            checks += 1
        except SwitchyardError as error:
            tell(CheckNotRun(release=name, error=error.what))
        else:
            if verdict.failed:
                failures = "; ".join(verdict.failures)
                try:
                    execute(context, plan_rollback(context, app, leaving=name, reason=f"watch: {failures}"))
                except Refused:
                    if _is_live(context, app, name):
                        raise
                    return _over(name, checks)
                return Watched(
                    rolled_back=True, checks=checks, message=f"{name} failed its checks and was rolled back: {failures}"
                )
            if verdict.errored:
                tell(ChecksNotEvaluated(release=name, failures=tuple(verdict.failures)))
        left = deadline - context.monotonic()
        if left <= 0:
            how = f"passed its watch: {checks} checks" if checks else "could not be checked even once during its watch"
            return Watched(rolled_back=False, checks=checks, message=f"{name} {how}")
        context.sleep(min(interval_s, left))


def _is_live(context: Context, app: str, name: str) -> bool:
    live = live_release(context.registry.state(), app)
    return live is not None and live.name == name


def _over(name: str, checks: int) -> Watched:
    return Watched(rolled_back=False, checks=checks, message=f"{name} is no longer live, so the watch is over")
