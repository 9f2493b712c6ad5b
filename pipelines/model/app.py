"""An app: name, inputs, results, and a pure function from input DataFrames to the result's DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from pipelines.errors import BadUsage
from pipelines.model.names import is_app_name, is_result_name, is_topic_name

Comparable = Literal["exact", "last-value", "no"]
# what an app is an example of; the groups of `switchyard apps`, in this order
Shows = Literal["single event", "aggregate", "window", "join", "multi-phase", "low level", "late data"]
Setting = str | int | float | bool
Oversized = Literal["stop", "dead-letter"]


class AppSettings(Mapping[str, Any]):
    """An app's settings as its function sees them: `settings["window_s"]` or `settings.window_s`."""

    def __init__(self, values: Mapping[str, Setting]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"no setting {name!r}; there are: {', '.join(self._values) or 'none'}") from None

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def setting_like(app: str, key: str, known: Any, given: Any) -> Any:
    """The given setting, converted to the type of its known value if it is text, as from a command's option.

    Raises BadUsage for text that can't be converted.
    """
    if not isinstance(given, str) or isinstance(known, str):
        return given
    try:
        if isinstance(known, bool):
            return {"true": True, "false": False}[given.lower()]
        return type(known)(given)
    except (ValueError, KeyError) as error:
        raise BadUsage(
            f"setting {key} of {app} is {type(known).__name__}, not {given!r}", fix="correct the value after --set"
        ) from error


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON object; `schema` is Spark DDL. A field declared NOT NULL must be there, or the record is malformed.

    `rename`: field -> column, for a field whose name the function's DataFrame can't have, as `offset`.
    """

    schema: str
    rename: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Text:
    """UTF-8 text in one column."""

    column: str = "value"


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes in one column, as they are."""

    column: str = "value"


@dataclass(frozen=True, slots=True)
class Avro:
    """A record in Avro's binary encoding, without a header; `schema` is its Avro schema, a JSON text."""

    schema: str


Value = Json | Text | Raw | Avro


@dataclass(frozen=True, slots=True)
class ResultOf:
    """The result of another app, in place of a topic. `result`: which one, if that app has several.

    Staging pins a release of that app: a reader reads its result as long as the reader lives, whatever is promoted.
    """

    app: str
    result: str = ""

    def __str__(self) -> str:
        """For messages: `result of daily-gains`, `result alerts of product-views`."""
        return f"result {self.result} of {self.app}" if self.result else f"result of {self.app}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An input to which records are only ever appended.

    The function gets the key's columns, the value's columns, and `event_time timestamp, topic string, partition int,
    offset long`. `key` is Spark DDL of one string column, for keys that are UTF-8 text, or `Json` for keys that are JSON
    objects, as those of results are. A tombstone is malformed here. `time`: a field of the JSON value, `timestamp NOT
    NULL`, to be `event_time` instead of the record's timestamp. Records of results need it: their timestamp is when they
    were written.
    """

    topic: str | ResultOf
    value: Value
    key: str | Json | None = None
    time: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changelog:
    """An input that is a table: the newest record of each key counts, and a record without a value deletes its key.

    The function gets the same columns as for a `Stream`, record by record, and `deleted boolean`. In a record that
    deletes, the value's columns are null. `as_of` joins a stream with it. `key`, `time`: as for a `Stream`, but the key
    is required. A record that deletes has no value, so its time is its timestamp.
    """

    topic: str | ResultOf
    key: str | Json
    value: Value
    time: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticTable:
    """An input that is a small table, which does not change while a release lives. Staging reads and keeps it.

    The function gets a static DataFrame: a row of each key that the topic has then, with the columns of key and value. A
    stream joins it by any columns, without state. Records are read as those of a `Changelog`, whose `key` and `value` mean
    the same.
    """

    topic: str
    key: str | Json
    value: Value

    @property
    def as_changelog(self) -> Changelog:
        """How its records are read."""
        return Changelog(topic=self.topic, key=self.key, value=self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A result that is upserted by key, on a compacted topic.

    `key`: the columns of the key, in order; the other columns are the value. A row whose value columns
    are all null is a tombstone. `emit="final"` emits a row once, when the watermark has passed it. `suite`: the
    expectation suite of this result, if the app has several.
    """

    key: tuple[str, ...]
    partitions: int = 4
    emit: Literal["update", "final"] = "update"
    suite: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendStream:
    """A result to which rows are only ever appended.

    If the result has all of the columns `topic`, `partition` and `offset`, they name the source record of a row. They
    become the header `source`, which a comparison of two runs uses, and are left out of the value. Without a `key`,
    records have none, and Kafka spreads them over the partitions. `suite`: the expectation suite of this result, if the
    app has several. `avro`: the Avro schema of the value, a JSON text whose fields are the value's columns; None: JSON.
    """

    key: tuple[str, ...] = ()
    partitions: int = 4
    suite: str | None = None
    avro: str | None = None


