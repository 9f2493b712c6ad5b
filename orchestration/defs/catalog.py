"""The apps of the repository, which have assets."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Sequence

import pipelines.apps
from pipelines.errors import BadUsage
from pipelines.model.app import App


def find_apps() -> tuple[App, ...]:
    """The apps that the modules of `pipelines.apps` define, by name.

    Raises whatever a module raises at import, and BadUsage if two apps have the same name.
    """
    found: list[App] = []
    for module in pkgutil.iter_modules(pipelines.apps.__path__, f"{pipelines.apps.__name__}."):
        values = vars(importlib.import_module(module.name)).values()
        found += [value for value in values if isinstance(value, App) and value.module == module.name]
    twice = [name for name, count in Counter(app.name for app in found).items() if count > 1]
    if twice:
        raise BadUsage(f"apps defined more than once: {', '.join(twice)}", fix="keep one app of each name")
    return tuple(sorted(found, key=lambda app: app.name))


def topics_of(app: App) -> list[str]:
    """The topics that an app reads, without duplicates."""
    return sorted({source.topic for source in app.inputs.values()})


def readers(apps: Sequence[App]) -> dict[str, list[str]]:
    """Topic -> names of the apps that read it."""
    found: dict[str, list[str]] = {}
    for app in apps:
        for topic in topics_of(app):
            found.setdefault(topic, []).append(app.name)
    return found
