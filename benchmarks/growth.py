"""What a registry of many entries costs: `status`, a follower's start, `log`, and the memory that they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.context import Context
from pipelines.kafka.client import await_connection, producer
from pipelines.kafka.clock import now_ms
from pipelines.kafka.offsets import end_of
from pipelines.kafka.topics import PROGRESS, RESULT_TABLE, ensure_topic
from pipelines.model.entries import (
    Carried,
    Closed,
    Entry,
    EvidenceRecorded,
    GenerationStarted,
    Holder,
    InputSpec,
    Opened,
    Promoted,
    ReleaseSpec,
    Staged,
    StateSet,
    Switch,
    encode,
)
from pipelines.model.names import REGISTRY_TOPIC, progress_topic, release_name, result_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.settings import Settings

APPS = 25
SIZES = (10_000, 100_000, 1_000_000)
ROUNDS = 5
# bytes of an operation's plan, and of the samples that a comparison found, as those of the demo are
PLAN_BYTES, SAMPLE_BYTES = 1_500, 700
_NUMBER = b"NNNNNNNN"


def measure(context: Context, sizes: Iterable[int] = SIZES, rounds: int = ROUNDS) -> dict[str, Any]:
    """For each size in entries: seconds, seconds of a processor, and the most memory that the process had.

    `first`: a process that reads the whole log, as there is no snapshot that it could begin with, and writes one. `status`,
    `follower`: the median of `rounds` processes after that, the least and the most; the follower's until its first record is
    there. `python_s`: what of them a process takes that only imports. `log`: all entries, counted.
    """
    settings = context.settings
    apps = [f"app-{number}" for number in range(APPS)]
    context.registry.step(lambda _: [entry for app in apps for entry in _live(app)])
    _first_result(settings, apps[0])
    cycles = _cycles(apps)
    report: dict[str, Any] = {
        "cores": os.cpu_count(),
        "python_s": _median([_run(settings, _IMPORT) for _ in range(rounds)]),
    }
    for size in sizes:
        _fill(settings, cycles, size)
        report[f"{size:,} entries"] = {
            "first": _run(settings, _STATE),
            "status": _median([_run(settings, _STATUS) for _ in range(rounds)]),
            "follower": _median([_run(settings, _FOLLOW.format(app=apps[0])) for _ in range(rounds)]),
            "log": _run(settings, _LOG),
        }
        print(json.dumps(report, indent=2), file=sys.stderr, flush=True)
    return report


# each prints last how much it found, or how many seconds it took without the start of Python
_IMPORT = "from orchestration import cli; import orchestration.operations.supervising.overview"
_STATE = "from pipelines.kafka.registry import Registry; print(len(Registry().state().releases))"
_STATUS = "from orchestration import cli; raise SystemExit(cli.run(['status']))"
_LOG = "from pipelines.kafka.registry import Registry; print(sum(1 for _ in Registry().history()))"
_FOLLOW = """
import time
from pipelines.follow import LiveConsumer
began = time.monotonic()
with LiveConsumer("{app}", group="bench-" + str(time.time_ns())) as consumer:
    while consumer.poll(0.01) is None:
        if time.monotonic() - began > 300:
            raise SystemExit("no record within 300 s")
    print(round(time.monotonic() - began, 2))
