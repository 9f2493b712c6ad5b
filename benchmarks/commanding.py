"""How long commands take at the terminal, beside two running releases with a small result."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.command import Command
from orchestration.operations.context import Context
from orchestration.operations.execute import execute
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.wait import wait_ready
from orchestration.sources.base import Options
from orchestration.sources.catalog import sources_for
from orchestration.sources.run import produce

APP, OLD, NEW = "stock-stats", "stock-stats.v1", "stock-stats.v2"
RECORDS = 20_000
# what is measured, in this order; `stage` only shows its plan, which takes the trial
COMMANDS = (
    ("stage", APP, "--correction", "again"),
    ("diff", NEW),
    ("check", NEW),
    ("promote", NEW, "--execute"),
    ("rollback", APP, "--execute"),
    ("status",),
    ("--help",),
)


def measure(context: Context, switchyard: Command, rounds: int, records: int = RECORDS) -> dict[str, Any]:
    """Command -> seconds from its start to its end, in each round. `records`: of the input."""
    produce(context.settings, sources_for(APP, Options(per_second=500)), history=records)
    for version, name in ((1, OLD), (2, NEW)):
        execute(context, plan_stage(context, APP, version=version, correction="again" if version == 2 else None))
        execute(context, plan_start(context, name))
        wait_ready(context, name, for_s=0.5, timeout_s=300)
        if version == 1:
            switchyard("check", name)
            switchyard("promote", name, "--execute")
    took: dict[str, Any] = {f"{command[0]}_s": [] for command in COMMANDS}
    try:
        for _ in range(rounds):
            for command in COMMANDS:
                began = time.monotonic()
                switchyard(*command)
                took[f"{command[0]}_s"].append(round(time.monotonic() - began, 2))
    finally:
        for name in (NEW, OLD):
            execute(context, plan_stop(context, name))
    return took
