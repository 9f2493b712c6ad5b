"""Tries an app and its suites in a process of its own, as `python -m expectations.trial`. The app's part is
`pipelines.engine.probe`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expectations.suites import SuiteInputs, checks_of
from pipelines.engine import probe
from pipelines.engine.guard import Code, admit
from pipelines.errors import BadUsage
from pipelines.model.entries import ResultSpec


def refuse_unfit_suites(facts: Mapping[str, Any], code: Code) -> None:
    """Raises BadUsage for a suite that fails, or that expects other columns than its result has.

    A check would find both, but only after the whole history is read. `facts`: what a trial says of an app. `code`: the
    app's frozen code, admitted to this process.
    """
    for name, result in facts["results"].items():
        spec = ResultSpec(**result)
        if spec.suite is None:
            continue
        what = f"result {name} of app {facts['app']}" if name else f"the result of app {facts['app']}"
        expected = _columns_of(spec.suite, facts["settings"], code)
        if expected and list(expected.items()) != list(spec.types.items()):
            raise BadUsage(
                f"{what} does not have the columns that suite {spec.suite} expects: "
                f"it has {_in_words(spec.types)}; the suite expects {_in_words(expected)}",
                fix="correct the columns in the suite, or what the function returns; their order counts, too",
            )


def _columns_of(suite: str, settings: Mapping[str, Any], code: Code) -> Mapping[str, str]:
    """The columns that a suite expects, column -> Spark type. Empty if it has no check of the schema."""
    checks = checks_of(suite, SuiteInputs(app_settings=settings), code)
    return next((check.columns for check in checks if check.columns), {})


def _in_words(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def main(arguments: list[str]) -> None:
    path, digest, app, *_ = arguments
    probe.main(arguments, lambda facts: refuse_unfit_suites(facts, admit(Path(path), digest, app)))


if __name__ == "__main__":
    main(sys.argv[1:])
