"""Runs an app as a driver runs it, on records that a test sends, batch by batch."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from pipelines.engine.causes import cause, failed_at, place
from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.metrics import BatchMetrics, batch_metrics
from pipelines.engine.raw import Record
from pipelines.engine.records import RowTooLarge, Unsent, as_sent, dead_letters, refusal, too_large
from pipelines.engine.rehearsal import Rehearsal, tick
from pipelines.engine.results import as_text, schemas_of, serializer
from pipelines.engine.static import rows_of
from pipelines.engine.table_file import Row as TableRow
from pipelines.engine.writer import Headers
from pipelines.errors import BadUsage, SwitchyardError
from pipelines.model.app import App, Table
from pipelines.model.names import SOURCE, release_name, result_of, result_topic
from pipelines.model.reset import Replays
from pipelines.testing.exact import reader
from pipelines.testing.session import unload_states

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Value = Mapping[str, Any] | str | bytes | None
Time = float | str | datetime
Row = dict[str, Any]

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


class AppFailed(SwitchyardError):
    """The function or a batch failed, as it would in a driver."""


def at(time: Time) -> datetime:
    """A time: a `datetime` with a zone, text in ISO 8601, or a number of seconds after noon on 1 January 2026, UTC."""
    if isinstance(time, datetime):
        return time
    if isinstance(time, str):
        found = datetime.fromisoformat(time)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    return NOON + timedelta(seconds=time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A record that went to the dead letters, as a driver writes it. `headers`: what it says of itself.

    Of a malformed record: `topic`, `partition` and `offset` where it was. Of a row that is too large for a record:
    `topic` of its result in generation 1 of version 1, no partition, no offset and no value.
    """

    topic: str
    partition: int | None
    offset: int | None
    key: bytes | None
    value: bytes | None
    reason: str
    headers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one `run` gave.

    `rows`: the result's rows as a consumer reads them, key and value in one dict; a decimal is a `Decimal`. A deleted key
    of a table has its key columns only. If the app has several results, `batch["alerts"]` has the rows of that one, and `names` says of each
    row in `rows` which result it belongs to. `sources`: of each row, `topic:partition:offset` of the record that it
    came from, for a stream whose rows name it; else None. `late`: how many rows Spark dropped because the watermark had
    passed them. `watermark`: the newest one; None where the app has none, or where nothing has set it yet.
    """

    rows: list[Row]
    sources: list[str | None]
    late: int
    dead_letters: list[Letter]
    watermark: datetime | None
    names: list[str]

    def __getitem__(self, result: str) -> list[Row]:
        """The rows of one of several results, by its name."""
        return [row for row, name in zip(self.rows, self.names, strict=True) if name == result]

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class AppTest:
    """An app under test, with state, a watermark and dead letters of its own.

        with AppTest(spark, word_count) as test:
            test.send("lines", "a quick fox")
            assert test.run().rows == [{"word": "a", "count": 1}, ...]

    `table` is what a consumer of a table now has: key columns -> value columns; `tables["counts"]` of one of several
    results. `malformed`: static table -> which of its records can't be read, in words; they are no rows of it. Raises BadUsage
    for an input or a setting that the app does not have. `settings` override the app's own.
    """

    def __init__(self, spark: SparkSession, app: App, **settings: Any) -> None:
        if unknown := [name for name in settings if name not in app.settings]:
            raise BadUsage(
                f"app {app.name} has no setting {', '.join(unknown)}; it has {', '.join(app.settings) or 'none'}",
                fix="check the settings that AppTest is given",
            )
        self._spark, self._app = spark, app
        self._folder = Path(mkdtemp(prefix="switchyard-test-"))
        self._tables: dict[str, list[TableRow]] = {}
        self._rehearsal = Rehearsal(spark, app, settings, self._tables)
        self._pending: dict[str, list[Record]] = {name: [] for name in app.inputs}
        self._offsets: dict[tuple[str, int], int] = {}
        self._result: DataFrame | None = None
        self._serialize = serializer(app)
        self.tables: dict[str, dict[tuple[Any, ...], Row]] = {
            name: {} for name, result in app.results.items() if isinstance(result, Table)
        }
        self.malformed: dict[str, str] = {}

    def __enter__(self) -> AppTest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Deletes the state."""
        unload_states()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def table(self) -> dict[tuple[Any, ...], Row]:
        """What a consumer of the only table has."""
        return next(iter(self.tables.values()), {})

    @property
    def schema(self) -> dict[str, str]:
        """Column of the result -> Spark's name of its type."""
        return dict(self._frame().dtypes)

    def send(self, source: str, value: Value, *, key: Value = None, time: Time = 0.0, partition: int = 0) -> Record:
        """Puts a record into input `source`, for the next `run` to read.

        `value` and `key`: a dict is sent as JSON, text as UTF-8, bytes as they are; None is null. Offsets ascend from 0 in
        each partition. A static table gets its records before the first `run`, which keeps the newest of each key.
        """
        if source not in self._app.inputs:
            raise BadUsage(
                f"app {self._app.name} has no input {source}; it has {', '.join(self._app.inputs)}",
                fix="name one of these",
            )
        if source in self._tables:
            raise BadUsage(
                f"static table {source} of app {self._app.name} does not change while a release lives",
                fix="send its records before the first run; a test of another release is another AppTest",
            )
        topic = str(self._app.inputs[source].topic)
        offset = self._offsets.get((source, partition), 0)
        self._offsets[source, partition] = offset + 1
        record = Record(
            topic=topic, partition=partition, offset=offset, key=_bytes(key), value=_bytes(value), time=at(time)
        )
        self._pending[source].append(record)
        return record

    def run(self) -> Batch:
        """Runs the app on the records that were sent since the last run, as one batch.

        If that batch moves the watermark, Spark runs a second batch without input, which emits what the new watermark
        closes; its rows are in the same answer. A row that is larger than a record may be is treated as a driver
        treats it that replays nothing, by the app's `oversized`. Raises AppFailed if the function or the batch fails, and
        RowTooLarge for such a row if it stops a release.
        """
        frame = self._frame()
        for name in self._app.sources:
            if self._pending[name]:
                self._rehearsal.add(name, self._pending[name])
                self._pending[name] = []
        run = _Run(self._app, self._serialize)
        query = (
            frame.writeStream.foreachBatch(run.take)
            .outputMode(self._app.output_mode)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        run.begin(query)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if isinstance(run.error, RowTooLarge):
                raise run.error from error
            raise AppFailed(*_failure(self._app, run.error or error)) from (run.error or error)
        finally:
            if query.isActive:
                query.stop()
        run.fold_into(self.tables)
        return Batch(
            rows=run.rows,
            sources=run.sources,
            late=run.late,
            dead_letters=run.letters,
            watermark=_watermark(query),
            names=run.names,
        )

    def advance_watermark(self, to: Time) -> Batch:
        """Moves the watermark to `to`, as later records of every input would do, and runs the app. The app gets no
        record for this.

        Raises BadUsage if the app has no watermark.
        """
        if self._app.watermark is None:
            raise BadUsage(f"app {self._app.name} has no watermark", fix='give @app one, as in watermark="10 seconds"')
        checkpoint = Checkpoint(self._folder / "checkpoint", {}, self._app.name)
        if checkpoint.last_committed() is None:
            self._tick()
        checkpoint.move_watermark(int(at(to).timestamp() * 1000))
        return self._tick()

    def restart(self) -> None:
        """Drops what Spark holds in memory: the next run reads its state from the checkpoint, as after a driver's restart."""
        unload_states()
        self._result = None

    def _frame(self) -> DataFrame:
        if self._result is None:
            self._keep_tables()
            try:
                self._result = self._rehearsal.result()
            except SwitchyardError:
                raise
            except Exception as error:
                raised = f"{type(error).__name__}: {cause(error)}{place(error)}"
                raise AppFailed(
                    f"the function of app {self._app.name} raises: {raised}",
                    fix="correct the function, or the settings",
                ) from error
        return self._result

    def _keep_tables(self) -> None:
        """Decides the rows of the static tables, as staging does, unless that is done."""
        for name, table in self._app.static_tables.items():
            if name in self._tables:
                continue
            self._tables[name], found = rows_of(self._spark, self._pending.pop(name), table)
            if found.malformed:
                self.malformed[name] = found.in_words

    def _tick(self) -> Batch:
        for name in self._app.sources:
            self._pending[name].append(tick())
        return self.run()


class _Run:
    """The batches of one `run`."""

    def __init__(self, app: App, serialize: Callable[[DataFrame], DataFrame]) -> None:
        self._app, self._serialize = app, serialize
        self._release = release_name(app.name, 1)
        self._query: Any = None
        self._query_is_known = threading.Event()
        self.rows: list[Row] = []
        self.sources: list[str | None] = []
        self.names: list[str] = []
        self.letters: list[Letter] = []
        self.late = 0
        self.error: BaseException | None = None
        self._written: list[tuple[Row, Row | None]] = []

    def begin(self, query: Any) -> None:
        self._query = query
        self._query_is_known.set()

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Spark's call with a batch."""
        try:
            written = self._serialize(rows)
            # as a driver sends it: an Avro value is smaller than its text
            table = as_text(self._app, written.withColumn("sent", written["value"])).toArrow()
            # the first batch can come before start() has returned
            self._query_is_known.wait(30)
            unsent: list[Unsent] = []
            read = {name: reader(columns) for name, columns in schemas_of(self._app, rows.schema).items()}
            for row in table.to_pylist():
                if (too := self._unsent(row)) is not None:
                    unsent.append(too)
                    continue
                result = row.get("result", "")
                key, value = (None if row[name] is None else read[result](row[name]) for name in ("key", "value"))
                self._written.append((key or {}, value))
                self.rows.append({**(key or {}), **(value or {})})
                self.sources.append(row["source"])
                self.names.append(result)
            self._set_apart(batch_id, batch_metrics(self._query, self._app.sources), unsent)
        except BaseException as error:
            self.error = error
            raise

    def fold_into(self, tables: dict[str, dict[tuple[Any, ...], Row]]) -> None:
        """Applies the batches' rows to `tables`: result -> key columns -> row."""
        for (key, value), name in zip(self._written, self.names, strict=True):
            table = tables.get(name)
            if table is None:
                continue
            if value is None:
                table.pop(tuple(key.values()), None)
            else:
                table[tuple(key.values())] = value

    def _unsent(self, row: Row) -> Unsent | None:
        """A row that a driver's producer would refuse; None: it would take it."""
        source, value = row["source"], row["sent"]
        headers: Headers | None = None if source is None else [(SOURCE, source.encode())]
        if refusal(row["key"], value, headers) is None:
            return None
        sent = value if isinstance(value, bytes | None) else value.encode()
        key = None if row["key"] is None else row["key"].encode()
        return Unsent(result_topic(self._release, 1, row.get("result", "")), key, len(sent or b""), source)

    def _set_apart(self, batch_id: int, metrics: BatchMetrics, unsent: list[Unsent]) -> None:
        """Adds a batch's late rows and its dead letters. Raises RowTooLarge if a row that is too large stops a release."""
        order = list(self._app.results)
        unsent.sort(key=lambda each: order.index(result_of(each.topic)))
        if unsent and self._app.oversized == "stop":
            raise too_large(self._release, batch_id, unsent[0])
        self.late += metrics.late_dropped
        letters = map(as_sent, dead_letters(batch_id, metrics.malformed, unsent, Replays([], {})))
        self.letters += [_letter(*each) for each in letters]


def _letter(key: bytes | None, value: bytes | None, headers: Headers) -> Letter:
    found = {name: content for name, content in headers if isinstance(content, bytes)}
    return Letter(
        topic=found["topic"].decode(),
        partition=int(found["partition"]) if "partition" in found else None,
        offset=int(found["offset"]) if "offset" in found else None,
        key=key,
        value=value,
        reason=found["reason"].decode(),
        headers=found,
    )


def _failure(app: App, error: BaseException) -> tuple[str, str]:
    """What is wrong, the author's line first, and what to do."""
    if (found := failed_at(error)) is not None:
        return f"{found.place}: {found.raised}", f"correct the function of app {app.name}"
    return f"app {app.name} failed: {cause(error)}", "see what Spark says"


def _bytes(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(dict(value), default=str)).encode()


def _watermark(query: Any) -> datetime | None:
    progress = query.lastProgress
    text = json.loads(progress.json).get("eventTime", {}).get("watermark") if progress is not None else None
    found = datetime.fromisoformat(text) if text else None
    return None if found is None or found.timestamp() == 0 else found
