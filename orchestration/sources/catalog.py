"""Which app has which sources, one for each of its topics: each module of this package says so in its `APPS`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from orchestration.sources.base import Options, Source
from pipelines.errors import BadUsage

Make = Callable[[Options], Source]


@cache
def sources() -> Mapping[str, tuple[Make, ...]]:
    """App -> what makes its sources."""
    found: dict[str, tuple[Make, ...]] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], f"{__package__}."):
        apps: Mapping[str, Make | tuple[Make, ...]] = getattr(importlib.import_module(module.name), "APPS", {})
        found |= {app: made if isinstance(made, tuple) else (made,) for app, made in apps.items()}
    return MappingProxyType(dict(sorted(found.items())))


def app_names() -> list[str]:
    """The apps that have a source, sorted."""
    return list(sources())


def sources_for(app: str, options: Options) -> tuple[Source, ...]:
    """The sources of `app`, one for each topic that it reads. Raises as `source_for` does."""
    if app not in sources():
        raise BadUsage(f"`switchyard produce` has no input for {app!r}", fix=_instead(app))
    return tuple(make(options) for make in sources()[app])


def _instead(app: str) -> str:
    """What to do for an app without a source."""
    # here, as importing all apps takes long
    from orchestration.catalog import find_apps, reads

    found = next((each for each in find_apps() if each.name == app), None)
    if found is None:
        return f"it has input for: {', '.join(app_names())}"
    return (
        f"write records to what it reads with a producer of your own: {', '.join(reads(found))}; "
        "or add a module to orchestration/sources that names the app in APPS"
    )


def source_for(app: str, options: Options) -> Source:
    """The source of the one topic that `app` reads.

    Raises BadUsage for an app without a source or with several topics, and for options that don't fit the source.
    """
    found = sources_for(app, options)
    if len(found) != 1:
        raise BadUsage(f"{app} reads {', '.join(each.topic for each in found)}", fix="ask for all of its sources")
    return found[0]
