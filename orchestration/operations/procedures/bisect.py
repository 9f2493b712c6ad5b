"""Finds the record that makes a batch fail, by bisection, on a copy of the release's state. It really runs each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import TopicPartition

from orchestration.operations.context import Context
from orchestration.operations.lifecycle import find_release
from orchestration.operations.looking.inputs import look
from orchestration.operations.looking.progress import is_unfinished, progress_of
from pipelines.engine.checkpoint import Checkpoint, copy_of, release_folder
from pipelines.engine.copies import whole_checkpoint
from pipelines.engine.trial import Trial
from pipelines.errors import Refused
from pipelines.kafka.client import consumer
from pipelines.model.limits import FIRST_RECORDS
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import Release
from pipelines.settings import Settings

# how much of a record's key and value is shown
_SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Killer:
    """The first record with which a batch fails; a batch of all records before it runs.

    `cause`: first lines of the error. `records`: in the whole batch. `batches`: how many were tried.
    """

    release: str
    topic: str
    partition: int
    offset: int
    key: str
    value: str
    cause: str
    records: int
    batches: int

    @property
    def record(self) -> str:
        """Which record it is, for people."""
        return f"{self.topic}[{self.partition}] at {self.offset}"

    @property
    def skip(self) -> str:
        """The record as `reset --skip` takes it."""
        return f"{self.topic}:{self.partition}:{self.offset}"

    @property
    def way_out(self) -> str:
        return f"switchyard reset {self.release} --skip {self.skip} --execute"

    @property
    def facts(self) -> dict[str, str]:
        """Names and values to show."""
        return {
            "record": self.record,
            "key": self.key,
            "value": self.value,
            "cause": self.cause,
            "tried": f"{self.batches} batches of up to {self.records:,} records",
            "leave it out": self.way_out,
        }


def bisect(context: Context, name: str) -> Killer | None:
    """The record that makes the next batch of a stopped or failed release fail; None: the batch runs now.

    Each try links the state into a folder of its own. Nothing is written to Kafka. Raises Refused while the release
    runs, and if it has no batch to try.
    """
    state = context.state_for_planning()
    release = find_release(state, name)
    holder = context.holder(release)
    if holder is not None:
        raise Refused(f"{release.name} is run by {holder}", fix=f"`switchyard stop {release.name} --execute` first")
    folder = whole_checkpoint(context.settings, release.name, release.generation)
    last = progress_of(context, release)
    if folder is None:
        raise Refused(f"{release.name} has not planned a batch yet", fix=f"`switchyard start {release.name} --execute`")
    if is_unfinished(context, release, last):
        raise Refused(
            f"{release.name} has committed a batch to Kafka that is missing in Spark's log",
            fix=f"`switchyard start {release.name} --execute` finishes that batch; then try again",
        )
    here = last.boundary.position if last else release.generations[release.generation].start
    end = _planned(release, folder) or _ends(context, release, here)
    total = end.records_since(here)
    if total == 0:
        raise Refused(
            f"{release.name} has read all of its input, so no record is left that could make a batch fail",
            fix=f"`switchyard status {release.name}` shows what is wrong",
        )
    trial = Trial(context.session(), context.settings, release)
    tried = 0

    def fails(count: int) -> str | None:
        nonlocal tried
        tried += 1
        # beside the state, because it links its files; a folder of its own, because two operators may bisect at once
        beside = release_folder(context.settings, release.name)
        with TemporaryDirectory(prefix=".bisect-", dir=beside, ignore_cleanup_errors=True) as work:
            reason = trial.run(copy_of(folder, Path(work) / "copy", release.name), prefix(here, end, count), here)
        context.say(f"{count:,} of {total:,} records: {'fails' if reason else 'runs'}")
        return reason

    found = first_failing(total, fails)
    if found is None:
        return None
    number, cause = found
    source, partition, offset = at_index(here, end, number - 1)
    topic = release.spec.inputs[source].topic
    key, value = _record(context.settings, topic, partition, offset)
    return Killer(release=release.name, topic=topic, partition=partition, offset=offset, key=key, value=value,
                  cause=cause, records=total, batches=tried)  # fmt: skip


def first_failing(total: int, fails: Callable[[int], str | None]) -> tuple[int, str] | None:
    """The smallest number of records, of `total`, with which a batch fails, and why; None if all of them run."""
    cause = fails(total)
    if cause is None:
        return None
    runs, failing = 0, total
    while failing - runs > 1:
        middle = (runs + failing) // 2
        reason = fails(middle)
        if reason is None:
            runs = middle
        else:
            failing, cause = middle, reason
    return failing, cause


def prefix(here: SourcePosition, end: SourcePosition, count: int) -> SourcePosition:
    """The position `count` records after `here` on the way to `end`, one partition after the other."""
    sources: dict[str, dict[int, int]] = {}
    for source, offsets in sorted(end.sources.items()):
        for partition, last in sorted(offsets.items()):
            start = here.sources.get(source, {}).get(partition, 0)
            step = max(0, min(count, last - start))
            sources.setdefault(source, {})[partition] = start + step
            count -= step
    return SourcePosition(sources=sources)


def at_index(here: SourcePosition, end: SourcePosition, index: int) -> tuple[str, int, int]:
    """Source, partition and offset of the record that `prefix(..., index + 1)` ends with."""
    before, after = prefix(here, end, index), prefix(here, end, index + 1)
    return next(
        (source, partition, before.sources[source][partition])
        for source, offsets in after.sources.items()
        for partition, offset in offsets.items()
        if offset != before.sources[source][partition]
    )


def _planned(release: Release, folder: Path) -> SourcePosition | None:
    checkpoint = Checkpoint(folder, release.spec.topics, release.name)
    planned, committed = checkpoint.last_planned(), checkpoint.last_committed()
    if planned is None or planned == committed:
        return None
    return checkpoint.position(checkpoint.planned(planned))


def _ends(context: Context, release: Release, here: SourcePosition) -> SourcePosition:
    sources: dict[str, dict[int, int]] = {}
    for (source, partition), seen in look(context, release, here).items():
        sources.setdefault(source, {})[partition] = seen.end
    return prefix(here, SourcePosition(sources=sources), min(context.settings.max_records_per_batch, FIRST_RECORDS))


def _record(settings: Settings, topic: str, partition: int, offset: int) -> tuple[str, str]:
    client = consumer(settings, auto_offset_reset="error")
    try:
        client.assign([TopicPartition(topic, partition, offset)])
        message = client.poll(settings.request_timeout_s)
    finally:
        client.close()
    if message is None or message.error() is not None:
        return "?", "?"
    return _text(message.key()), _text(message.value())


def _text(data: bytes | str | None) -> str:
    if data is None:
        return "null"
    raw = data if isinstance(data, bytes) else data.encode()
    return raw[:_SHOWN_BYTES].decode(errors="backslashreplace") + ("..." if len(raw) > _SHOWN_BYTES else "")
