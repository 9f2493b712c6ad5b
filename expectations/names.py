"""The names of the suites, without loading any: that would load Great Expectations, too."""

from __future__ import annotations

from pathlib import Path

from pipelines.errors import BadUsage

# modules that are not suites
_NO_SUITES = ("__init__", "base")


def suite_names() -> tuple[str, ...]:
    """The names that an app can use for its suite: one per module of `expectations.suites`."""
    modules = (Path(__file__).parent / "suites").glob("*.py")
    return tuple(sorted(module.stem for module in modules if module.stem not in _NO_SUITES))


def require_suite(name: str) -> None:
    """Raises BadUsage if there is no suite of that name."""
    if name not in suite_names():
        raise BadUsage(
            f"there is no suite {name!r}",
            fix=f"there are: {', '.join(suite_names())}; correct suite=..., or write the suite in expectations/suites",
        )
