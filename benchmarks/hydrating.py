"""How fast releases read history, exactly once, beside a plain consumer of the same topics."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Message, TopicPartition

from orchestration.catalog import find_apps, topics_of
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.sources import Options, Source, app_names, produce, sources_for
from orchestration.sources.base import Density
from orchestration.sources.prices import REAL, TICKERS
from pipelines.engine.checkpoint import release_folder
from pipelines.errors import BadUsage
from pipelines.kafka.client import consumer, drain
from pipelines.kafka.offsets import end_offsets
from pipelines.kafka.progress import progress_history
from pipelines.kafka.topics import delete_topics
from pipelines.model.app import App
from pipelines.model.names import app_of, release_name
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Progress
from pipelines.settings import Settings

APP = "stock-stats"
# 25 apps take a quarter of an hour
RECORDS, KEYS = 600_000, 10_000
# of trades, from the first price in the year 2000
DAYS = 5_000
_TIMEOUT_S = 900.0

# a context with changes of the settings, for its plans and its drivers
Open = Callable[..., Context]


def measure(opened: Open, records: int, density: Density) -> dict[str, Any]:
    """Hydration of stock-stats, beside how fast its input was produced, and how fast a plain consumer reads it."""
    context = opened()
    settings = context.settings
    loaded = produce(settings, sources_for(APP, trades_of(density, records, REAL)), history=records)
    execute(context, plan_stage(context, APP, version=1))
    raw, found = _beside_raw(opened, release_name(APP, 1))
    return {
        "density": density,
        "produce_records_per_s": round(loaded.records / loaded.duration_s),
        "raw_consumer_records_per_s": raw,
        "hydrate": found,
        "hydrate_to_raw": round(found["records_per_s"] / raw, 3),
        "cores": os.cpu_count(),
        "driver_heap_mb": settings.driver_heap_mb,
        "broker_heap_mb": settings.broker_heap_mb,
    }


def measure_apps(opened: Open, names: Sequence[str], records: int) -> dict[str, Any]:
    """Hydration of one app after another, beside a plain consumer of the same topics. `names`: all apps that have a source,
    if it is empty.

    App -> what `hydrate` returns; `kind`, see `kind_of`; `keys`: how many different ones its input has; `raw`: records
    per second of the plain consumer; `to_raw`: the app's share of that. If an app reads the result of another one, that
    is read first. What an app leaves is deleted before the next one. Raises BadUsage for a name that no app has.
    """
    apps = {app.name: app for app in find_apps()}
    if unknown := [name for name in names if name not in apps]:
        raise BadUsage(f"there is no app {', '.join(unknown)}", fix=f"the apps are: {', '.join(apps)}")
    report = {}
    for name in names or app_names():
        report[name] = _app(opened, apps, name, records)
        print(json.dumps({name: report[name]}), file=sys.stderr, flush=True)
    return report


def _app(opened: Open, apps: Mapping[str, App], name: str, records: int) -> dict[str, Any]:
    context = opened()
    settings = context.settings
    produce(settings, sources_of(name, records), history=records)
    staged = _staged(opened, apps, name)
    release = staged[-1]
    raw, found = _beside_raw(opened, release)
    topics = _topics(context, release)
    report = {
        "kind": kind_of(operators(release_folder(settings, release))),
        "keys": len({key for some in read(settings, topics) for each in some if (key := each.key()) is not None}),
        **found,
        "raw": raw,
        "to_raw": round(found["records_per_s"] / raw, 3),
    }
    for each in reversed(staged):
        execute(context, plan_retire(context, each))
    delete_topics(settings, {topic for each in staged for topic in topics_of(apps[app_of(each)])})
    return report


def _staged(opened: Open, apps: Mapping[str, App], name: str) -> list[str]:
    """Stages an app. What it reads of other apps is hydrated before that. Returns all releases, that of the app last."""
    context = opened()
    staged: list[str] = []
    read: list[str] = []
    for each in apps[name].upstream.values():
        staged += _staged(opened, apps, each.app)
        read.append(staged[-1])
        _beside_raw(opened, staged[-1])
    # an earlier app of the benchmark may have read this one, too
    plan = plan_stage(context, name, upstream=read)
    execute(context, plan)
    return [*staged, *plan.releases]


def sources_of(app: str, records: int) -> Sequence[Source]:
    """The sources of an app, of `KEYS` keys if they let one choose."""
    if app == "top-stocks":
        # its keys are days, of which it reads a result for each ticker
        return sources_for(app, trades_of("sparse", records, TICKERS))
    with suppress(BadUsage):
        return sources_for(app, Options(keys=KEYS))
    return sources_for(app, Options())


def trades_of(density: Density, records: int, tickers: Sequence[str]) -> Options:
    """Options for `records` trades, of which none is in the future: topics refuse that. `tickers`: of sparse trades."""
    if density == "dense":
        return Options()
    return Options(density="sparse", per_day=math.ceil(records / (DAYS * len(tickers))), tickers=tuple(tickers))


def operators(folder: Path) -> set[str]:
    """Spark's names of the operators that have state in the checkpoints below `folder`."""
    # a file for each operator, or, in the second version of the format, for each batch that changed it
    paths = (path for path in folder.glob("**/state/*/_metadata/**/*") if path.is_file() and path.suffix != ".crc")
    # below a line with the version
    told = (json.loads(path.read_text().partition("\n")[2]) for path in paths)
    return {each["operatorInfo"]["operatorName"] for each in told}


