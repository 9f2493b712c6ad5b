"""Progress topics, read: what drivers say of their releases."""

from __future__ import annotations

from pipelines.kafka.log import LogReader, read_tail
from pipelines.kafka.offsets import end_of
from pipelines.model.names import progress_topic
from pipelines.model.progress import Progress
from pipelines.settings import Settings


def newest_progress(settings: Settings, release: str) -> Progress | None:
    """The newest committed progress record of a release; None before the first. Raises Unavailable without a broker."""
    values = read_tail(settings, progress_topic(release))
    return Progress.model_validate_json(values[-1]) if values else None


def progress_history(settings: Settings, release: str, records: int = 100_000) -> list[Progress]:
    """The last `records` progress records of a release, oldest first."""
    return [Progress.model_validate_json(v) for v in read_tail(settings, progress_topic(release), records)]


class ProgressTail:
    """The newest progress record of a release, kept up to date without reading the topic again."""

    def __init__(self, settings: Settings, release: str) -> None:
        topic = progress_topic(release)
        # the tail begins before the newest record is read, so that none falls between
        self._reader = LogReader(settings, topic, start=end_of(settings, topic, 1)[0])
        self.newest = newest_progress(settings, release)

    def poll(self, timeout_s: float) -> Progress | None:
        """Waits up to `timeout_s` for a newer record; returns the newest."""
        values = self._reader.poll(timeout_s)
        if values:
            self.newest = Progress.model_validate_json(values[-1])
        return self.newest

    def close(self) -> None:
        self._reader.close()
