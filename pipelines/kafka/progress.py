"""Progress topics, read: what drivers say of their releases."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from pipelines.errors import Refused
from pipelines.kafka.kept import Kept
from pipelines.kafka.log import LogReader, read_tail
from pipelines.kafka.offsets import end_of
from pipelines.model.names import progress_topic
from pipelines.model.progress import Progress, read_progress
from pipelines.settings import Settings

log = logging.getLogger(__name__)


def newest_progress(settings: Settings, release: str, *, kept: Kept | None = None) -> Progress | None:
    """The newest committed progress record of a release; None before the first.

    Raises Unavailable without a broker, Refused where it can't be read: an older one would be another place.
    """
    values = read_tail(settings, progress_topic(release), kept=kept)
    return _newest(release, values[-1]) if values else None


def progress_history(settings: Settings, release: str, records: int = 100_000) -> list[Progress]:
    """The last `records` progress records of a release that can be read, oldest first. Raises as `newest_progress` does."""
    values = read_tail(settings, progress_topic(release), records)
    if not values:
        return []
    return [*_readable(release, values[:-1]), _newest(release, values[-1])]


def _newest(release: str, value: bytes) -> Progress:
    try:
        return read_progress(value)
    except ValueError as error:
        raise Refused(
            f"the newest record of {progress_topic(release)} can't be read: {error}",
            fix="upgrade Switchyard here, if a newer version has written it; else stage a new version: where this one stands isn't known",
        ) from error


def _readable(release: str, values: Iterable[bytes]) -> Iterator[Progress]:
    for value in values:
        try:
            yield read_progress(value)
        except ValueError as error:
            log.warning("a record of %s can't be read, and is left out: %s", progress_topic(release), error)


class ProgressTail:
    """The newest progress record of a release, kept up to date without reading the topic again."""

    def __init__(self, settings: Settings, release: str) -> None:
        self._release = release
        topic = progress_topic(release)
        # the tail begins before the newest record is read, so that none falls between
        self._reader = LogReader(settings, topic, start=end_of(settings, topic, 1)[0])
        self.newest = newest_progress(settings, release)

    def poll(self, timeout_s: float) -> Progress | None:
        """Waits up to `timeout_s` for a newer record; returns the newest."""
        for progress in _readable(self._release, self._reader.poll(timeout_s)):
            self.newest = progress
        return self.newest

    def close(self) -> None:
        self._reader.close()
