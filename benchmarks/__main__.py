"""`make bench`: measures hydration of stock-stats, exactly once, with the raw consumer's limit beside it.

- `python -m benchmarks [hydrate] [--records N] [--density dense|sparse]`: how fast history is read.
- `python -m benchmarks switch [--keys N] [--rounds N]`: how long a consumer waits for the other version at a promote and
  a rollback.
- `python -m benchmarks reset [--keys N]`: how long a reset takes until its replay may start.
- `python -m benchmarks registry`: what 10,000 to 1,000,000 entries cost.
- `python -m benchmarks recovery [--rounds N]`: how long until results flow again after a driver or the broker was
  killed.

Figures go to standard output as JSON. Ratios compare figures of one run on one machine. Speed is measured here, never
in a test.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import growth, recovering, resetting, switching
from benchmarks.command import Command, as_process
from orchestration.local.broker import EmbeddedBroker
from orchestration.operations.context import Context, open_context
from orchestration.operations.execute import execute
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.sources import Options, produce, source_for
from pipelines.kafka.client import consumer, drain
from pipelines.kafka.log import read_tail
from pipelines.kafka.offsets import end_offsets
from pipelines.model.names import progress_topic
from pipelines.model.progress import Progress
from pipelines.settings import Settings

APP, RELEASE = "stock-stats", "stock-stats.v1"


def raw_consumer(settings: Settings, topic: str) -> float:
    """Records per second that a plain consumer reads of `topic`, values thrown away."""
    from confluent_kafka import TopicPartition

    ends = end_offsets(settings, [topic])[topic]
    client = consumer(settings, auto_offset_reset="earliest", queued_max_messages_kbytes=262_144)
    client.assign([TopicPartition(topic, p, 0) for p in ends])
    left, began = sum(ends.values()), time.monotonic()
    while left > 0:
        left -= len(drain(client, 5))
    seconds = time.monotonic() - began
    client.close()
    return sum(ends.values()) / seconds


def hydrate(settings: Settings, records: int) -> dict[str, Any]:
    """Hydrates one release; records per second over the last two thirds, by the times in its progress records."""
    # of few records one batch would take all, and none would be left to measure
    batch = min(settings.max_records_per_batch, max(1, records // 3))
    context = open_context(settings.model_copy(update={"max_records_per_batch": batch}))
    execute(context, plan_stage(context, APP, version=1))
    execute(context, plan_start(context, RELEASE))
    context.until(
        "the release has not read everything",
        lambda: (p := context.progress(RELEASE)) is not None and p.total.rows_in >= records,
        timeout_s=900,
    )
    history = [Progress.model_validate_json(v) for v in read_tail(settings, progress_topic(RELEASE), 10_000)]
    execute(context, plan_stop(context, RELEASE))
    warm = next(p for p in history if p.total.rows_in >= records / 3)
    last = next(p for p in history if p.total.rows_in >= records)
    seconds = (last.at_ms - warm.at_ms) / 1000
    return {
        "records": last.total.rows_in - warm.total.rows_in,
        "seconds": round(seconds, 2),
        "records_per_s": round((last.total.rows_in - warm.total.rows_in) / seconds),
        "results": last.total.rows_out,
        "batches": last.boundary.batch_id - warm.boundary.batch_id,
    }


def hydration(settings: Settings, asked: argparse.Namespace) -> dict[str, Any]:
    """What `python -m benchmarks hydrate` prints."""
    loaded = produce(settings, source_for(APP, Options(density=asked.density)), history=asked.records)
    raw = raw_consumer(settings, loaded.topic)
    found = hydrate(settings, asked.records)
    return {
        "density": asked.density,
        "produce_records_per_s": round(loaded.records / loaded.duration_s),
        "raw_consumer_records_per_s": round(raw),
        "hydrate": found,
        "hydrate_to_raw": round(found["records_per_s"] / raw, 3),
        "cores": os.cpu_count(),
        "driver_heap_mb": settings.driver_heap_mb,
        "broker_heap_mb": settings.broker_heap_mb,
    }


def measured(context: Context, switchyard: Command, asked: argparse.Namespace) -> dict[str, Any]:
    """What `python -m benchmarks` prints of all but hydration."""
    match asked.what:
        case "switch":
            return switching.measure(context, switchyard, asked.keys, asked.rounds)
        case "reset":
            return resetting.measure(context, switchyard, asked.keys)
        case "registry":
            return growth.measure(context)
    return recovering.measure(context, asked.rounds)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What `arguments` ask for; None: those of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    kinds = ("hydrate", "switch", "reset", "registry", "recovery")
    parser.add_argument("what", nargs="?", choices=kinds, default="hydrate")
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--density", choices=("dense", "sparse"), default="dense")
    parser.add_argument("--port", type=int, default=19392)
    return parser.parse_args(arguments)


def main() -> None:
    asked = parsed()
    home = Path(tempfile.mkdtemp(prefix="switchyard-bench-"))
    settings = Settings(state_dir=home, broker_port=asked.port)
    broker = EmbeddedBroker(settings)
    broker.start(60)
    try:
        if asked.what == "hydrate":
            report = hydration(settings, asked)
        else:
            report = measured(open_context(settings), as_process(settings), asked)
        print(json.dumps(report, indent=2))
    finally:
        broker.stop(30)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
