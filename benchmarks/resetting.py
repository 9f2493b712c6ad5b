"""How long a reset takes until its replay may start, on a stopped release with a large state and a large result."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from benchmarks.command import Command
from benchmarks.switching import APP, HERE, OLD, TOPIC
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from pipelines.kafka.client import producer
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.settings import Settings

# each leaves a release that the next one can be tried on; after what is deleted, history is read again
RESETS = {
    "new": ("--to-earliest",),
    "keep": ("--shift-by=-1000", "--state", "keep", "--force"),
    "truncate": ("--to-earliest", "--output", "truncate", "--yes"),
    "tombstone": ("--to-earliest", "--output", "tombstone"),
}


def measure(context: Context, switchyard: Command, keys: int) -> dict[str, Any]:
    """Seconds of `reset --stay-stopped` as a plan and carried out, for a cleared state, a kept one, a deleted result, and one
    that is cleared by a tombstone for each key.

    `state_bytes`, `result_bytes` (None: unknown), `result_records`: how large they are.
    """
    ensure_topic(context.settings, TOPIC, 4, INPUT)
    _load(context.settings, keys)
    execute(context, plan_stage(context, APP, version=1, code_dir=HERE / "v1"))
    _hydrate(context, keys)
    report: dict[str, Any] = {"keys": keys}
    for output, options in RESETS.items():
        command = ("reset", OLD, *options, "--stay-stopped")
        planned_s, plan = _timed(switchyard, *command, "--json")
        done_s, _ = _timed(switchyard, *command, "--execute")
        figures = json.loads(plan)["figures"]
        sizes = {name: figures[name] for name in ("state_bytes", "result_bytes", "result_records")}
        report[output] = {"plan_s": planned_s, "done_s": done_s, **sizes}
        if output == "truncate":
            _hydrate(context, keys)
        elif output != "tombstone":
            reset = [*context.registry.state().operations][-1]
            report[output]["undo_s"] = _timed(switchyard, "undo", reset, "--execute")[0]
    return report


def _load(settings: Settings, keys: int) -> None:
    """One record for every key, of 64 characters that don't compress."""
    client = producer(settings)
    for number in range(keys):
        key = hashlib.sha256(str(number).encode()).hexdigest()
        while True:
            try:
                client.produce(TOPIC, json.dumps({"n": number}), key)
                break
            except BufferError:
                client.poll(0.1)
    client.flush()


def _hydrate(context: Context, keys: int) -> None:
    execute(context, plan_start(context, OLD))
    context.until(
        "the release has not read everything",
        lambda: (
            (p := context.progress(OLD)) is not None
            and sum(offset for offsets in p.boundary.position.sources.values() for offset in offsets.values()) >= keys
        ),
        timeout_s=3600,
    )
    execute(context, plan_stop(context, OLD))


def _timed(switchyard: Command, *command: str) -> tuple[float, str]:
    began = time.monotonic()
    said = switchyard(*command)
    return round(time.monotonic() - began, 2), said
