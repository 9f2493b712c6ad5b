"""An app: name, inputs, result, and a pure function from input DataFrames to one result DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from pipelines.errors import BadUsage
from pipelines.model.names import is_app_name

Comparable = Literal["exact", "last-value", "no"]
# what an app is an example of; the groups of `switchyard apps`, in this order
Shows = Literal["single event", "aggregate", "window", "join", "multi-phase", "low level", "late data"]
Setting = str | int | float | bool


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


Value = Json | Text | Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """An input to which records are only ever appended.

    The function gets the key's columns, the value's columns, and `event_time timestamp, topic string, partition int,
    offset long`. `key` is Spark DDL of one string column, for keys that are UTF-8 text, or `Json` for keys that are JSON
    objects, as those of results are. A tombstone is malformed here.
    """

    topic: str
    value: Value
    key: str | Json | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changelog:
    """An input that is a table: of each key the newest record holds, and a record without a value deletes its key.

    The function gets what it gets of a `Stream`, record by record, and `deleted boolean`; the value's columns of a record
    that deletes are null. `as_of` joins a stream with it. `key`: as that of a `Stream`, but it is needed.
    """

    topic: str
    key: str | Json
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A result that is upserted by key, on a compacted topic.

    `key`: the columns of the key, in order; the other columns are the value. A row whose value columns
    are all null is a tombstone. `emit="final"` emits a row once, when the watermark has passed it.
    """

    key: tuple[str, ...]
    partitions: int = 4
    emit: Literal["update", "final"] = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendStream:
    """A result to which rows are only ever appended.

    If the result has all of the columns `topic`, `partition` and `offset`, they name the source record of a row. They
    become the header `source`, which a comparison of two runs uses, and are left out of the value. Without a `key`, records have
    none, and Kafka spreads them over the partitions.
    """

    key: tuple[str, ...] = ()
    partitions: int = 4


Input = Stream | Changelog
Result = Table | AppendStream


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """An app's definition, as its module states it."""

    name: str
    inputs: Mapping[str, Input]
    result: Result
    function: Callable[..., Any]
    suite: str | None = None
    watermark: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    comparable: Comparable | Callable[[AppSettings], Comparable] = "exact"
    reset_allowed: bool = True
    shows: Shows | None = None

    def comparable_with(self, settings: Mapping[str, Setting]) -> Comparable:
        """What a diff of two runs means, with `settings` instead of the app's own."""
        if callable(self.comparable):
            return self.comparable(AppSettings({**self.settings, **settings}))
        return self.comparable

    @property
    def output_mode(self) -> Literal["update", "append"]:
        """Spark's output mode for this result."""
        return "update" if isinstance(self.result, Table) and self.result.emit == "update" else "append"

    @property
    def module(self) -> str:
        return str(self.function.__module__)


def app(
    *,
    name: str,
    inputs: Mapping[str, Input],
    result: Result,
    suite: str | None = None,
    watermark: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    comparable: Comparable | Callable[[AppSettings], Comparable] = "exact",
    reset_allowed: bool = True,
    shows: Shows | None = None,
) -> Callable[[Callable[..., Any]], App]:
    """Turns a function `(input DataFrames by name..., settings) -> DataFrame` into an app.

    `suite` names the expectation suite of the result; `watermark` is a Spark interval ("10 seconds") on
    `event_time`. `reset_allowed=False`: its releases are never reset; a new version is reprocessed beside the live one
    instead. `comparable`: "no" if a replay may give another result; a function where that depends on the settings. `shows`: what
    the app is an example of; `switchyard apps` groups by it. Raises BadUsage if the definition contradicts itself.
    """
    if not is_app_name(name):
        raise BadUsage(
            f"app name {name!r} is not lower-case words joined by hyphens", fix="rename it, as in stock-stats"
        )
    if not inputs:
        raise BadUsage(f"app {name} has no input", fix="name at least one Stream or Changelog in inputs")
    if isinstance(result, Table) and not result.key:
        raise BadUsage(f"app {name}: its table has no key", fix="name the key columns, as in Table(key=('ticker',))")
    if result.partitions < 1:
        raise BadUsage(f"app {name}: its result has {result.partitions} partitions", fix="use at least 1")

    def make(function: Callable[..., Any]) -> App:
        return App(
            name=name,
            inputs=MappingProxyType(dict(inputs)),
            result=result,
            function=function,
            suite=suite,
            watermark=watermark,
            settings=MappingProxyType(dict(settings or {})),
            comparable=comparable,
            reset_allowed=reset_allowed,
            shows=shows,
        )

    return make
