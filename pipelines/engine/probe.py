"""Tries an app on empty input before it is staged: `python -m pipelines.engine.probe ZIP DIGEST APP SETTINGS_JSON FOLDER`

It runs in a process of its own: importing an app's code can't be undone, and commands and Dagster should not load Spark.

1. It prints what the app's definition says: `{"definition": {"sources", "inputs", "upstream", "static", "suites"}}`.
2. It waits for a line of input, a `Known` as JSON. Whoever started it checks the definition. The JVM starts meanwhile.
3. It prints one JSON object: `{"spec": {...}}`, or `{"error": {"what", "fix", "exit_code"}}`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pipelines.engine.avro import readable_by
from pipelines.engine.causes import cause, failed_at, place
from pipelines.engine.code import load
from pipelines.engine.frames import GIVEN, delay_of, input_columns
from pipelines.engine.jvm.classes import class_name, java_class
from pipelines.engine.jvm_process import start_jvm_early
from pipelines.engine.known import Known, table_beside
from pipelines.engine.rehearsal import Rehearsal, tick
from pipelines.engine.repeats import nodes, pandas_aggregate, refuse_other_sources, refuse_what_a_replay_changes
from pipelines.engine.results import avro_of, schemas_of, serialized
from pipelines.engine.session import build_session, send_code
from pipelines.engine.static import refuse_large, rows_in_topic
from pipelines.engine.table_file import Row, as_file
from pipelines.engine.upstream import refuse_other_types, upstream_of
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model.app import App, AppendStream, Changelog, Input, Result, Table, setting_like
from pipelines.settings import get_settings

# Spark's names of the errors that an action on a stream raises
_ACTIONS = {"_LEGACY_ERROR_TEMP_3102", "CALL_ON_STREAMING_DATASET_UNSUPPORTED"}
# how often a batch is tried that fails elsewhere than in the author's code
_TRIES = 3
_AT_START = "correct what runs before the first row, such as the init of a StatefulProcessor"
_BUSY = "if this machine is so busy that a Python worker takes over 10 s to start, try again later"


def probe(
    path: Path,
    digest: str,
    name: str,
    settings: Mapping[str, Any],
    session: Callable[[], SparkSession],
    check: Callable[[Mapping[str, Any]], Known] = lambda _: Known(),
    *,
    folder: str = "",
    review: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """What a release of app `name` would be: module, inputs, `results` by name (each with its key, partitions, schema and
    suite) ... and the steps of its function, `topology`.

    `check` gets what the definition says, its `sources` in order, `inputs` (source -> topic), `upstream`, `static` (static
    table -> topic) and `suites`, after the code is imported and the settings are checked. Then `session` is called. The
    function runs on empty streams and on its static tables as they are. Its plan runs as a stream on an empty folder, so
    that a plan that Spark can't run as a stream is refused here. Raises BadUsage for what the author must fix, Refused
    for a nondeterministic plan and a static table that is too large. `folder`: what was frozen, for messages.
    """
    app, module = load(path, digest, name, of=name, where=folder)
    values = values_of(app, settings)
    # Spark parses the columns of another app's result. All else that may be wrong is refused before Spark is used
    started = session() if app.upstream else None
    known = check(definition := definition_of(app))
    spark = started or session()
    refuse_other_types(app, known.upstream)
    # Python workers import by name what a function hands to them
    send_code(spark, path, digest, name)
    tables = _tables(spark, app, known)
    rehearsal = Rehearsal(spark, app, values, {source: rows for source, (rows, _) in tables.items()})
    result = run_on_nothing(spark, app, rehearsal)
    columns = schemas_of(app, result.schema)
    _refuse_what_readers_can_not_read(app, known.avro)
    facts = {
        "app": name,
        "module": module,
        "settings": {**app.settings, **values},
        **definition,
        "columns": {source: _columns_of(source, spec) for source, spec in app.inputs.items()},
        "tables": sorted(source for source, spec in app.inputs.items() if isinstance(spec, Changelog)),
        "static_tables": {source: said for source, (_, said) in tables.items()},
        "results": {result: _result_as_json(spec, columns[result]) for result, spec in app.results.items()},
        "watermark": app.watermark,
        "watermark_delay_ms": delay_of(app),
        "comparable": rehearsal.comparable,
        "reset_allowed": app.reset_allowed,
        "topology": [step.as_json() for step in rehearsal.steps(result)],
        "notes": rehearsal.notes(result),
    }
    review(facts)
    return facts


def _result_as_json(result: Result, columns: StructType) -> dict[str, Any]:
    return {
        "table": isinstance(result, Table),
        "key": list(result.key),
        "partitions": result.partitions,
        "schema_ddl": _ddl_of(columns),
        "suite": result.suite,
        "avro": avro_of(result),
        "final": isinstance(result, Table) and result.emit == "final",
    }


def _columns_of(source: str, spec: Input) -> list[str]:
    """What a function gets of an input, without the columns that every input has."""
    fields = input_columns(source, spec).fields
    return [f"{f.name} {f.dataType.simpleString()}" for f in fields if f.name not in GIVEN]


def values_of(app: App, given: Mapping[str, Any]) -> dict[str, Any]:
    """The `given` settings, each with the type that the app's own has. Raises BadUsage for one that the app doesn't have."""
    unknown = [key for key in given if key not in app.settings]
    if unknown:
        raise BadUsage(
            f"app {app.name} has no setting {', '.join(unknown)}; it has {', '.join(app.settings) or 'none'}",
            fix="check --set",
        )
    return {key: setting_like(app.name, key, app.settings[key], value) for key, value in given.items()}


def definition_of(app: App) -> dict[str, Any]:
    """What an app's definition says, for whoever checks it."""
    return {
        "sources": list(app.sources),
        "inputs": app.topics,
        "upstream": upstream_of(app),
        "static": {name: table.topic for name, table in app.static_tables.items()},
        "suites": app.suites,
        "watermark": app.watermark,
    }