# an input that a release reads on and on, at a position of its own
Source = Stream | Changelog
Input = Source | StaticTable
Result = Table | AppendStream


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """An app's definition, as its module states it. `results`: by name; the only result of an app has an empty name."""

    name: str
    inputs: Mapping[str, Input]
    results: Mapping[str, Result]
    function: Callable[..., Any]
    watermark: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    comparable: Comparable | Callable[[AppSettings], Comparable] = "exact"
    reset_allowed: bool = True
    shows: Shows | None = None
    oversized: Oversized = "stop"

    def comparable_with(self, settings: Mapping[str, Setting]) -> Comparable:
        """What a diff of two runs means, with `settings` instead of the app's own."""
        if callable(self.comparable):
            return self.comparable(AppSettings({**self.settings, **settings}))
        return self.comparable

    @property
    def output_mode(self) -> Literal["update", "append"]:
        """Spark's output mode, which is one for all results: `update` if a table wants its updates."""
        updated = any(isinstance(each, Table) and each.emit == "update" for each in self.results.values())
        return "update" if updated else "append"

    @property
    def has_several(self) -> bool:
        """Whether the app's results have names."""
        return "" not in self.results

    @property
    def suites(self) -> dict[str, str]:
        """Result name -> its suite, of the results that have one."""
        return {name: each.suite for name, each in self.results.items() if each.suite is not None}

    @property
    def module(self) -> str:
        return str(self.function.__module__)

    @property
    def sources(self) -> dict[str, Source]:
        """The inputs that a release reads on and on, by name."""
        return {name: each for name, each in self.inputs.items() if not isinstance(each, StaticTable)}

    @property
    def static_tables(self) -> dict[str, StaticTable]:
        """The inputs that staging keeps, by name."""
        return {name: each for name, each in self.inputs.items() if isinstance(each, StaticTable)}

    @property
    def topics(self) -> dict[str, str]:
        """Source name -> topic, of the sources that name one."""
        return {name: each.topic for name, each in self.sources.items() if isinstance(each.topic, str)}

    @property
    def upstream(self) -> dict[str, ResultOf]:
        """Source name -> the result of another app that it reads."""
        return {name: each.topic for name, each in self.sources.items() if isinstance(each.topic, ResultOf)}

    def reading(self, topics: Mapping[str, str]) -> App:
        """The app as a release reads it: each source from the topic that was found at staging. `topics`: by source name."""
        found = {name: replace(each, topic=topics[name]) for name, each in self.sources.items()}
        return replace(self, inputs=MappingProxyType({**self.inputs, **found}))


def app(
    *,
    name: str,
    inputs: Mapping[str, Input],
    result: Result | None = None,
    results: Mapping[str, Result] | None = None,
    suite: str | None = None,
    watermark: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    comparable: Comparable | Callable[[AppSettings], Comparable] = "exact",
    reset_allowed: bool = True,
    shows: Shows | None = None,
    oversized: Oversized = "stop",
) -> Callable[[Callable[..., Any]], App]:
    """Turns a function `(input DataFrames by name..., settings) -> DataFrame` into an app.

    An app has one `result`, or several `results` by name, which are committed, compared and switched together. Its
    function then returns one DataFrame with a struct column of each result's name: its fields are the columns of the
    result, and where the struct is null, there is no row of that result. `suite` names the expectation suite of the
    only result; if there are several, each names its own. `watermark` is a Spark interval ("10 seconds") on
    `event_time`. `reset_allowed=False`: its releases are never reset; a new version is reprocessed beside the live one
    instead. `comparable`: "no" if a replay may give a different result; a function where that depends on the settings.
    `shows`: what the app is an example of; `switchyard apps` groups by it. `oversized`: whether a row that is larger
    than a record of Kafka may be stops the release, or becomes a dead letter. Raises BadUsage if the definition
    contradicts itself.
    """
    if not is_app_name(name):
        raise BadUsage(
            f"app name {name!r} is not lower-case words joined by hyphens, or has over 100 letters",
            fix="rename it, as in stock-stats",
        )
    _require_plain(name, inputs, settings or {})
    if not inputs:
        raise BadUsage(f"app {name} has no input", fix="name at least one Stream or Changelog in inputs")
    if all(isinstance(each, StaticTable) for each in inputs.values()):
        raise BadUsage(
            f"app {name} has only static tables as inputs, so it would never have a batch",
            fix="name a Stream or a Changelog beside them",
        )
    found = _results(name, result, results, suite)

    def make(function: Callable[..., Any]) -> App:
        return App(
            name=name,
            inputs=MappingProxyType(dict(inputs)),
            results=MappingProxyType(found),
            function=function,
            watermark=watermark,
            settings=MappingProxyType(dict(settings or {})),
            comparable=comparable,
            reset_allowed=reset_allowed,
            shows=shows,
            oversized=oversized,
        )

    return make


