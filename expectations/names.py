"""The names of the suites, without loading any: that would load Great Expectations, too."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

from pipelines.errors import BadUsage

# modules that are not suites
_NO_SUITES = ("__init__", "base")


def suite_names() -> tuple[str, ...]:
    """The names that an app can use for its suite: one per module of `expectations.suites`."""
    modules = (Path(__file__).parent / "suites").glob("*.py")
    return tuple(sorted(module.stem for module in modules if module.stem not in _NO_SUITES))


def require_suite(name: str, files: Container[str] = frozenset()) -> None:
    """Raises BadUsage if there is no suite of that name, neither among `files` (the files of the app's code) nor here."""
    if is_own(name, files) or name in suite_names():
        return
    raise BadUsage(
        f"there is no suite {name!r}",
        fix=f"there are: {', '.join(suite_names())}; correct suite=..., or write the suite in expectations/suites, or beside the app as a module whose name ends in _suite",
    )


def is_own(name: str, files: Container[str]) -> bool:
    """Whether a suite comes with the app's code: a module whose name ends in `_suite`."""
    return may_be_own(name) and f"{name}.py" in files


def may_be_own(name: str) -> bool:
    """Whether a suite of this name can come with an app's code."""
    return name.endswith("_suite")
