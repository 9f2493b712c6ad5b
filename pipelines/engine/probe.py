"""Tries an app on empty frames before it is staged: `python -m pipelines.engine.probe ZIP DIGEST APP SETTINGS_JSON`

Prints one JSON object on standard output: `{"spec": {...}}`, or `{"error": {"what", "fix", "exit_code"}}`.
It runs in a process of its own: importing an app's code can't be undone, and commands and Dagster should not load Spark.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from pipelines.engine.causes import cause, place
from pipelines.engine.code import load
from pipelines.engine.frames import GIVEN, input_columns, serialized
from pipelines.engine.rehearsal import Rehearsal, tick
from pipelines.engine.session import build_session, send_code
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model.app import App, AppendStream, Changelog, Table, setting_like
from pipelines.settings import get_settings


def probe(
    path: Path, digest: str, name: str, settings: Mapping[str, Any], session: Callable[[], SparkSession]
) -> dict[str, Any]:
    """What a release of app `name` would be: module, inputs, key and schema of the result, partitions, suite ... and the
    steps of its function, `topology`.

    `session`: called after the code is imported and the settings are checked. The function runs on empty frames, and its
    plan runs as a stream on an empty folder, so that a plan that Spark can't run as a stream is refused here. Raises
    BadUsage for what the author must fix, Refused for a nondeterministic plan.
    """
    app, module = load(path, digest, name, of=name)
    unknown = [key for key in settings if key not in app.settings]
    if unknown:
        raise BadUsage(
            f"app {name} has no setting {', '.join(unknown)}; it has {', '.join(app.settings) or 'none'}",
            fix="check --set",
        )
    values = {key: setting_like(name, key, app.settings[key], value) for key, value in settings.items()}
    spark = session()
    # Python workers import by name what a function hands to them
    send_code(spark, path, digest, name)
    rehearsal = Rehearsal(spark, app, values)
    result = run_on_nothing(spark, app, rehearsal)
    return {
        "app": name,
        "module": module,
        "settings": {**app.settings, **values},
        "inputs": {source: spec.topic for source, spec in app.inputs.items()},
        "columns": {
            source: [
                f"{f.name} {f.dataType.simpleString()}"
                for f in input_columns(source, spec).fields
                if f.name not in GIVEN
            ]
            for source, spec in app.inputs.items()
        },
        "tables": sorted({spec.topic for spec in app.inputs.values() if isinstance(spec, Changelog)}),
        "table": isinstance(app.result, Table),
        "key": list(app.result.key),
        "partitions": app.result.partitions,
        "schema_ddl": ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in result.schema.fields),
        "suite": app.suite,
        "watermark": app.watermark,
        "comparable": app.comparable,
        "reset_allowed": app.reset_allowed,
        "topology": [step.as_json() for step in rehearsal.steps(result)],
    }


def run_on_nothing(spark: SparkSession, app: App, rehearsal: Rehearsal) -> DataFrame:
    """The app's result on streaming frames, after it has run as a stream that reads nothing. Raises as `probe` does."""
    try:
        result = rehearsal.result()
        written = serialized(app, result)
    except SwitchyardError:
        raise
    except Exception as error:
        raise BadUsage(f"the function of app {app.name} raises: {_cause(error)}", fix="correct the function") from error
    _refuse_what_a_replay_changes(spark, app, result)
    _start_on_nothing(app, rehearsal, written)
    return result


def _refuse_what_a_replay_changes(spark: SparkSession, app: App, result: DataFrame) -> None:
    jvm: Any = spark.sparkContext._jvm
    plan = result._jdf.queryExecution().analyzed()
    if not plan.deterministic():
        raise Refused(
            f"the function of app {app.name} is not deterministic (rand, uuid or the like): a replay would not give the same result",
            fix="derive such values from the input's columns",
        )
    if plan.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()):
        raise Refused(
            f"the function of app {app.name} reads the clock (current_timestamp, current_date, now or the like): "
            "a replay would not give the same result",
            fix="use event_time, the time of the record",
        )


def _start_on_nothing(app: App, rehearsal: Rehearsal, written: DataFrame) -> None:
    """Runs a batch in which the function sees no row: Spark then plans all that a batch needs, and starts it."""
    for name in app.inputs:
        rehearsal.add(name, [tick()])
    with tempfile.TemporaryDirectory() as folder:
        try:
            query = (
                written.writeStream.format("noop")
                .outputMode(app.output_mode)
                .option("checkpointLocation", folder)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        except Exception as error:
            kind = "a stream" if isinstance(app.result, AppendStream) else "a table"
            raise BadUsage(
                f"app {app.name} can't run as {kind}: {_cause(error)}", fix=_other_result(app, written)
            ) from error
        read = rehearsal.times_read(query)
    for name, times in read.items():
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


def _other_result(app: App, written: DataFrame) -> str:
    """What to do about a plan that Spark can't run in the app's output mode: whether it can in the other one, Spark says."""
    spark = written.sparkSession
    jvm: Any = spark.sparkContext._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    other, result = (
        (modes.Append(), 'result=AppendStream(...), or Table(..., emit="final")')
        if app.output_mode == "update"
        else (modes.Update(), "result=Table(...)")
    )
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(written._jdf.queryExecution().analyzed(), other)
    except Py4JError:
        return "see Spark's rules for streaming queries"
    return f"Spark can run it with {result}"


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {cause(error, lines=3)}{place(error)}"


def main(arguments: list[str]) -> None:
    path, digest, name, settings = arguments

    def session() -> SparkSession:
        return build_session(get_settings(), f"probe {name}", heap_mb=512, cores=1, brief=True, few_rows=True)

    answer: dict[str, Any]
    # an app that prints at import must not spoil the answer
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            answer = {"spec": probe(Path(path), digest, name, json.loads(settings), session)}
        except SwitchyardError as error:
            answer = {"error": {"what": error.what, "fix": error.fix, "exit_code": error.exit_code}}
        if (spark := SparkSession.getActiveSession()) is not None:
            spark.stop()
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