def _tables(spark: SparkSession, app: App, known: Known) -> dict[str, tuple[list[Row], dict[str, Any]]]:
    """The rows of each static table whose records are known, and what is to be said of it. Writes their files."""
    found = {}
    for name, records in known.records.items():
        what = f"static table {name} of app {app.name}"
        rows, said = rows_in_topic(spark, records, app.static_tables[name], what, known.table_max_bytes)
        table = as_file(rows)
        refuse_large(what, len(table.data), known.table_max_bytes)
        Path(table_beside(records)).write_bytes(table.data)
        facts = {"digest": table.digest, "rows": len(rows), "size_bytes": len(table.data), "malformed": said.malformed}
        found[name] = rows, {**facts, "said": said.in_words if said.malformed else ""}
    return found


def _ddl_of(columns: StructType) -> str:
    return ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in columns.fields)


def run_on_nothing(spark: SparkSession, app: App, rehearsal: Rehearsal) -> DataFrame:
    """The app's result on streaming frames, after it has run as a stream that reads nothing. Raises as `probe` does."""
    before = {query.id for query in spark.streams.active}
    try:
        result = rehearsal.result()
        written = serialized(app, result)
    except SwitchyardError:
        raise
    except Exception as error:
        raise BadUsage(f"the function of app {app.name} raises: {_cause(error)}", fix=_instead_of(error)) from error
    finally:
        # another thread may have started one, too
        own = [query for query in spark.streams.active if query.id not in before and rehearsal.is_read_by(query)]
        for query in own:
            query.stop()
    if own:
        raise Refused(
            f"the function of app {app.name} starts a query of its own (writeStream): what it writes is not exactly once",
            fix="leave it out, and return what it would write; an app may have several results",
        )
    _refuse_what_can_not_be_read_back(spark, app, result)
    _refuse_what_fails_later(app, result)
    refuse_other_sources(app, result)
    refuse_what_a_replay_changes(app, result, clock_allowed=rehearsal.comparable == "no")
    _start_on_nothing(app, rehearsal, written)
    return result


