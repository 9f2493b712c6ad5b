"""What a replay costs: its time, from measured rates; its disk space, from the current sizes."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from orchestration.operations.reading import Reading
from pipelines.engine.copies import checkpoint_bytes
from pipelines.kafka.progress import ProgressLost
from pipelines.model.pace import THROTTLED_S
from pipelines.model.registry import RegistryState, Release
from pipelines.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The size of states and results. `result_records`: offsets; the end of a transaction takes one too, so this is an
    upper bound. `result_bytes`: None if the broker's disk is not here.
    """

    state_bytes: int
    result_records: int
    result_bytes: int | None

    @property
    def state(self) -> str:
        return as_size(self.state_bytes)

    @property
    def result(self) -> str:
        size = "size on the broker unknown" if self.result_bytes is None else as_size(self.result_bytes)
        return f"up to {self.result_records:,} records, {size}"


def cost_of(context: Reading, release: Release, generations: Iterable[int]) -> Cost:
    """The sizes of the states and results of these `generations` of a release. Several generations may have written the
    same result.
    """
    generations = set(generations)
    # a lost result costs nothing
    there = context.cluster.topic_names()
    counts = {
        topic: release.spec.outputs[name].partitions
        for generation in generations
        for name, topic in release.topics_of(generation).items()
        if topic in there
    }
    topics = sorted(counts)
    first, end = context.cluster.first_offsets(topics), context.cluster.end_offsets(topics)
    sizes = [_topic_bytes(context, topic, counts[topic]) for topic in topics]
    return Cost(
        state_bytes=sum(checkpoint_bytes(context.settings, release.name, g) for g in generations),
        result_records=sum(end[topic][p] - first[topic][p] for topic in topics for p in end[topic]),
        result_bytes=None if None in sizes else sum(size or 0 for size in sizes),
    )


def _topic_bytes(context: Reading, topic: str, partitions: int) -> int | None:
    """Bytes of a topic on the embedded broker's disk; None: the broker's disk is not here."""
    data = context.settings.state_dir / "broker" / "data"
    if context.settings.bootstrap_servers is not None or not data.is_dir():
        return None
    # without the index files: they are preallocated and mostly empty
    return sum(log.stat().st_size for p in range(partitions) for log in (data / f"{topic}-{p}").glob("*.log"))


def free_bytes(settings: Settings) -> int:
    """The free bytes on the disk of the store, which holds states, or on that of the embedded broker, if it has fewer."""
    folders = {settings.store_dir.resolve(), *([settings.state_dir.resolve()] if settings.embedded else [])}
    return min(
        shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.exists())).free for folder in folders
    )


def room_of(context: Reading, like: Release | None) -> str:
    """How much disk a replay of all history is expected to take: as much as release `like` has now."""
    free = f"{as_size(free_bytes(context.settings))} are free"
    if like is None or not _has_run(context, like):
        return f"unknown, because nothing was measured yet; {free}"
    cost = cost_of(context, like, {like.generation})
    return f"state about {cost.state}, result {cost.result}, the same as {like.name}; {free}"


def _has_run(context: Reading, release: Release) -> bool:
    try:
        return context.progress(release.name) is not None
    except ProgressLost:
        # then its state and its result still have a size
        return True


def as_size(count: float) -> str:
    """Bytes as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The expected rate of a replay. `of`: the release whose rate was measured. `throttled`: the batch limit sets the
    rate.
    """

    records_per_s: float
    of: str
    throttled: bool

    def seconds(self, records: int) -> float:
        return round(records / self.records_per_s, 1)


def replay_rate(
    context: Reading, state: RegistryState, app: str, name: str, max_records_per_batch: int | None = None
) -> Rate | None:
    """The best rate that release `name`, or otherwise another release of its app, reached when it hydrated, limited by
    its throttle; None: never measured. A rate that was measured on little input says little.
    """
    names = {name, *(r.name for r in state.of_app(app))}
    found = [state.releases[n] for n in names if n in state.releases]
    rates = [(r.name == name, r.records_per_s, r.name) for r in found if r.records_per_s is not None]
    if not rates:
        return None
    trigger_s = context.settings.trigger_s or THROTTLED_S
    throttle = max_records_per_batch / trigger_s if max_records_per_batch else math.inf
    _, best, of = max(rates)
    return Rate(records_per_s=min(best, throttle), of=of, throttled=throttle < best)


def time_of(rate: Rate | None, name: str, records: int) -> str:
    """How long release `name` takes for `records` at that rate, in words."""
    if rate is None:
        return "duration unknown, because its rate was never measured"
    said = f"about {records / rate.records_per_s:,.0f} s at {rate.records_per_s:,.0f} records/s"
    if rate.throttled:
        return said + ", limited by --max-records-per-batch"
    return said if rate.of == name else said + f", measured on {rate.of}"
