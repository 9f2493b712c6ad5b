"""How long until results flow again after a driver, or the broker, was killed, and until a lost part is named."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

from benchmarks.switching import APP, HERE, LIVE_PER_S, NEW, OLD, TOPIC, Input
from orchestration.local.broker import EmbeddedBroker
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.promote import plan_promote
from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.plans.plan import Plan
from orchestration.operations.procedures.diff import diff
from orchestration.operations.procedures.wait import wait_ready
from pipelines.engine.checkpoint import release_folder
from pipelines.errors import Refused, Unavailable
from pipelines.kafka.clock import now_ms
from pipelines.kafka.progress import progress_history
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.model.names import progress_topic
from pipelines.model.reset import Target

KEYS = 20_000
LOST = ("result", "progress", "checkpoint")
_TIMEOUT_S = 300.0


def measure(context: Context, rounds: int) -> dict[str, Any]:
    """Seconds, `rounds` of each.

    `driver_s`: from the restart of a killed driver to its next commit. `results_s`: from a killed broker's first answer
    to the next commit of either release. `switch_s`: of a promote or a rollback that starts at that first answer.
    `named_s`: from the deletion of a part of a running release to its failure, which names the part.
    """
    ensure_topic(context.settings, TOPIC, 4, INPUT)
    source = Input(context.settings, KEYS)
    source.load()
    report: dict[str, Any] = {
        "keys": KEYS,
        "records_per_s": LIVE_PER_S,
        "driver_s": [],
        "results_s": [],
        "switch_s": [],
        "named_s": {part: [] for part in LOST},
    }
    for version, name in ((1, OLD), (2, NEW)):
        execute(context, plan_stage(context, APP, version=version, code_dir=HERE / f"v{version}"))
        execute(context, plan_start(context, name))
        wait_ready(context, name, for_s=1.0, timeout_s=600)
        if version == 1:
            execute(context, plan_promote(context, name))
    source.start()
    try:
        for _ in range(rounds):
            report["driver_s"].append(_kill_driver(context, OLD))
        for name in (OLD, NEW):
            wait_ready(context, name, unread_records=2 * LIVE_PER_S, for_s=1.0, timeout_s=_TIMEOUT_S)
        diff(context, NEW)
        for number in range(rounds):
            results_s, switch_s = _kill_broker(context, forward=number % 2 == 0)
            report["results_s"].append(results_s)
            report["switch_s"].append(switch_s)
        for _ in range(rounds):
            for part in LOST:
                report["named_s"][part].append(_lose(context, OLD, part))
    finally:
        source.stop()
        for name in (NEW, OLD):
            # without a broker this fails, too, and must not hide why
            with suppress(Unavailable):
                execute(context, plan_stop(context, name))
    return report


def _kill_driver(context: Context, name: str) -> float:
    lease = context.registry.state().releases[name].lease
    assert lease is not None
    os.killpg(lease.holder.pid, signal.SIGKILL)
    # a process that has just been killed is still there for a moment
    context.until(
        f"{name} has not ended", lambda: context.holder(context.registry.state().releases[name]) is None, timeout_s=30
    )
    began = time.monotonic()
    context.launcher.launch(name)
    context.until(
        f"{name} does not commit again",
        lambda: (p := context.progress(name)) is not None and p.token > lease.token,
        timeout_s=_TIMEOUT_S,
    )
    return round(time.monotonic() - began, 2)


def _kill_broker(context: Context, *, forward: bool) -> tuple[float, float]:
    broker = EmbeddedBroker(context.settings)
    process = broker.status().pid
    assert process is not None
    os.killpg(process, signal.SIGKILL)
    # until then, the port is taken
    context.until("the broker has not ended", lambda: broker.status().pid is None, timeout_s=30, poll_s=0.01)
    broker.start(120)
    back_ms, began = now_ms(), time.monotonic()
    plans: list[Plan] = []

    def planned() -> bool:
        # refused until both drivers are heard again: they have been silent for as long as the broker was away
        with suppress(Refused, Unavailable):
            plans.append(
                plan_promote(context, NEW, max_evidence_age_s=24 * 3600.0) if forward else plan_rollback(context, APP)
            )
        return bool(plans)

    context.until("the switch is refused", planned, timeout_s=_TIMEOUT_S, poll_s=0.1)
    execute(context, plans[0])
    switch_s = time.monotonic() - began
    first_ms = [_first_after(context, name, back_ms) for name in (OLD, NEW)]
    return round((max(first_ms) - back_ms) / 1000, 2), round(switch_s, 2)


def _lose(context: Context, name: str, part: str) -> float:
    """Deletes a part of a release that runs. Afterwards the release has all its parts again, and runs."""
    release = context.registry.state().releases[name]
    match part:
        case "result":
            context.cluster.delete_topics([*release.result_topics.values()])
        case "progress":
            context.cluster.delete_topics([progress_topic(name)])
        case "checkpoint":
            # the driver may be writing there
            release_folder(context.settings, name).rename(context.settings.state_dir / f"lost-{now_ms()}")
    began = time.monotonic()
    context.until(
        f"the lost {part} of {name} is not named",
        lambda: context.registry.state().releases[name].state == "failed",
        timeout_s=_TIMEOUT_S,
        poll_s=0.05,
    )
    named_s = time.monotonic() - began
    context.until(
        f"{name} has not ended", lambda: context.holder(context.registry.state().releases[name]) is None, timeout_s=30
    )
    execute(context, plan_reset(context, name, Request(target=Target(kind="earliest", text="--to-earliest"))))
    wait_ready(context, name, unread_records=2 * LIVE_PER_S, for_s=1.0, timeout_s=_TIMEOUT_S)
    return round(named_s, 2)


def _first_after(context: Context, name: str, at_ms: int) -> int:
    """When `name` committed first after `at_ms`, milliseconds since the epoch."""
    found: list[int] = []

    def there() -> bool:
        found[:] = [p.at_ms for p in progress_history(context.settings, name) if p.at_ms > at_ms]
        return bool(found)

    context.until(f"{name} does not commit", there, timeout_s=_TIMEOUT_S, poll_s=0.2)
    return min(found)
