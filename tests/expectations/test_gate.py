"""run_gate on a real topic: what lies in the range counts, and nothing else does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
from great_expectations.expectations import Expectation, ExpectTableRowCountToBeBetween
from pyspark.sql import SparkSession

from expectations.gate import check_rows, run_gate
from expectations.suites import Check
from pipelines.errors import BadUsage
from pipelines.settings import Settings
from tests.conftest import FreshTopic
from tests.expectations.tables import LARGE_ORDERS_DDL, STOCK_STATS, WORD_COUNT_DDL, Row, request
from tests.shared.transactions import transactional


class Written:
    """A transactional writer of result records that tells where they are."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._producer = transactional(settings, f"{topic}-writer", topic)
        self.ends: dict[int, int] = {}

    def transaction(
        self, *records: tuple[int, dict[str, Any], dict[str, Any] | None, str | None], commit: bool
    ) -> None:
        """Writes (partition, key, value, source) records and commits or aborts them."""

        def delivered(error: Any, message: Any) -> None:
            assert error is None
            self.ends[message.partition()] = message.offset() + 1

        self._producer.begin_transaction()
        for partition, key, value, source in records:
            self._producer.produce(
                self._topic,
                key=json.dumps(key),
                value=None if value is None else json.dumps(value),
                partition=partition,
                headers=[("source", source)] if source else [],
                on_delivery=delivered,
            )
        self._producer.flush(10)
        if commit:
            self._producer.commit_transaction(10)
        else:
            self._producer.abort_transaction(10)


def record(row: Row, **changes: Any) -> tuple[int, dict[str, Any], dict[str, Any], None]:
    ticker, window_start, lowest, trades, average = row
    value = {"lowest_ask": float(lowest), "trades": trades, "average_ask": float(average), **changes}
    return (0 if ticker == "AAPL" else 1, {"ticker": ticker, "window_start": window_start}, value, None)


