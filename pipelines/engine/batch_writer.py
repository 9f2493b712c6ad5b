"""The writer of a driver: one batch, one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from confluent_kafka import KafkaError, KafkaException

from pipelines.engine.jvm_producer import BatchRecords, JvmProducer
from pipelines.engine.records import Unsent
from pipelines.engine.writer import Writer
from pipelines.model.names import progress_topic
from pipelines.model.progress import Progress
from pipelines.model.reset import Replays

# the keys of the progress topic cycle through this many numbers, so compaction keeps that many boundaries
_RING = 100_000


class BatchWriter(Writer[JvmProducer]):
    """Writes batches, with the errors that `Writer` names."""

    def give_up(self) -> None:
        """Ends the producer, so that nothing waits for its acknowledgments. Can be called from any thread."""
        live = self._producer
        if live is not None:
            live.close()

    def abort(self) -> None:
        """Aborts the batch's transaction, and drops the producer: a task that has not ended yet could still use it."""
        super().abort()
        self.drop()

    def write(
        self,
        records: BatchRecords,
        topics: Mapping[str, str],
        replays: Replays,
        replayed: Literal["all", "some", "none"],
        *,
        in_turn: bool,
    ) -> list[Unsent]:
        """Queues the records of a batch; those of a partition stay in order, and with `in_turn` one partition comes after the
        other. Returns the rows that are too large.

        `topics`: result -> topic; the only result has an empty name. Headers name the source record, if the row does, and
        mark a replay. `replayed`: how much of the batch's input is one.
        """
        try:
            found: list[Unsent] = self._guard(
                self._live().write, records, topics, replays, replayed, in_turn, self._left_s()
            )
        except KafkaException as error:
            if self._left_s() < 0 and error.args[0].code() == KafkaError._TIMED_OUT:
                raise self._too_late("not all records are written") from error
            raise
        return found

    def commit_progress(self, progress: Progress, offsets: Mapping[str, Mapping[int, int]] | None) -> None:
        """Sends the progress record and the group's offsets (topic -> partition -> offset), then commits."""
        live = self._live()
        record = progress.model_dump_json(exclude_none=True), str(progress.boundary.batch_id % _RING)
        self._guard(lambda: live.produce(progress_topic(self._release), *record, partition=0))
        if offsets:
            self._guard(live.send_offsets, offsets, f"{progress.generation}:{progress.boundary.batch_id}")
        self.commit()
