"""What the race says of its runs, from hand-made ones: rates, ratios, whether results are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.race import flink
from benchmarks.race.measuring import rates, summary
from benchmarks.race.plain_spark import app_of, committed
from benchmarks.race.queries import FILTER, QUERIES, WINDOWS, Query
from benchmarks.race.results import frame, hashes, same
from pipelines.model.app import Changelog


def test_a_warm_rate_begins_at_the_first_commit_of_a_third() -> None:
    assert rates([(4.0, 20), (5.0, 40), (10.0, 90)]) == {
        "seconds": 10.0, "first_s": 4.0, "records_per_s": 9, "warm_records_per_s": 10
    }  # fmt: skip
    # all in one commit
    assert rates([(10.0, 90)])["warm_records_per_s"] is None


def run(rate: int, digest: str = "a", warm: int | None = None) -> dict[str, Any]:
    return {"records_per_s": rate, "warm_records_per_s": warm, "first_s": 1.0, "rows": 5, "digest": digest, "sum": 1.5}


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    found = summary(
        {
            "raw": [{"records_per_s": 100}, {"records_per_s": 100}, {"records_per_s": 200}],
            "switchyard": [run(40), run(50, warm=80), run(90)],
            "flink": [run(20), run(50, warm=100), run(30)],
        }
    )
    assert found["raw"]["ratio"] == 0.45
    assert found["flink"]["records_per_s"] == [20, 30, 50]
    assert (found["flink"]["ratio"], found["flink"]["warm_ratio"]) == (2.0, 0.8)
    assert "ratio" not in found["switchyard"]


@pytest.mark.parametrize(("theirs", "equal"), [("aa", True), ("ab", False)])
def test_results_are_equal_if_they_are_in_each_round(theirs: str, equal: bool) -> None:
    found = summary({"switchyard": [run(1), run(1)], "flink": [run(1, digest) for digest in theirs]})
    assert found["flink"]["equal"] is equal


def total(query: Query, *records: tuple[bytes, bytes]) -> int:
    return sum(hashes(query, frame(query, records)).tolist())


def test_rows_are_the_same_in_any_order_and_writing() -> None:
    one = (b'{"ticker":"A"}', b'{"side":"ask","price":12.50,"size":1}')
    other = (b'{"ticker":"B"}', b'{"side":"bid","price":3,"size":2}')
    as_well = (b'{"ticker":"A"}', b'{"price":12.5,"size":1, "side":"ask"}')
    assert total(FILTER, one, other) == total(FILTER, other, as_well)
    assert total(FILTER, one, other) != total(FILTER, one, one)
    assert total(FILTER, one) != total(FILTER, (b'{"ticker":"B"}', one[1]))
    assert total(FILTER) == 0


def test_a_rounded_number_may_differ_in_its_last_digit() -> None:
    key = b'{"ticker":"A","window_start":"2013"}'
    one, other = (
        (key, b'{"lowest_ask":1.0,"trades":2,"average_ask":%b}' % average) for average in (b"42.099312", b"42.099313")
    )
    assert total(WINDOWS, one) == total(WINDOWS, other)
    ours = {"digest": "a", "rows": 10, "sum": 42.0}
    assert same(ours, {**ours, "sum": 42.000005})
    assert not same(ours, {**ours, "sum": 42.0001})
    assert not same(ours, {**ours, "rows": 11})


def test_the_last_visits_are_no_rows() -> None:
    count = QUERIES["count"]
    rows = frame(count, [(b'{"member":"%b"}' % name, b'{"visits":1,"page":2}') for name in (b"last-0", b"member-1")])
    assert rows["member"].tolist() == ["member-1"]


def test_a_field_of_another_name_is_no_row() -> None:
    with pytest.raises(ValueError, match="unexpected field"):
        total(FILTER, (b'{"ticker":"A"}', b'{"side":"ask","price":12.50,"sise":1}'))


def test_plain_spark_has_committed_what_its_last_batch_planned(tmp_path: Path) -> None:
    assert committed(tmp_path) == {}
    for folder, number, text in [
        ("offsets", 9, 'v1\n{"batchWatermarkMs":0}\n{"trades":{"0":5,"1":7}}'),
        ("offsets", 10, 'v1\n{"batchWatermarkMs":0}\n{"trades":{"0":8,"1":7}}'),
        ("commits", 9, "v1\n{}"),
    ]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / str(number)).write_text(text)
    assert committed(tmp_path) == {0: 5, 1: 7}
    (tmp_path / "commits/10").write_text("v1\n{}")
    (tmp_path / "commits/.10.crc").write_text("")
    assert committed(tmp_path) == {0: 8, 1: 7}


@pytest.mark.parametrize("query", QUERIES.values(), ids=lambda query: query.name)
def test_a_query_is_what_its_app_is(query: Query) -> None:
    app = app_of(query)
    assert app.name == query.app
    assert {each.topic for each in app.inputs.values()} == {query.measured, *query.tables}
    assert {each.topic for each in app.inputs.values() if isinstance(each, Changelog)} == set(query.tables)
    [result] = app.results.values()
    assert tuple(result.key) == tuple(query.key)
    assert (type(result).__name__ == "Table") is query.table


def test_flink_writes_tables_by_key_and_windows_once() -> None:
    says = flink.statements(WINDOWS, "host:1", "run", "out").split("\n\n")
    assert [each.split("(")[0].strip() for each in says] == [
        "CREATE TABLE trades", "CREATE TABLE rows_out", "CREATE VIEW asks AS SELECT * FROM trades WHERE `side` = 'ask'",
        "INSERT INTO rows_out SELECT `ticker`, DATE_FORMAT",
    ]  # fmt: skip
    assert "'upsert-kafka'" not in says[1]
    assert "'exactly-once'" in says[1]
    assert "'upsert-kafka'" in flink.statements(QUERIES["count"], "host:1", "run", "out").split("\n\n")[1]


def test_a_report_names_each_engine_and_its_ratio(tmp_path: Path) -> None:
    from benchmarks.race.report import chart, table

    found = {
        "raw": [run(100)], "switchyard": [run(40, warm=50)], "flink": [run(20, warm=20)], "spark": [run(10, "b")],
    }  # fmt: skip
    report = {"queries": {"windows": {"records": 1_500_000, "engines": summary(found)}}}
    lines = table(json.loads(json.dumps(report)))
    assert any("Flink" in line and "2.0" in line and "`windows`, 1.5M" in line for line in lines)
    assert any("plain Spark" in line and "differ" in line for line in lines)
    chart(report, tmp_path / "race.png")
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")
