"""What the whole life of an app needs to know: `LIFE` of its golden test. tests/e2e/test_lives.py takes each app through it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from orchestration.catalog import find_apps
from orchestration.sources import Faults, Options, Record, Source, app_names, sources_for
from orchestration.sources.base import PerSecond
from pipelines.model import App

Value = Mapping[str, Any] | str | bytes | None
# key and value of a record, as `AppTest.send` takes them
Row = tuple[Value, Value]


@dataclass(frozen=True, kw_only=True)
class Life:
    """`records` of history, `per_second` in event time; then the results of two versions have `at_least` keys or records.

    `rows`: input -> rows that are sent again and again, for an app without a source for `switchyard produce`. `reads`: the
    app whose result, or whose topics, it reads; then it has no input of its own. `of_table`: that result is a table, which
    is compacted, so a new version can't read all that the first has read. `settings`: those of the app that both have.
    """

    at_least: int
    records: int = 0
    per_second: int = 100
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    reads: str | None = None
    of_table: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert (self.records > 0) != (self.reads is not None), "a life has records of its own, or it reads another app"


@dataclass(frozen=True, kw_only=True)
class LifeOf(Life):
    """The life of `app`. `only_read`: others read it, and it has only one version."""

    app: App
    only_read: bool = False

    @property
    def old(self) -> str:
        return f"{self.app.name}.v1"

    @property
    def new(self) -> str:
        return f"{self.app.name}.v2"

    def sources(self, faults: Faults) -> tuple[Source, ...]:
        """What makes the input of an app that has records of its own."""
        options = Options(seed=7, per_second=self.per_second, faults=faults)
        if not self.rows:
            return sources_for(self.app.name, options)
        return tuple(Repeated(str(self.app.inputs[source].topic), rows, options) for source, rows in self.rows.items())


class Repeated(PerSecond):
    """Rows for `topic`, one after the other, again and again."""

    per_second = 100
    stream = 1_000

    def __init__(self, topic: str, rows: Sequence[Row], options: Options) -> None:
        self.topic = topic
        super().__init__(options)
        self._rows = [(_bytes(key), _bytes(value)) for key, value in rows]

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        first = second * self.rate
        return [(*self._rows[(first + n) % len(self._rows)], time_ms) for n, time_ms in enumerate(times_ms)]


def golden_test(app: str) -> str:
    """The module with the golden test of an app."""
    return f"tests.apps.test_{app.replace('-', '_')}"


def life_of(app: App) -> Life:
    """The `LIFE` of an app's golden test. Raises LookupError, in words, if there is none, or if it has no input."""
    name = golden_test(app.name)
    path = f"{name.replace('.', '/')}.py"
    try:
        life = getattr(importlib.import_module(name), "LIFE", None)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise LookupError(f"{app.name} has no golden test: write {path}") from error
    if not isinstance(life, Life):
        raise LookupError(f"{path} has no LIFE: it says with what input {app.name} goes through its whole life")
    if life.records and not life.rows and app.name not in app_names():
        raise LookupError(f"`switchyard produce` has no input for {app.name}: give LIFE of {path} the `rows` to send")
    if unknown := [source for source in life.rows if source not in app.inputs]:
        raise LookupError(f"{app.name} has no input {', '.join(unknown)}, for which LIFE of {path} has rows")
    return life


def lives_of(names: Sequence[str]) -> tuple[LifeOf, ...]:
    """The lives of apps, each after that of the app that it reads. Raises as `life_of` does."""
    apps = {app.name: app for app in find_apps()}
    found: dict[str, LifeOf] = {}

    def add(name: str) -> None:
        if name not in found:
            life = life_of(apps[name])
            if life.reads is not None:
                add(life.reads)
            found[name] = LifeOf(**vars(life), app=apps[name], only_read=name not in names)

    for name in names:
        add(name)
    return tuple(found.values())


def _bytes(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()
