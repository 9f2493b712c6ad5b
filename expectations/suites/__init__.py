"""The suites: a module each, found by the name that an app gives. Adding one is adding its module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from expectations.names import is_own, require_suite
from expectations.suites.base import Check, Suite, SuiteInputs
from pipelines.engine.guard import Code, package_name
from pipelines.errors import BadUsage, SwitchyardError


def checks_of(name: str, inputs: SuiteInputs, code: Code | None = None) -> Sequence[Check]:
    """The checks of suite `name`. `code`: the app's frozen code, admitted to this process, which may have its own suite.

    Raises BadUsage if there is no such suite, or if its code fails.
    """
    files = code.sources.keys() if code is not None else frozenset[str]()
    require_suite(name, files)
    home = package_name(code.digest) if code is not None and is_own(name, files) else __name__
    try:
        suite: Suite = importlib.import_module(f"{home}.{name}").suite
        return list(suite(inputs))
    except SwitchyardError:
        raise
    # it is an author's code, and can fail in any way
    except Exception as error:
        # commands import this module, and should not load Spark
        from pipelines.engine.causes import place

        raise BadUsage(
            f"suite {name} fails: {type(error).__name__}: {error}{place(error)}",
            fix="correct it: its module has `def suite(inputs)`, which returns a list of checks; "
            "a suite that is frozen with its release needs a new version",
        ) from error


__all__ = ["Check", "Suite", "SuiteInputs", "checks_of"]
