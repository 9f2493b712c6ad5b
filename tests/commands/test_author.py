"""`switchyard try`: what an app makes of some rows, without a broker."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration import cli
from orchestration.commands.author import _read, _show
from pipelines.errors import BadUsage
from tests.shared.threads import trials_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = """\
{"key": "IBM", "value": {"side": "ask", "price": 10.5}, "time": "2026-01-01T12:00:07Z"}
{"key": "IBM", "value": {"side": "ask"}, "time": "2026-01-01T12:00:07Z"}

{"watermark": "2026-01-01T12:01:00Z"}
{"input": "trades", "key": "IBM", "value": {"side": "ask", "price": 9}, "time": "2026-01-01T12:00:07Z"}
"""
FAILING = """\
from pyspark.sql import functions as F

from pipelines.model import AppendStream, Json, Stream, app


def price_of(text):
    return float(text)


@app(name="prices", inputs={"given": Stream(topic="given", value=Json("id string, price string"))},
     result=AppendStream(key=("id",)))
def prices(given, settings):
    return given.select("id", F.udf(price_of, "double")("price").alias("price"))
"""

NAMED = (
    FAILING.replace("Stream, app", "StaticTable, Stream, Text, app")
    .replace(
        'inputs={"given"', 'inputs={"names": StaticTable(topic="names", key="id string", value=Text("name")), "given"'
    )
    .replace("prices(given, ", "prices(given, names, ")
    .replace(
        """"double")("price").alias("price"))""", """"double")("price").alias("price")).join(names, "id", "left")"""
    )
)


def switchyard(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["switchyard", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_the_apps_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert switchyard(monkeypatch, "apps", "--json") == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["stock-stats"] == {
        "name": "stock-stats",
        "shows": "window",
        "inputs": ["trades"],
        "result": "table by ticker, window_start",
        "watermark": "10 seconds",
        "results": {"": "table by ticker, window_start"},
        "suites": {"": "stock_stats"},
        "settings": {"window_s": 5, "advance_s": 1},
        "does": "Per ticker and window of `window_s`, advancing by `advance_s`: over its asks, bids left out.",
    }
    assert switchyard(monkeypatch, "apps") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in found)


def test_a_dead_letter_is_shown_with_the_record_that_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    large = {"topic": "app.v1.g1", "partition": None, "offset": None, "reason": "too large"}
    letters = [
        {"topic": "trades", "partition": 0, "offset": 7, "reason": "the value is null"},
        {**large, "source": "trades:0:8"},
        large,
    ]
    _show({"rows": [], "dead_letters": letters, "late": 0, "watermark": None}, None)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [each for each in cells if each] == [
        ["trades[0] offset 7", "the value is null"],
        ["row for app.v1.g1 from trades:0:8", "too large"],
        ["row for app.v1.g1", "too large"],
    ]


@pytest.mark.spark
def test_an_app_is_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "prices.py").write_text(NAMED)
    with trials_in(spark):
        assert switchyard(monkeypatch, "show", "prices", "--from", str(tmp_path)) == 0
        shown = capsys.readouterr().out
        assert switchyard(monkeypatch, "show", "stock-stats", "--set", "window_s=10", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert switchyard(monkeypatch, "show", "prices") == 2
        assert "no app prices in " in capsys.readouterr().err
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert lines == [
        "app prices",
        "input given topic given: id string, price string",
        "input names static table, topic names: id string, name string",
        "result stream by id, 4 partitions: id string, price double, name string",
        "watermark none",
        "suite none: nothing checks the result",
        "settings none",
        "steps, the last one first",
        "left outer join on id = id",
        "input given",
        "input names",
    ]
    assert (found["settings"]["window_s"], found["watermark"]) == (10, "10 seconds")
    assert found["results"][""]["key"] == ["ticker", "window_start"]
    assert found["columns"] == {"trades": ["ticker string", "side string", "price decimal(8,2)"]}
    assert found["topology"][0] == {"depth": 0, "does": "aggregate by ticker, window", "state": True}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_rows_go_through_an_app_s_frozen_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "rows.jsonl"
    file.write_text(ROWS)
    options = ("--rows", str(file), "--set", "advance_s=5", "--json")
    assert switchyard(monkeypatch, "try", "stock-stats", *options) == 0
    first, second = json.loads(capsys.readouterr().out)
    row = {
        "ticker": "IBM",
        "window_start": "2026-01-01T12:00:05Z",
        "lowest_ask": 10.5,
        "trades": 1,
        "average_ask": 10.5,
    }
    assert first["rows"] == [row]
    assert first["dead_letters"] == [
        {"topic": "trades", "partition": 0, "offset": 1, "reason": "field price is missing"}
    ]
    # the watermark has passed the window
    assert (second["rows"], second["late"]) == ([], 1)
    assert second["watermark"] == "2026-01-01T12:01:00+00:00"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_where_a_function_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_prices.py").write_text(FAILING)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"value": {"id": "a", "price": "much"}}\n')
    assert switchyard(monkeypatch, "try", "prices", "--from", str(tmp_path / "code"), "--rows", str(file)) == 1
    said = capsys.readouterr().err
    first = said.removeprefix("  starting Spark to try the app\n")
    assert first.startswith("error: my_prices.py, line 7, in price_of: ValueError: could not convert string"), said


def test_a_blank_line_begins_the_next_batch(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\n{"value": 1}\n{"value": 2}\n\n\n{"value": 3}\n')
    assert _read(file) == [[{"value": 1}, {"value": 2}], [{"value": 3}]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "can't be read: No such file"),
        (b"\xff", "can't be read: it is not UTF-8"),
        (b"\n\n", "has no record"),
        (b'{"value": 1}\n{"value": \n', "line 2 is not JSON"),
    ],
)
def test_a_file_that_has_no_rows_is_refused(tmp_path: Path, text: bytes | None, said: str) -> None:
    file = tmp_path / "rows.jsonl"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(BadUsage, match=said):
        _read(file)