def _instead_of(error: Exception) -> str:
    """What to do about an error that a function raises."""
    if isinstance(error, AnalysisException) and error.getCondition() in _ACTIONS:
        return (
            "remove actions, such as count(), collect(), first(), show(), cache() and write: "
            "the function only defines what happens to rows"
        )
    return "correct the function"


def _refuse_what_readers_can_not_read(app: App, earlier: Mapping[str, str]) -> None:
    """Raises BadUsage if a consumer that has the `earlier` Avro schema of a result can't read what the app now writes."""
    for name, schema in earlier.items():
        now = avro_of(app.results[name]) if name in app.results else None
        # that a result turns into JSON is refused at staging, which knows the earlier JSON results, too
        why = readable_by(schema, now) if now is not None else None
        if why is not None:
            raise BadUsage(
                f"consumers of {f'result {name} of ' if name else ''}app {app.name} that have its earlier Avro schema "
                f"can't read the new one: {why}",
                fix="keep its fields and their types; or give the new app another name",
            )


def _refuse_what_can_not_be_read_back(spark: SparkSession, app: App, result: DataFrame) -> None:
    # checks and comparisons read the result as JSON; otherwise this would show only after the whole history is read
    try:
        spark.range(0).select(F.from_json(F.lit("{}"), result.schema))
    except AnalysisException as error:
        raise BadUsage(
            f"the result of app {app.name} could not be read back from JSON: {_cause(error)}",
            fix="give the column another type, such as a map with text as its keys",
        ) from error


def _refuse_what_fails_later(app: App, result: DataFrame) -> None:
    """Raises Refused for a step that Spark's own check accepts, and that would end the release."""
    for node in nodes(result._jdf.queryExecution().analyzed()):
        if class_name(node) == "FlatMapGroupsInPandasWithState":
            # where a batch has more rows than keys, pyarrow hands Spark's worker row numbers as floats
            raise Refused(
                f"the function of app {app.name} has applyInPandasWithState, which fails with this Spark and this pyarrow "
                "as soon as a batch has two rows of a key",
                fix="use transformWithStateInPandas",
            )
        if (name := pandas_aggregate(node)) is not None:
            raise Refused(
                f"the function of app {app.name} aggregates by a pandas UDF ({name}): Spark can't do that on a stream",
                fix="use an aggregate of Spark's; or keep state of your own (transformWithStateInPandas)",
            )


def _start_on_nothing(app: App, rehearsal: Rehearsal, written: DataFrame) -> None:
    """Runs a batch in which the function sees no row: Spark then plans all that a batch needs, and starts it."""
    for name in app.sources:
        rehearsal.add(name, [tick()])
    query = _tried(app, rehearsal, written)
    for name, times in rehearsal.times_read(query).items():
        if times == 0:
            raise BadUsage(
                f"the function of app {app.name} does not read its input {name}", fix="leave it out of the app's inputs"
            )
        if times > 1:
            # Spark reads each of them separately, at a position of its own
            raise BadUsage(
                f"the function of app {app.name} reads its input {name} {times} times, as a join or union with itself does",
                fix="define a separate input on the same topic for each",
            )


def _tried(app: App, rehearsal: Rehearsal, written: DataFrame) -> StreamingQuery:
    """The query after its first batch. Raises BadUsage if Spark can't plan it, or if it fails each time."""
    for left in reversed(range(_TRIES)):
        try:
            return _first_batch(app, written)
        except AnalysisException as error:
            raise BadUsage(
                f"app {app.name} can't run as {_kinds(app)}: {_cause(error)}", fix=_instead(app, rehearsal, written)
            ) from error
        except Exception as error:
            # an author's code fails each time, but a busy machine may start a Python worker too late for Spark
            found = failed_at(error)
            if found is not None or not left:
                raised = f"{found.place}: {found.raised}" if found is not None else _cause(error)
                raise BadUsage(
                    f"app {app.name} fails before its first row: {raised}",
                    fix=_AT_START if found is not None else f"{_AT_START}; {_BUSY}",
                ) from error
    raise AssertionError


