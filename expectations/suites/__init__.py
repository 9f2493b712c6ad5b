"""The suites: a module each, found by the name that an app gives. Adding one is adding its module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from expectations.names import is_own, require_suite
from expectations.suites.base import Check, Suite, SuiteInputs
from pipelines.engine.guard import Code, package_name


def checks_of(name: str, inputs: SuiteInputs, code: Code | None = None) -> Sequence[Check]:
    """The checks of suite `name`. `code`: the app's frozen code, admitted to this process, which may have its own suite.

    Raises BadUsage if there is no such suite.
    """
    files = code.sources.keys() if code is not None else frozenset[str]()
    require_suite(name, files)
    home = package_name(code.digest) if code is not None and is_own(name, files) else __name__
    suite: Suite = importlib.import_module(f"{home}.{name}").suite
    return suite(inputs)


__all__ = ["Check", "Suite", "SuiteInputs", "checks_of"]
