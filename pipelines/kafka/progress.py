"""Reads progress topics: what drivers say about their releases."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain

from pipelines.errors import Refused
from pipelines.kafka.failures import TopicGone
from pipelines.kafka.kept import Kept
from pipelines.kafka.log import LogReader, read_tail
from pipelines.model.names import progress_topic
from pipelines.model.parts import Loss
from pipelines.model.progress import Progress, read_progress
from pipelines.model.recorded import RecordedBatch, recorded_batches
from pipelines.settings import Settings

log = logging.getLogger(__name__)

# the most records that are read: as many boundaries as the topic keeps. And how many are read at first
_MOST, _FEW = 100_000, 1_000


class ProgressLost(Refused):
    """The progress topic of a release is gone, so its position is unknown. Its consumer group may still tell."""

    def __init__(self, release: str) -> None:
        loss = Loss(release=release, part="progress", name=progress_topic(release))
        super().__init__(loss.what, fix=loss.way)


def newest_progress(settings: Settings, release: str, *, kept: Kept | None = None) -> Progress | None:
    """The newest committed progress record of a release; None if there is none.

    Raises Unavailable without a broker, ProgressLost without the topic, Refused if the record can't be read: an older one
    would give a wrong position.
    """
    values = _tail(settings, release, 1, kept)
    return _newest(release, values[-1]) if values else None


def progress_history(settings: Settings, release: str, records: int = _MOST) -> list[Progress]:
    """The last `records` readable progress records of a release, oldest first. Raises as `newest_progress` does."""
    values = _tail(settings, release, records)
    if not values:
        return []
    return [*_readable(release, values[:-1]), _newest(release, values[-1])]


def recorded_since(settings: Settings, release: str, generation: int, batch_id: int) -> dict[int, RecordedBatch]:
    """Number -> batch, of a generation, from batch `batch_id` on, as far as the last 100,000 records go.

    It reads back only as far as it must, as a record may take some kB of memory. Raises as `newest_progress` does.
    """
    records = _FEW
    while True:
        values = _tail(settings, release, records)
        if not values:
            return {}
        history = chain(_readable(release, values[:-1]), [_newest(release, values[-1])])
        found, reaches = recorded_batches(history, generation, batch_id)
        if reaches or len(values) < records or records >= _MOST:
            return found
        records = min(records * 10, _MOST)


def _tail(settings: Settings, release: str, records: int, kept: Kept | None = None) -> list[bytes]:
    try:
        return read_tail(settings, progress_topic(release), records, kept=kept)
    except TopicGone as error:
        raise ProgressLost(release) from error


def _newest(release: str, value: bytes) -> Progress:
    try:
        return read_progress(value)
    except ValueError as error:
        raise Refused(
            f"the newest record of {progress_topic(release)} can't be read: {error}",
            fix="if a newer version of Switchyard wrote it, upgrade Switchyard here; otherwise this release's position is unknown: `switchyard stage` a new version",
        ) from error


def _readable(release: str, values: Iterable[bytes]) -> Iterator[Progress]:
    for value in values:
        try:
            yield read_progress(value)
        except ValueError as error:
            log.warning("a record of %s can't be read and is ignored: %s", progress_topic(release), error)


class ProgressTail:
    """The newest progress record of a release, kept up to date without reading the topic again. Raises as
    `newest_progress` does.
    """

    def __init__(self, settings: Settings, release: str) -> None:
        self._release = release
        # the tail starts before the newest record is read, so that no record is missed in between
        try:
            self._reader = LogReader(settings, progress_topic(release), start=None)
        except TopicGone as error:
            raise ProgressLost(release) from error
        self.newest = newest_progress(settings, release)

    def poll(self, timeout_s: float) -> Progress | None:
        """Waits up to `timeout_s` for a newer record; returns the newest."""
        for progress in _readable(self._release, self._reader.poll(timeout_s)):
            self.newest = progress
        return self.newest

    def close(self) -> None:
        self._reader.close()
