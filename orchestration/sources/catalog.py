"""Which app has which source: each module of this package says so in its `APPS`."""

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
def sources() -> Mapping[str, Make]:
    """App -> what makes its source."""
    found: dict[str, Make] = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)], f"{__package__}."):
        found |= getattr(importlib.import_module(module.name), "APPS", {})
    return MappingProxyType(dict(sorted(found.items())))


def app_names() -> list[str]:
    """The apps that have a source, sorted."""
    return list(sources())


def source_for(app: str, options: Options) -> Source:
    """The source of `app`'s input. Raises BadUsage for an app without one, and for options that don't fit it."""
    if app not in sources():
        raise BadUsage(
            f"there is no source of input for {app!r}", fix=f"the apps with a source are: {', '.join(app_names())}"
        )
    return sources()[app](options)
