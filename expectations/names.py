"""The names of the suites, without loading any: that would load Great Expectations, too."""

from __future__ import annotations

from collections.abc import Container
from difflib import get_close_matches
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
    near = " or ".join(get_close_matches(name, suite_names(), n=3))
    nearest = f": the nearest is {near}" if near else ""
    file = f"{name}.py" if may_be_own(name) else "a module whose name ends in _suite"
    raise BadUsage(
        f"there is no suite {name!r}",
        fix=f"correct suite=...{nearest}; or write it beside the app, as {file}, or in expectations/suites",
    )


def is_own(name: str, files: Container[str]) -> bool:
    """Whether a suite comes with the app's code: a module whose name ends in `_suite`."""
    return may_be_own(name) and f"{name}.py" in files


def may_be_own(name: str) -> bool:
    """Whether a suite of this name can come with an app's code."""
    return name.endswith("_suite")
