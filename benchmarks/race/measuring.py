"""Runs queries in engines that take turns, and compares rates and results."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hydrating import Open, read
from benchmarks.race.engines import Engine, Run, engines
from benchmarks.race.inputs import load
from benchmarks.race.queries import QUERIES, Query
from benchmarks.race.results import digest
from pipelines.kafka.offsets import end_offsets

RECORDS = 15_000_000
ROUNDS = 3
OURS = "switchyard"
_POLL_S, _FAILURE_S = 0.05, 2.0
_TIMEOUT_S = 900.0


def measure(opened: Open, names: Sequence[str], records: int, rounds: int, work: Path) -> dict[str, Any]:
    """`queries`: query -> `records`, and of `engines` what `summary` returns. `names`: of the queries; all if it is empty.
    In each round, the engines take turns with a query. `work`: a folder for their files.
    """
    settings = opened().settings
    asked = [QUERIES[name] for name in names or QUERIES]
    taking_part = engines(opened, work)
    report: dict[str, Any] = {
        "rounds": rounds,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "queries": {},
    }
    for topic in dict.fromkeys(topic for query in asked for topic in (query.measured, *query.tables)):
        load(settings, topic, records)
    for query in asked:
        found: dict[str, list[dict[str, Any]]] = {}
        for number in range(1, rounds + 1):
            found.setdefault("raw", []).append(_raw(opened, query))
            for engine in taking_part:
                if engine.name not in query.without:
                    found.setdefault(engine.name, []).append(_run(opened, engine, query, number))
                    print(query.name, engine.name, found[engine.name][-1], file=sys.stderr, flush=True)
        report["queries"][query.name] = {"records": records, "engines": summary(found)}
        print(json.dumps(report["queries"][query.name], indent=1), file=sys.stderr, flush=True)
    return report


def _raw(opened: Open, query: Query) -> dict[str, Any]:
    """A consumer that only reads."""
    began = time.monotonic()
    found = sum(map(len, read(opened().settings, [query.measured])))
    seconds = time.monotonic() - began
    return {"seconds": round(seconds, 2), "records_per_s": round(found / seconds)}


def _run(opened: Open, engine: Engine, query: Query, number: int) -> dict[str, Any]:
    """One run: see `rates`, and for what its result holds `digest`. Raises RuntimeError if it fails."""
    settings = opened().settings
    ends = end_offsets(settings, [query.measured])[query.measured]
    start = engine.prepare(query, number)
    began = time.monotonic()
    run = start()
    try:
        told = list(_watch(run, ends, began, f"{query.name} in {engine.name}"))
    finally:
        run.end()
    found = {**rates(told), **digest(settings, query, run.result)}
    run.forget()
    return found


def _watch(run: Run, ends: Mapping[int, int], began: float, what: str) -> Iterable[tuple[float, int]]:
    """When, in seconds since `began`, how many records were committed: one pair for each time when it was more."""
    last, asked = 0, 0.0
    while True:
        at = ends if run.done() else run.committed()
        seconds = time.monotonic() - began
        done = sum(min(at.get(partition, 0), end) for partition, end in ends.items())
        if done > last:
            last = done
            yield seconds, done
        if done == sum(ends.values()):
            return
        # asking takes some milliseconds of a core
        if seconds > asked + _FAILURE_S:
            asked = seconds
            if (failure := run.failure()) is not None:
                raise RuntimeError(f"{what} has failed after {done:,} records: {failure}")
            if seconds > _TIMEOUT_S:
                raise RuntimeError(f"{what} has read only {done:,} records in {seconds:.0f} s")
        time.sleep(_POLL_S)


def rates(told: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """`seconds` from the start until all was committed, `first_s` until the first commit; `records_per_s` of all, and
    `warm_records_per_s` from the first commit of at least a third on; None if that was the last one.

    `told`: seconds since the start, and records committed by then; rising.
    """
    seconds, records = told[-1]
    at, before = next((s, n) for s, n in told if n >= records / 3)
    return {
        "seconds": round(seconds, 2),
        "first_s": round(told[0][0], 2),
        "records_per_s": round(records / seconds),
        "warm_records_per_s": round((records - before) / (seconds - at)) if records > before else None,
    }


def summary(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Engine -> its rates, as least, median, most; our rate divided by its rate, the median over the rounds; and whether
    each of its results is the same as ours.
    """
    report: dict[str, Any] = {}
    for engine, runs in found.items():
        report[engine] = {"runs": list(runs)}
        for rate in ("records_per_s", "warm_records_per_s", "first_s"):
            if values := [run[rate] for run in runs if run.get(rate) is not None]:
                report[engine][rate] = [min(values), statistics.median(values), max(values)]
        if engine == OURS:
            continue
        for rate, name in (("records_per_s", "ratio"), ("warm_records_per_s", "warm_ratio")):
            pairs = [(ours.get(rate), its.get(rate)) for ours, its in zip(found[OURS], runs, strict=True)]
            if ratios := [ours / its for ours, its in pairs if ours and its]:
                report[engine][name] = round(statistics.median(ratios), 2)
        if "digest" in runs[0]:
            both = zip(found[OURS], runs, strict=True)
            report[engine]["equal"] = all(
                ours["digest"] == its["digest"] and ours["rows"] == its["rows"] for ours, its in both
            )
    return report