@pytest.mark.spark
@pytest.mark.broker
def test_a_table_is_judged_by_its_last_committed_values_in_the_range(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    topic = fresh_topic(2, cleanup_policy="compact")
    written = Written(broker, topic)
    stray_key = {"ticker": "AAPL", "window_start": "2013-03-01T14:31:00Z"}
    stray_value = {"lowest_ask": -1.0, "trades": 0, "average_ask": -2.0}
    # first values that were wrong, and a key that goes again
    written.transaction(*[record(row, lowest_ask=99.0) for row in STOCK_STATS], commit=True)
    written.transaction((0, stray_key, stray_value, None), commit=True)
    written.transaction(*[record(row) for row in STOCK_STATS], commit=True)
    written.transaction((0, stray_key, None, None), commit=True)
    written.transaction(*[record(row, trades=-5) for row in STOCK_STATS], commit=False)
    good = dict(written.ends)
    written.transaction(record(STOCK_STATS[-1], lowest_ask=0.0), commit=True)

    asked = request(
        tmp_path, topic=topic, end=good, settings=broker, app_settings={"window_s": 5, "advance_s": 1}, live_rows=18
    )
    verdict = run_gate(spark, asked)
    assert verdict.failures == ()
    assert (verdict.ok, verdict.rows, verdict.skipped) == (True, len(STOCK_STATS), 0)
    assert verdict.docs is not None and verdict.docs.is_file()

    beyond = run_gate(spark, request(tmp_path, topic=topic, end=written.ends, settings=broker))
    assert [r.name for r in beyond.results if r.outcome == "failed"] == ["lowest_ask in range"]
    (failed,) = beyond.failures
    assert '1 rows against it, such as {"ticker":"MSFT"' in failed and '"lowest_ask":0.00' in failed

    # the docs keep both, and call nobody
    pages = list((tmp_path / "validations").rglob("*.html"))
    assert {verdict.docs, beyond.docs} == set(pages)
    index = (tmp_path / "index.html").read_text()
    assert all(page.name in index for page in pages)
    assert "great-expectations-web-assets" not in index + pages[0].read_text()


@pytest.mark.spark
@pytest.mark.broker
def test_a_stream_is_judged_by_every_record_and_its_source(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    topic = fresh_topic()
    written = Written(broker, topic)
    value = {"order_id": "o1", "sales_person": "ann", "amount": 10000.01, "ordered_at": "2024-01-01T00:00:00.000Z"}
    written.transaction(
        (0, {"customer": "c"}, value, "orders:0:1"), (0, {"customer": "c"}, value, "orders:1:1"), commit=True
    )
    changes: dict[str, Any] = {"key": ("customer",), "schema_ddl": LARGE_ORDERS_DDL, "table": False, "settings": broker}
    once = run_gate(spark, request(tmp_path, "large_orders", topic=topic, end=dict(written.ends), **changes))
    assert (once.failures, once.rows) == ((), 2)

    written.transaction((0, {"customer": "c"}, value, "orders:1:1"), commit=True)
    twice = run_gate(spark, request(tmp_path, "large_orders", topic=topic, end=dict(written.ends), **changes))
    assert [r.name for r in twice.results if r.outcome == "failed"] == ["each order once"]

    written.transaction((0, {"customer": "c"}, value, None), commit=True)
    start = {0: written.ends[0] - 1}
    unknown = run_gate(spark, request(tmp_path, "large_orders", topic=topic, start=start, end=written.ends, **changes))
    assert {r.name for r in unknown.results if r.outcome == "failed"} == {
        "topic not null",
        "partition not null",
        "offset not null",
    }


@pytest.mark.spark
@pytest.mark.broker
def test_a_key_in_two_partitions_and_a_value_that_does_not_parse_are_found(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    topic = fresh_topic(2)
    written = Written(broker, topic)
    written.transaction(
        (0, {"word": "a"}, {"count": 1}, None),
        (1, {"word": "a"}, {"count": 2}, None),
        (1, {"word": "b"}, {"count": "many"}, None),
        commit=True,
    )
    verdict = run_gate(
        spark,
        request(tmp_path, "word_count", topic=topic, end=written.ends, key=("word",), schema_ddl=WORD_COUNT_DDL,
                settings=broker),
    )  # fmt: skip
    assert {r.name for r in verdict.results if r.outcome == "failed"} == {"key unique", "count not null"}


@pytest.mark.spark
@pytest.mark.broker
def test_an_empty_result_is_refused(
    spark: SparkSession, broker: Settings, fresh_topic: FreshTopic, tmp_path: Path
) -> None:
    verdict = run_gate(spark, request(tmp_path, topic=fresh_topic(2), end={0: 0, 1: 0}, settings=broker))
    assert not verdict.ok
    assert verdict.failures == ("not empty: expected at least one row; found 0",)


class ExpectRowsAndLookAround(ExpectTableRowCountToBeBetween):
    """As an app's own suite may define it."""

    seen: ClassVar[list[str | None]] = []

    def _validate(self, *args: Any, **more: Any) -> Any:
        self.seen.append(os.environ.get("AWS_SECRET_ACCESS_KEY"))
        return super()._validate(*args, **more)


@pytest.mark.spark
def test_an_author_s_expectation_does_not_see_the_operator_s_secrets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    seen = ExpectRowsAndLookAround.seen
    seen.clear()

    def expectation() -> Expectation:
        seen.append(os.environ.get("AWS_SECRET_ACCESS_KEY"))
        return ExpectRowsAndLookAround(min_value=1)

    checks = [Check(name="rows", detail="there are some", expectation=expectation)]
    frame = spark.createDataFrame([("a", 1)], "word string, count bigint").coalesce(1)
    verdict = check_rows(frame, checks, request(tmp_path))
    # where it is made, and where it runs
    assert seen == [None, None] and verdict.ok
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "planted"


def test_an_unknown_suite_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="no suite 'stocks'"):
        run_gate(None, request(tmp_path, "stocks"))  # type: ignore[arg-type]
