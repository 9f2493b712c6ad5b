"""What a rate of hydration is, and which kind of app has it, by hand-made records and checkpoints."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

import pytest

from benchmarks.hydrating import KEYS, cpu_s, kind_of, measure_apps, operators, rate, sources_of
from orchestration.sources import Options, app_names, sources_for
from pipelines.errors import BadUsage
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Counts, Progress


def at(offset: int) -> SourcePosition:
    return SourcePosition(sources={"in": {0: offset}})


def batch(number: int, *, rows_in: int, at_ms: int) -> Progress:
    """The record of a batch that ends at `rows_in` records, and has written half as many."""
    return Progress(
        release="sums.v1",
        generation=1,
        token=1,
        boundary=Boundary(batch_id=number, position=at(rows_in)),
        result=ResultPosition(topics={}),
        total=Counts(rows_in=rows_in, rows_out=rows_in // 2),
        at_ms=at_ms,
    )


def test_a_rate_is_that_of_the_last_two_thirds() -> None:
    history = [
        batch(0, rows_in=20, at_ms=1_000),
        batch(1, rows_in=30, at_ms=9_000),
        batch(2, rows_in=60, at_ms=10_000),
        batch(3, rows_in=90, at_ms=13_000),
        # without input, as when a watermark goes on
        batch(4, rows_in=90, at_ms=99_000),
    ]
    found = rate(history, at(90), {0: 1.0, 1: 8.5, 3: 15.0})
    assert found == {
        "records": 60, "seconds": 4.0, "records_per_s": 15, "batches": 2, "results": 30, "cpu_s": 6.5, "records_per_cpu_s": 9
    }  # fmt: skip
    # no heartbeat came at the end of the last batch
    assert rate(history, at(90), {1: 8.5})["cpu_s"] is None


def test_the_kind_is_that_of_the_operators_in_the_checkpoint(tmp_path: Path) -> None:
    def keeps(number: int, name: str, operator: str) -> None:
        path = tmp_path / "g1-t3/state" / str(number) / "_metadata" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'v1\n{{"operatorInfo":{{"operatorId":{number},"operatorName":"{operator}"}}}}')

    assert kind_of(operators(tmp_path)) == "sql"
    keeps(0, "metadata", "stateStoreSave")
    keeps(1, "v2/0", "transformWithStateExec")
    assert operators(tmp_path) == {"stateStoreSave", "transformWithStateExec"}
    assert kind_of(operators(tmp_path)) == "sql"
    keeps(2, "v2/0", "transformWithStateInPandasExec")
    assert kind_of(operators(tmp_path)) == "python state"


@pytest.mark.parametrize("app", app_names())
def test_each_app_has_sources_with_as_many_keys_as_they_let_one_choose(app: str) -> None:
    sources = sources_of(app, 600_000)
    assert [source.topic for source in sources] == [source.topic for source in sources_for(app, Options())]
    keys = {getattr(source, "number_of_keys", None) for source in sources}
    if app in ("captcha", "product-views", "search-results"):
        assert keys == {KEYS}


def test_an_unknown_app_is_named() -> None:
    with pytest.raises(BadUsage, match="stock-market"):
        measure_apps(lambda: pytest.fail("nothing is asked of a cluster"), ["stock-market"], 10)


def test_cpu_time_is_that_of_a_session() -> None:
    session = os.getsid(0)
    before, until = cpu_s(session), time.process_time() + 0.2
    while time.process_time() < until:
        pass
    assert cpu_s(session) - before >= 0.1


@pytest.mark.slow
def test_the_days_of_top_stocks_are_not_in_the_future() -> None:
    records = 60_000
    [source] = sources_of("top-stocks", records)
    last = list(islice(chain.from_iterable(source.blocks(None)), records))[-1]
    assert datetime.fromtimestamp(last[2] / 1000, UTC).year < 2024
