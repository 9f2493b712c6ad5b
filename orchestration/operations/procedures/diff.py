"""Compares a release with the live one."""

from __future__ import annotations

from orchestration.operations.comparing.evidence import Comparison, recorded
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.diff import plan_diff


def diff(
    context: Context, name: str, *, tolerance: float = 0.0, samples: int = 10, accept_missing: bool = False
) -> Comparison:
    """Compares a release with the live one at exactly the same boundary, and returns the comparison.

    Says first what may make them differ besides their code.
    """
    plan = plan_diff(context, name, tolerance=tolerance, samples=samples, accept_missing=accept_missing)
    for warning in plan.warnings:
        context.say(warning)
    execute(context, plan)
    return recorded(context.registry.state(), plan.id)