def _require_plain(app: str, inputs: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raises BadUsage for an input or a setting that can't be one. What an author's module gives may have any type."""
    for name, each in inputs.items():
        what = f"input {name} of app {app}"
        if not isinstance(each, Stream | Changelog | StaticTable):
            raise BadUsage(
                f"{what} is {each!r}", fix='write it as in Stream(topic="trades", value=Json("price double"))'
            )
        if not isinstance(each.value, Json | Text | Raw | Avro):
            raise BadUsage(
                f"the value of {what} is {each.value!r}",
                fix='write it as in value=Json("price double"); Avro, Text and Raw are the other kinds',
            )
        if isinstance(each.topic, str) and not is_topic_name(each.topic):
            raise BadUsage(
                f"{what} reads topic {each.topic!r}, which is not a name that Kafka allows",
                fix="correct it: a name has letters, digits, '.', '_' and '-', at most 249 of them",
            )
    for name, value in settings.items():
        if not isinstance(value, str | int | float | bool):
            raise BadUsage(f"setting {name} of app {app} is {value!r}", fix="make it text, a number or a boolean")


def _results(
    app: str, result: Result | None, results: Mapping[str, Result] | None, suite: str | None
) -> dict[str, Result]:
    """The app's results by name. Raises BadUsage if they contradict each other."""
    # what an author's module gives may have any type
    given: Any = results
    if isinstance(given, Table | AppendStream):
        kind = type(given).__name__
        raise BadUsage(f"app {app} gives one {kind} as results", fix=f"write result={kind}(...)")
    if isinstance(result, Mapping):
        raise BadUsage(f"app {app} gives several results as result", fix="write results={...}")
    if (result is None) == (not results):
        raise BadUsage(
            f"app {app} names {'no result' if result is None else 'a result and results'}",
            fix="give it one, as in result=Table(...), or several: results={'counts': Table(...), ...}",
        )
    if result is not None:
        if suite is not None and result.suite not in (None, suite):
            raise BadUsage(f"app {app} names two suites, {suite} and {result.suite}", fix="leave one out")
        found = {"": replace(result, suite=suite or result.suite)}
    else:
        found = dict(results or {})
        if suite is not None:
            raise BadUsage(
                f"app {app} has several results, so {suite} could check any of them",
                fix=f"give it to one of them, as in Table(..., suite={suite!r})",
            )
    for name, each in found.items():
        what = f"result {name} of app {app}" if name else f"the result of app {app}"
        if result is None and not is_result_name(name):
            raise BadUsage(
                f"{what} has a name that is not lower-case words joined by hyphens", fix="rename it, as in late-orders"
            )
        key: Any = each.key
        if isinstance(key, str):
            raise BadUsage(f"the key of {what} is the text {key!r}", fix=f'write key=("{key}",)')
        if isinstance(each, Table) and not each.key:
            raise BadUsage(f"{what}, a table, has no key", fix="name the key columns, as in Table(key=('ticker',))")
        if each.partitions < 1:
            raise BadUsage(f"{what} has {each.partitions} partitions", fix="use at least 1")
    emits = {each.emit for each in found.values() if isinstance(each, Table)}
    if len(emits) > 1:
        raise BadUsage(
            f"tables of app {app} differ in emit, but Spark runs all of them in one output mode",
            fix="give all of them the same emit, or define another app",
        )
    return found
