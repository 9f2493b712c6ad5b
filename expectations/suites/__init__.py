"""The suites: a module each, found by the name that an app gives. Adding one is adding its module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from expectations.names import require_suite
from expectations.suites.base import Check, Suite, SuiteInputs


def checks_of(name: str, inputs: SuiteInputs) -> Sequence[Check]:
    """The checks of suite `name`. Raises BadUsage if there is no such suite."""
    require_suite(name)
    suite: Suite = importlib.import_module(f"{__name__}.{name}").suite
    return suite(inputs)


__all__ = ["Check", "Suite", "SuiteInputs", "checks_of"]