def kind_of(operators: Iterable[str]) -> str:
    """`python state` for an app that keeps state of its own in Python, `sql` for the others."""
    return "python state" if any("InPandas" in name for name in operators) else "sql"


def _beside_raw(opened: Open, release: str) -> tuple[int, dict[str, Any]]:
    """Records per second of a plain consumer that reads the input of a staged release, and what `hydrate` returns."""
    context = opened()
    began = time.monotonic()
    records = sum(map(len, read(context.settings, _topics(context, release))))
    raw = records / (time.monotonic() - began)
    return round(raw), hydrate(opened, release, records)


def _topics(context: Context, release: str) -> list[str]:
    return sorted(set(context.registry.state().releases[release].spec.topics.values()))


def read(settings: Settings, topics: Sequence[str]) -> Iterator[list[Message]]:
    """All records of `topics`."""
    client = consumer(
        settings, auto_offset_reset="earliest", queued_max_messages_kbytes=262_144, enable_partition_eof=True
    )
    parts = [TopicPartition(topic, p, 0) for topic, ends in end_offsets(settings, topics).items() for p in ends]
    client.assign(parts)
    left = len(parts)
    while left:
        read = drain(client, 5)
        # the end of a partition comes as an error. The last offset of a result is no record, so it can't tell the end
        records = [message for message in read if message.error() is None]
        left -= len(read) - len(records)
        yield records
    client.close()


def hydrate(opened: Open, release: str, records: int) -> dict[str, Any]:
    """Hydrates a staged release, and stops it: how fast it reads the last two thirds of its `records` records.

    `seconds` are those between the commits of two batches. `cpu_s`: what the driver, its JVM and Python workers used.
    """
    # three batches read few records, the first of them a little more than a third: limits are rounded down. A batch of few
    # records would end before the pause between two starts
    usual = opened().settings.max_records_per_batch
    context = opened(max_records_per_batch=min(usual, max(1, records * 7 // 20)), trigger_s=0)
    state = context.registry.state().releases[release]
    ends = end_offsets(context.settings, state.spec.topics.values())
    whole = SourcePosition(sources={source: ends[topic] for source, topic in state.spec.topics.items()})
    used: dict[int, float] = {}

    def done() -> bool:
        last = context.progress(release)
        if last is None:
            return False
        if last.boundary.batch_id not in used and (beat := context.beats().get(release)) is not None:
            used[last.boundary.batch_id] = cpu_s(beat.pid)
        return last.boundary.position.dominates(whole)

    execute(context, plan_start(context, release))
    context.until(f"{release} has not read everything", done, timeout_s=_TIMEOUT_S, poll_s=0.1)
    execute(context, plan_stop(context, release))
    return rate(progress_history(context.settings, release), whole, used)


def rate(history: Sequence[Progress], whole: SourcePosition, used: Mapping[int, float]) -> dict[str, Any]:
    """Records per second over the last two thirds of the records before `whole`, by the times of the progress records.

    `used`: batch -> seconds of processor time that the driver had used at its end. Some batches may be missing; then what
    is said of processor time is None.
    """
    last = next(p for p in history if p.boundary.position.dominates(whole))
    warm = next(p for p in history if p.total.rows_in >= last.total.rows_in / 3)
    seconds, records = (last.at_ms - warm.at_ms) / 1000, last.total.rows_in - warm.total.rows_in
    first, end = (used.get(p.boundary.batch_id) for p in (warm, last))
    cpu = end - first if first is not None and end is not None and end > first else None
    return {
        "records": records,
        "seconds": round(seconds, 2),
        "records_per_s": round(records / seconds),
        "batches": last.boundary.batch_id - warm.boundary.batch_id,
        "results": last.total.rows_out - warm.total.rows_out,
        "cpu_s": cpu and round(cpu, 1),
        "records_per_cpu_s": cpu and round(records / cpu),
    }


def cpu_s(leader: int) -> float:
    """Seconds of processor time that the processes of a session have used, with their ended children."""
    return sum(sum(map(int, fields[11:15])) for _, fields in processes_of(leader)) / os.sysconf("SC_CLK_TCK")


def processes_of(leader: int) -> Iterator[tuple[int, list[str]]]:
    """Pid, and the fields of `/proc/PID/stat` after the name, of each process of a session."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        # a process may end meanwhile
        with suppress(OSError):
            # the name, in brackets, may have spaces
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                yield int(path.parent.name), fields
