"""The suites by name, as apps name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from expectations.suites import large_orders, stock_stats, word_count
from expectations.suites.base import Check, Suite, SuiteInputs
from pipelines.errors import BadUsage

SUITES: Mapping[str, Suite] = MappingProxyType(
    {
        "large_orders": large_orders.suite,
        "stock_stats": stock_stats.suite,
        "word_count": word_count.suite,
    }
)


def checks_of(name: str, inputs: SuiteInputs) -> Sequence[Check]:
    """The checks of suite `name`. Raises BadUsage if there is no such suite."""
    if name not in SUITES:
        raise BadUsage(f"there is no suite {name!r}", fix=f"there are: {', '.join(sorted(SUITES))}")
    return SUITES[name](inputs)


__all__ = ["SUITES", "Check", "Suite", "SuiteInputs", "checks_of"]