def _first_batch(app: App, written: DataFrame) -> StreamingQuery:
    with tempfile.TemporaryDirectory() as folder:
        query = (
            written.writeStream.format("noop")
            .outputMode(app.output_mode)
            .option("checkpointLocation", folder)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return query


def _kinds(app: App) -> str:
    return " and ".join(
        {"a stream" if isinstance(each, AppendStream) else "a table": None for each in app.results.values()}
    )


def _instead(app: App, rehearsal: Rehearsal, written: DataFrame) -> str:
    """What to do about a plan that Spark can't run as it is: a watermark, or another kind of result."""
    if app.watermark is None and app.output_mode == "append":
        with contextlib.suppress(SwitchyardError, AnalysisException, Py4JError):
            marked = serialized(app, rehearsal.with_watermark("10 seconds").result())
            _check_as(marked, "Append")
            return f'add watermark="10 seconds" to @app; without one, {_other_result(app, written)}'
    if any(isinstance(each, Changelog) for each in app.inputs.values()) and _joins_streams(written):
        return f"join a stream with a table by as_of, and two tables by join_tables; or {_other_result(app, written)}"
    return _other_result(app, written)


def _joins_streams(written: DataFrame) -> bool:
    """Whether both sides of a join of the function are inputs that a release reads on and on."""
    joins = [node for node in nodes(written._jdf.queryExecution().analyzed()) if class_name(node) == "Join"]
    return any(join.left().isStreaming() and join.right().isStreaming() for join in joins)


def _check_as(written: DataFrame, mode: str) -> None:
    """Raises what Spark says if it can't run a plan in an output mode, `Append` or `Update`."""
    checker = java_class("org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    modes = java_class("org.apache.spark.sql.streaming.OutputMode")
    checker.checkForStreaming(written._jdf.queryExecution().analyzed(), getattr(modes, mode)())


def _other_result(app: App, written: DataFrame) -> str:
    """What to do about a plan that Spark can't run in the app's output mode: whether it can in the other one, Spark says."""
    other, result = (
        ("Append", 'result=AppendStream(...), or Table(..., emit="final")')
        if app.output_mode == "update"
        else ("Update", "result=Table(...)")
    )
    try:
        _check_as(written, other)
    except (AnalysisException, Py4JError) as error:
        why = cause(error, lines=1).removesuffix(";")
        return f"use another operator, docs/operators.md has them all; with {result}, Spark says: {why}"
    return f"Spark can run it with {result}"


def _cause(error: BaseException) -> str:
    # below the first line of such an error is the plan
    lines = 1 if isinstance(error, AnalysisException) else 3
    return f"{type(error).__name__}: {cause(error, lines).removesuffix(';')}{place(error)}"


def main(arguments: list[str], review: Callable[[Mapping[str, Any]], None] = lambda _: None) -> None:
    """Runs `probe` as a process; see `orchestration.operations.trials`, which starts it and reads its answer."""
    path, digest, name, given, folder = arguments
    settings = get_settings()
    options: dict[str, Any] = {"heap_mb": 512, "cores": 1, "brief": True, "few_rows": True}
    # all else takes less time
    start_jvm_early(settings, **options)

    def session() -> SparkSession:
        return build_session(settings, f"probe {name}", **options)

    answers = sys.stdout

    def ask(definition: Mapping[str, Any]) -> Known:
        print(json.dumps({"definition": definition}), file=answers, flush=True)
        return Known(**json.loads(sys.stdin.readline() or "{}"))

    answer: dict[str, Any]
    # an app that prints at import must not spoil the answer
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            answer = {
                "spec": probe(Path(path), digest, name, json.loads(given), session, ask, folder=folder, review=review)
            }
        except SwitchyardError as error:
            answer = {"error": {"what": error.what, "fix": error.fix, "exit_code": error.exit_code}}
        context = SparkContext._active_spark_context
        if context is not None:
            context.stop()
    print(json.dumps(answer), flush=True)
    if context is None and os.getpgrp() == os.getpid():
        # the JVM may just be starting, and whoever reads the answer would wait for its end
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)
