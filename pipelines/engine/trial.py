"""Runs one batch of a release on a copy of its checkpoint, and writes its result nowhere."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pipelines.engine.causes import cause
from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.code import code_path, load
from pipelines.engine.frames import input_streams
from pipelines.engine.results import result_of, serialized
from pipelines.engine.session import send_code
from pipelines.engine.static import StaticTables
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import Release
from pipelines.secrets import withheld
from pipelines.settings import Settings

_TIMEOUT_S = 600.0
_POLL_S = 0.02


class Trial:
    """Runs batches of `release`'s frozen code."""

    def __init__(self, spark: SparkSession, settings: Settings, release: Release) -> None:
        spec = release.spec
        os.environ["SWITCHYARD_RELEASE"] = release.name
        path = code_path(settings, spec.code_digest)
        send_code(spark, path, spec.code_digest, release.name)
        self._spark, self._settings, self._release = spark, settings.on_this_machine(), release
        # this process has an operator's secrets; the code is an author's
        with withheld(settings.driver_environment):
            app, _ = load(path, spec.code_digest, spec.app, (spec.module,), of=release.name)
        self._app = app.reading(spec.topics)
        self._inputs = self._app.topics
        self._tables = StaticTables.of(settings, spec).frames(spark, self._app)

    def run(self, checkpoint: Path, to: SourcePosition, start: SourcePosition) -> str | None:
        """Runs one batch from the end of `checkpoint` to exactly `to`. Returns its error in short; None if it succeeds.

        `start`: where the batch starts if the checkpoint has none. Raises CheckpointDamaged if it can't be read.
        """
        log = Checkpoint(checkpoint, self._inputs, self._release.name)
        batch_id = log.plan_next(to)
        # the returned error is the answer; Spark would log pages about it
        self._spark.sparkContext.setLogLevel("OFF")
        # the plan of the batch limits it
        limits = dict.fromkeys(self._app.sources, 1_000_000_000)
        frames = input_streams(self._spark, self._settings, self._app, start, limits)
        frames |= self._tables
        app, done = self._app, batch_id

        def discard(rows: DataFrame, number: int) -> None:
            # batches after the one on trial don't matter
            if number <= done:
                serialized(app, rows).write.format("noop").mode("overwrite").save()

        with withheld(self._settings.driver_environment):
            result = result_of(app, frames, self._release.spec.settings)
        query = (
            result.writeStream.foreachBatch(discard)
            .outputMode(app.output_mode)
            .option("checkpointLocation", str(checkpoint))
            .queryName(f"trial of {self._release.name}")
            .start()
        )
        deadline = time.monotonic() + _TIMEOUT_S
        try:
            while query.isActive and not log.committed(batch_id) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            failure = query.exception() if not query.isActive else None
        finally:
            query.stop()
            self._spark.sparkContext.setLogLevel("ERROR")
        if log.committed(batch_id):
            return None
        return cause(failure) if failure is not None else f"it did not end in {_TIMEOUT_S:g} s"
