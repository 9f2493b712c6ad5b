"""The apps that come with Switchyard: what `switchyard apps` lists, and what has assets in Dagster."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import textwrap
from collections import Counter
from collections.abc import Sequence

import pipelines.apps
from pipelines.errors import BadUsage
from pipelines.model.app import App, Changelog, Result, Table

_LONGEST_CHARS = 160


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


def first_sentence(app: App) -> str:
    """What the app's docstring says it does, in one line: its first sentence, cut at a word if it is long."""
    paragraph = " ".join(inspect.cleandoc(app.function.__doc__ or "").partition("\n\n")[0].split())
    sentence, end, _ = paragraph.partition(". ")
    return textwrap.shorten(sentence + end.strip(), _LONGEST_CHARS, placeholder=" ...")


def in_words(app: App) -> str:
    """The kinds of the app's results: `table by ticker, day`, or `counts: table by product; alerts: stream`."""
    return "; ".join(
        f"{name}: {result_in_words(each)}" if name else result_in_words(each) for name, each in app.results.items()
    )


def result_in_words(result: Result) -> str:
    """The kind of one result: `table by ticker, day` or `stream by user`."""
    kind = "table" if isinstance(result, Table) else "stream"
    return f"{kind} by {', '.join(result.key)}" if result.key else kind


def topics_of(app: App) -> list[str]:
    """The topics that an app reads by name, those of static tables included, without duplicates."""
    return sorted({*app.topics.values(), *(table.topic for table in app.static_tables.values())})


def reads(app: App) -> list[str]:
    """What an app reads, in words: its topics, and the results of other apps."""
    return [*topics_of(app), *sorted(map(str, app.upstream.values()))]


def tables_of(app: App) -> set[str]:
    """The topics that an app reads as tables."""
    static = {table.topic for table in app.static_tables.values()}
    return static | {topic for name, topic in app.topics.items() if isinstance(app.inputs[name], Changelog)}


def readers(apps: Sequence[App]) -> dict[str, list[str]]:
    """Topic -> names of the apps that read it."""
    found: dict[str, list[str]] = {}
    for app in apps:
        for topic in topics_of(app):
            found.setdefault(topic, []).append(app.name)
    return found
