"""Golden test of log-router: logs in, two streams out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.log_router import log_router
from pipelines.model import App
from pipelines.testing import AppTest, Batch
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(reads="captcha", at_least=250)

AT = "2026-01-01T12:00:00.250Z"
WHOLE: dict[str, Any] = {
    "level": "ERROR", "logger_name": "db", "message": "gone", "appName": "shop", "thread": "t-1", "timestamp": AT,
    "context": {"table": "orders", "rows": None},
}  # fmt: skip
LOGS: list[Any] = [
    WHOLE,
    {"level": "WARN", "logger_name": "http", "message": "slow"},  # all else may be missing
    {**WHOLE, "level": "error", "context": {}},  # no such level
    {**WHOLE, "level": "FATAL"},
]
BAD: list[tuple[Any, str]] = [
    (b"{", "the value is not JSON: Expecting property name enclosed in double quotes at character 1"),
    (None, "the value is null"),
    (b"\xff", "the value is not UTF-8"),
    ({"level": "ERROR"}, "field logger_name is missing"),
    ({**WHOLE, "level": None}, "field level is missing"),
    ({**WHOLE, "context": 5}, "field context is not an object"),
]
NOTHING = dict.fromkeys(("app_name", "thread", "timestamp", "context"))
OF_SHOP = {
    "logger_name": "db", "message": "gone", "app_name": "shop", "thread": "t-1", "timestamp": AT,
    "context": {"table": "orders", "rows": None},
}  # fmt: skip
EXPECTED: dict[str, list[dict[str, Any]]] = {
    "high-priority": [{"level": "ERROR", **OF_SHOP}],
    "low-priority": [
        {"level": "WARN", "logger_name": "http", "message": "slow", **NOTHING},
        {"level": "error", **OF_SHOP, "context": {}},
        {"level": "FATAL", **OF_SHOP},
    ],
}


def run(spark: SparkSession, app: App) -> Batch:
    with AppTest(spark, app) as test:
        for log in LOGS:
            test.send("logs", log)
        for bad, _ in BAD:
            test.send("logs", bad)
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z"):
            test.send("logs", {**WHOLE, "message": "of another time"}, time=time)
        test.send("logs", {**WHOLE, "message": "x" * 2_000_000})
        return test.run()


def found(batch: Batch) -> dict[str, list[Any]]:
    """The rows of each result, without the two of another time."""
    return {name: [row for row in batch[name] if len(row["message"]) < 10] for name in EXPECTED}


def test_golden_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    batch = run(spark, log_router)
    assert found(batch) == EXPECTED
    assert len(batch["high-priority"]) == 3 and batch.late == 0
    *malformed, large = batch.dead_letters
    assert [(letter.offset, letter.reason) for letter in malformed] == [
        (4 + number, reason) for number, (_, reason) in enumerate(BAD)
    ]
    assert (large.topic, large.headers["source"]) == ("log-router.v1.g1.high-priority", b"logs:0:12")
    assert "too large" in large.reason
    assert batch.sources[0] == "logs:0:0"


def test_a_log_that_comes_twice_is_routed_twice_each_with_its_own_source(spark: SparkSession) -> None:
    with AppTest(spark, log_router) as test:
        for log in (WHOLE, WHOLE, LOGS[1]):
            test.send("logs", log)
        first = test.run()
        test.send("logs", WHOLE)
        second = test.run()
    assert first["high-priority"] == 2 * EXPECTED["high-priority"] and len(first["low-priority"]) == 1
    assert second["high-priority"] == EXPECTED["high-priority"]
    high = [s for s, name in zip(first.sources, first.names, strict=True) if name == "high-priority"]
    assert [*high, *second.sources] == ["logs:0:0", "logs:0:1", "logs:0:3"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('F.col("level") == "ERROR"', 'F.upper("level") == "ERROR"'),
        ('F.col("level") == "ERROR"', 'F.col("level").isin("ERROR", "FATAL")'),
        ('F.when(~high, event).alias("low-priority")', 'event.alias("low-priority")'),
        ('F.col("appName").alias("app_name")', 'F.col("thread").alias("app_name")'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(run(spark, mutant(log_router, there, instead))) != EXPECTED