"""


def _run(settings: Settings, code: str) -> dict[str, Any]:
    """Runs `code` in a process. Returns how long it took, and its last line."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=settings.child_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read().split("\n")
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode} of: {code}")
    seconds = round(time.monotonic() - began, 2)
    cpu_s = round(used.ru_utime + used.ru_stime, 2)
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "resident_mb": round(used.ru_maxrss / 1024),
        "said": said[-2] if len(said) > 1 else "",
    }


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    ordered = sorted(runs, key=lambda run: run["seconds"])
    middle = ordered[len(ordered) // 2]
    return {**middle, "least_s": ordered[0]["seconds"], "most_s": ordered[-1]["seconds"]}


def _live(app: str) -> list[Entry]:
    """A live release and its standby, as they are entered."""
    entries: list[Entry] = []
    for version in (1, 2):
        name = release_name(app, version)
        spec = ReleaseSpec(
            release=name, app=app, version=version, module="bench", code_digest="0" * 64, settings={},
            inputs={"in": InputSpec(topic="in", partitions=1)}, table=True, key=("k",), partitions=1,
            schema_ddl="`k` string", suite=None, watermark=None, comparable="exact", change="first",
        )  # fmt: skip
        start = SourcePosition(sources={"in": {0: 0}})
        entries += [Staged(spec=spec), GenerationStarted(release=name, generation=1, start=start)]
        entries.append(StateSet(release=name, state="live" if version == 1 else "standby"))
    first = ResultPosition(topics={result_topic(release_name(app, 1), 1): {0: 0}})
    switch = Switch(number=1, old=None, old_generation=None, old_end=None, new=release_name(app, 1), new_generation=1,
                    new_start=first)  # fmt: skip
    return [*entries, Promoted(alias=app, switch=switch)]


def _first_result(settings: Settings, app: str) -> None:
    """A batch of one record, as a driver commits it."""
    name = release_name(app, 1)
    topic = result_topic(name, 1)
    ensure_topic(settings, topic, 1, RESULT_TABLE)
    ensure_topic(settings, progress_topic(name), 1, PROGRESS)
    client = producer(settings, transactional_id=name)
    await_connection(client, topic)
    client.init_transactions(60)
    client.begin_transaction()
    client.produce(topic, "{}", "k", partition=0)
    client.flush(60)
    result = ResultPosition(topics={topic: end_of(settings, topic, 1, committed=False)})
    boundary = Boundary(batch_id=0, position=SourcePosition(sources={"in": {0: 1}}))
    progress = Progress(release=name, generation=1, token=1, boundary=boundary, result=result, at_ms=now_ms())
    client.produce(progress_topic(name), progress.model_dump_json(exclude_none=True), "0", partition=0)
    client.commit_transaction(60)


def _cycles(apps: list[str]) -> Iterator[bytes]:
    """Entries without end: comparisons of one app after another, as a schedule makes them."""
    holder = Holder(host="bench", boot_id="0", pid=1, started=1)
    nowhere, start = ResultPosition(topics={}), SourcePosition(sources={"in": {0: 0}})
    found = Comparison(only_live=0, only_new=0, changed=1, identical=99, samples=({"key": "x" * SAMPLE_BYTES},))
    made: list[bytes] = []
    for app in apps:
        old, new = release_name(app, 1), release_name(app, 2)
        op = f"diff-{_NUMBER.decode()}"
        entries: list[Entry] = [
            Opened(id=op, name="diff", releases=(old, new), deadline_ms=0, plan={"facts": {"asked": "x" * PLAN_BYTES}}),
            Carried(id=op, holder=holder),
            EvidenceRecorded(id=op, live=old, live_generation=1, new=new, new_generation=1, cut=start, live_result=nowhere,
                             new_result=nowhere, summary=found.as_json()),
            Closed(id=op, outcome="done"),
        ]  # fmt: skip
        common = {"at_ms": now_ms(), "actor": "bench", "op": op, "reason": "as scheduled"}
        made += [encode(entry.model_copy(update=common)) for entry in entries]
    for turn in count():
        for number, value in enumerate(made):
            yield value.replace(_NUMBER, b"%08d" % (turn * APPS + number // 4))


def _fill(settings: Settings, cycles: Iterator[bytes], size: int) -> None:
    """Writes entries until the log has `size` of them, some thousand in a transaction."""
    client = producer(settings, transactional_id=REGISTRY_TOPIC)
    await_connection(client, REGISTRY_TOPIC)
    client.init_transactions(60)
    left = size - end_of(settings, REGISTRY_TOPIC, 1)[0]
    while left > 0:
        client.begin_transaction()
        for _, value in zip(range(min(left, 4_000)), cycles, strict=False):
            client.produce(REGISTRY_TOPIC, value, partition=0)
        client.commit_transaction(60)
        left -= 4_000
