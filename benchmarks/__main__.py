"""`make bench`: measures how fast history is read, exactly once, and how long operations and recoveries take.

- `python -m benchmarks [hydrate] [--records N] [--density dense|sparse]`: how fast stock-stats reads history, with the
  raw consumer's limit beside it.
- `python -m benchmarks apps [--apps NAME ...] [--records N]`: the same for each app.
- `python -m benchmarks switch [--keys N] [--rounds N]`: how long a consumer waits for the other version at a promote and
  a rollback.
- `python -m benchmarks reset [--keys N]`: how long a reset takes until its replay may start.
- `python -m benchmarks commands [--rounds N]`: how long commands take at the terminal.
- `python -m benchmarks latency [--apps NAME ...] [--rounds N]`: how long a record waits until its results are committed,
  and what that costs.
- `python -m benchmarks fleet [--releases N] [--records N]`: what idle releases of one app cost.
- `python -m benchmarks executors [--executors N ...] [--records N]`: how many results a second 1, 2 and 4 executors write,
  and what their driver needs.
- `python -m benchmarks registry`: what 10,000 to 1,000,000 entries cost.
- `python -m benchmarks recovery [--rounds N]`: how long until results flow again after a driver or the broker was
  killed, and until a part that was deleted is named.
- `python -m benchmarks race [--queries NAME ...] [--records N] [--rounds N]`: queries beside Flink, Kafka Streams and
  plain Spark, on the same topics.

Figures go to standard output as JSON. Ratios compare figures of one run on one machine. Speed is measured here, never
in a test.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import commanding, executors, fleet, growth, hydrating, latency, recovering, resetting, switching
from benchmarks.command import Command, as_process
from benchmarks.race import measuring as racing
from benchmarks.race.queries import QUERIES
from orchestration.local.broker import EmbeddedBroker
from orchestration.operations.context import open_context
from pipelines.settings import Settings


def measured(opened: hydrating.Open, switchyard: Command, asked: argparse.Namespace, work: Path) -> dict[str, Any]:
    """What `python -m benchmarks` prints. `work`: a folder for what is made meanwhile."""
    match asked.what:
        case "hydrate":
            return hydrating.measure(opened, asked.records or 3_000_000, asked.density)
        case "apps":
            return hydrating.measure_apps(opened, asked.apps, asked.records or hydrating.RECORDS)
        case "switch":
            return switching.measure(opened(), switchyard, asked.keys, asked.rounds or 1)
        case "reset":
            return resetting.measure(opened(), switchyard, asked.keys)
        case "commands":
            return commanding.measure(opened(), switchyard, asked.rounds or 3)
        case "latency":
            return latency.measure(opened(), asked.rounds or 1, asked.apps or latency.APPS)
        case "fleet":
            return fleet.measure(opened(), asked.releases, asked.records or fleet.HISTORY)
        case "executors":
            return executors.measure(opened, asked.records or executors.RECORDS, asked.executors, work)
        case "registry":
            return growth.measure(opened())
        case "race":
            records, rounds = asked.records or racing.RECORDS, asked.rounds or racing.ROUNDS
            return racing.measure(opened, asked.queries, records, rounds, work)
    return recovering.measure(opened(), asked.rounds or 1)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What `arguments` ask for; None: those of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    kinds = (
        "hydrate",
        "apps",
        "switch",
        "reset",
        "commands",
        "latency",
        "fleet",
        "executors",
        "registry",
        "recovery",
        "race",
    )
    parser.add_argument("what", nargs="?", choices=kinds, default="hydrate")
    parser.add_argument("--apps", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--queries", nargs="+", default=[], choices=[*QUERIES], metavar="NAME")
    parser.add_argument("--records", type=int)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--executors", type=int, nargs="+", default=executors.EXECUTORS, metavar="N")
    parser.add_argument("--releases", type=int, default=fleet.RELEASES)
    parser.add_argument("--density", choices=("dense", "sparse"), default="dense")
    parser.add_argument("--port", type=int, default=19392)
    return parser.parse_args(arguments)


def main() -> None:
    asked = parsed()
    home = Path(tempfile.mkdtemp(prefix="switchyard-bench-"))
    settings = Settings.apart(home, broker_port=asked.port)
    broker = EmbeddedBroker(settings)
    broker.start(60)
    try:
        report = measured(
            lambda **changes: open_context(settings.model_copy(update=changes)),
            as_process(settings),
            asked,
            home / "work",
        )
        print(json.dumps(report, indent=2))
    finally:
        broker.stop(30)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
