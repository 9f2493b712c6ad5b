"""docs/operators.md says what becomes of each operator: each of its rows is tried here, as `stage` would try it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.engine.probe import run_on_nothing
from pipelines.engine.rehearsal import Rehearsal
from pipelines.errors import SwitchyardError
from pipelines.model import AppendStream, Table
from pipelines.model.app import Result
from pipelines.testing import AppTest, apptest
from tests.engine.operators import OPERATORS, Operator
from tests.shared.session import active_in, configured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operators.md").read_text()
Row = dict[str, str]


@cache
def rows_with(column: str) -> list[Row]:
    """The rows of those tables of the page that have such a column."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *lines = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
        names = [name.strip("`") for name in head]
        if column in names:
            found += [dict(zip(names, line, strict=True)) for line in lines]
    return found


def name_of(row: Row) -> str:
    return row["operator"].replace("`", "")


WORKS, REFUSED, WARNED = rows_with("in a replay"), rows_with("refused by"), rows_with("the plan warns")


@pytest.fixture
def _rows_are_counted(spark: SparkSession) -> Iterator[None]:
    """Has Spark count the rows of its states, which drivers leave out."""
    with configured(spark, {"spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "true"}):
        yield


def refusal(spark: SparkSession, operator: Operator, result: Result) -> SwitchyardError | None:
    """What staging says of the operator's app; None: it works."""
    app = operator.app(result)
    try:
        run_on_nothing(spark, app, Rehearsal(spark, app, {}))
    except SwitchyardError as error:
        return error
    return None


def said(error: SwitchyardError | None) -> str:
    return "" if error is None else f"{error.what}; {error.fix}"


def test_each_app_has_a_row_and_each_row_an_app() -> None:
    assert sorted([*map(name_of, WORKS), *map(name_of, REFUSED)]) == sorted(OPERATORS)
    assert {name_of(row) for row in WARNED} <= {name_of(row) for row in WORKS}


@pytest.mark.parametrize("row", WORKS, ids=name_of)
def test_an_operator_works_where_the_page_says_so(spark: SparkSession, row: Row) -> None:
    operator = OPERATORS[name_of(row)]
    table = refusal(spark, operator, Table(key=operator.key))
    stream = refusal(spark, operator, AppendStream(key=operator.key))
    assert ("yes" if stream is None else "no") == row["AppendStream"], said(stream)
    if stream is not None:
        assert "Spark can run it with result=Table(...)" in stream.fix
    if row["Table"] == "yes":
        assert table is None, said(table)
    else:
        assert 'result=AppendStream(...), or Table(..., emit="final")' in said(table)
        assert row["Table"] == "final"
        assert refusal(spark, operator, Table(key=operator.key, emit="final")) is None


@pytest.mark.parametrize("row", REFUSED, ids=name_of)
def test_an_operator_is_refused_in_the_words_of_the_page(spark: SparkSession, row: Row) -> None:
    operator, before = OPERATORS[name_of(row)], active_in(spark)
    for result in (Table(key=operator.key), AppendStream(key=operator.key)):
        error = refusal(spark, operator, result)
        assert row["words"].strip('"') in said(error)
        assert row["refused by"] == ("Spark" if "AnalysisException" in said(error) else "Switchyard"), said(error)
    assert active_in(spark) <= before


@pytest.mark.parametrize("row", WORKS, ids=name_of)
def test_the_plan_warns_of_what_the_page_says_and_of_nothing_else(spark: SparkSession, row: Row) -> None:
    operator = OPERATORS[name_of(row)]
    rehearsal = Rehearsal(spark, operator.app(Table(key=operator.key)), {})
    warned = [each["the plan warns"].strip('"') for each in WARNED if name_of(each) == name_of(row)]
    found = rehearsal.notes(rehearsal.result())
    assert len(found) == len(warned), found
    assert all(words in note for words, note in zip(warned, found, strict=True)), found


# second, user, page, n, amount, price: in two partitions, each in the order of time
CLICKS = (
    (0, "ann", "home", 1, 0.1, "1.10"),
    (1, "bob", "home", 2, 0.2, "2.20"),
    (3, "ann", "cart", 3, 0.3, "3.30"),
    (4, "ann", "home", 4, 0.7, "4.40"),
    (12, "bob", "cart", 5, 0.11, "5.50"),
    (13, "bob", "cart", 6, 0.13, "6.60"),
    (21, "ann", "help", 7, 0.17, "7.70"),
    (22, "ann", "home", 8, 0.19, "8.80"),
    (38, "bob", "home", 9, 0.23, "9.90"),
    (44, "ann", "cart", 10, 0.29, "1.01"),
    (45, "ann", "cart", 11, 0.31, "1.02"),
    (58, "bob", "help", 12, 0.37, "1.03"),
)
PLANS = ((0, "ann", "free"), (3, "ann", "paid"), (10, "bob", "free"), (30, "ann", None), (50, "bob", "paid"))
LIMITS = ((1, "ann", 5), (2, "bob", 5), (40, "bob", None), (45, "bob", 7), (46, "ann", 6))
# of the static table, which is there before the first click
TITLES = (("1", "home", "Welcome"), ("2", "cart", "Your cart"))
# table -> second, user and the value of its column
ROWS = {"plans": ("plan", PLANS), "limits": ("most", LIMITS)}
Sent = tuple[float, str, dict[str, Any]]
AFTER_ALL_S = 600


def records_of(operator: Operator) -> list[Sent]:
    """Second, input and the arguments of `send`, in the order of time."""
    found: list[Sent] = []
    for name in operator.inputs:
        if name in ROWS:
            column, rows = ROWS[name]
            found += [(s, name, {"key": user, "value": value and {column: value}}) for s, user, value in rows]
            continue
        if name == "titles":
            found += [(-1, name, {"key": k, "value": {"page": page, "title": title}}) for k, page, title in TITLES]
            continue
        for number, (s, user, page, n, amount, price) in enumerate(CLICKS):
            click = {"page": page, "n": n, "amount": amount, "price": float(price)}
            later = 0.0 if name == "clicks" else 1.5
            found.append((s + later, name, {"key": user, "value": click, "partition": number % 2}))
    return sorted(found, key=lambda each: each[0])


class Seen:
    """What a consumer has after all batches: `table` of a table, `rows` of a stream, each with its source.

    `state_rows`: how many rows Spark has in its state at the end; None: it has no state.
    """

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.table: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.state_rows: int | None = None


def seen(
    spark: SparkSession, operator: Operator, result: Result, batches: int, monkeypatch: pytest.MonkeyPatch
) -> Seen:
    found, watermark_of = Seen(), apptest._watermark

    def look(query: Any) -> Any:
        states = query.lastProgress.stateOperators
        found.state_rows = sum(each.numRowsTotal for each in states) if states else None
        return watermark_of(query)

    monkeypatch.setattr(apptest, "_watermark", look)
    records = records_of(operator)
    size = math.ceil(len(records) / batches)
    with AppTest(spark, operator.app(result)) as test:
        ran = []
        for start in range(0, len(records), size):
            for time, name, record in records[start : start + size]:
                test.send(name, time=time, **record)
            ran.append(test.run())
            if len(ran) == 1 and batches > 1:
                test.restart()
        if operator.watermark is not None:
            ran.append(test.advance_watermark(AFTER_ALL_S))
        assert [batch.late for batch in ran] == [0] * len(ran)
        for batch in ran:
            found.rows.update(
                json.dumps([row, source], sort_keys=True, default=str)
                for row, source in zip(batch.rows, batch.sources, strict=True)
            )
        found.table = test.table
    monkeypatch.undo()
    return found


def result_for(row: Row, key: tuple[str, ...]) -> Result:
    takes_care = row["in a replay"] == "yours" and row["Table"] == "yes"
    if row["AppendStream"] == "yes" and not takes_care:
        return AppendStream(key=key)
    return Table(key=key, emit="final" if row["Table"] == "final" else "update")


@pytest.mark.usefixtures("_rows_are_counted")
@pytest.mark.parametrize("row", WORKS, ids=name_of)
def test_a_replay_in_other_batches_gives_what_the_page_says(
    spark: SparkSession, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = OPERATORS[name_of(row)]
    result = result_for(row, operator.key)
    once, often = (seen(spark, operator, result, batches, monkeypatch) for batches in (1, 3))
    assert once.rows and often.rows
    same = once.table == often.table if isinstance(result, Table) else once.rows == often.rows
    match row["in a replay"]:
        case "same" | "yours":
            assert same, (once.table or once.rows, often.table or often.rows)
        case "digits":
            assert once.table.keys() == often.table.keys()
            for key, values in once.table.items():
                assert values["it"] == pytest.approx(often.table[key]["it"], rel=1e-12)
        case other:
            assert (other, same) == ("no", False)
    match row["state"]:
        case "none":
            assert (once.state_rows, often.state_rows) == (None, None)
        case "watermark":
            assert (once.state_rows, often.state_rows) == (0, 0)
        case other:
            assert other in ("for good", "yours")
            # with timers, Spark's count falls below the rows that are kept
            if name_of(row) != "as_of":
                assert once.state_rows and often.state_rows
