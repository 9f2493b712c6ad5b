"""Golden test of product-views: views in, counts and alerts out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.product_views import product_views
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest
from tests.apps.lives import Life
from tests.apps.memory import Memory
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIFE = Life(records=4_000, at_least=100)

# views of each product per batch, and after each the counts that are told and who is told; the limit is 3
BATCHES: list[tuple[dict[str, int], dict[str, int], list[str]]] = [
    ({"a": 2, "b": 1}, {"a": 2, "b": 1}, []),
    ({"a": 1, "b": 5, "c": 3}, {"a": 3, "b": 6, "c": 3}, ["a", "b", "c"]),  # exactly at the limit, past it, and at once
    ({"a": 1, "b": 1}, {"a": 4, "b": 7}, []),  # once in its life
]


@pytest.mark.spark
def test_golden(spark: SparkSession) -> None:
    found = []
    with AppTest(spark, product_views, alert_at=3) as test:
        for views, _, _ in BATCHES:
            for product, count in views.items():
                for _ in range(count):
                    test.send("views", {"user": "u"}, key=product)
            batch = test.run()
            assert all(row["views"] == 3 for row in batch["alerts"])
            counts = {row["product"]: row["views"] for row in batch["counts"]}
            found.append((views, counts, sorted(row["product"] for row in batch["alerts"])))
    assert found == BATCHES


def counted(app: App) -> list[tuple[dict[str, int], dict[str, int], list[str]]]:
    """What the app's own processor makes of `BATCHES`, in this process."""
    memory = Memory(lambda: app.function.__globals__["Views"](3), "product")
    found = []
    for views, _, _ in BATCHES:
        rows = memory.run([{"product": product, "user": "u"} for product, count in views.items() for _ in range(count)])
        counts = {row["product"]: row["views"] for row in rows}
        found.append((views, counts, sorted(row["product"] for row in rows if row["reached"])))
    return found


@pytest.mark.spark
def test_a_view_counts_whenever_it_comes_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    with AppTest(spark, product_views) as test:
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z", 0, 0):
            test.send("views", {"user": "u"}, key="a", time=time)
        test.send("views", {"user": "x" * 2_000_000}, key="a")
        bad: list[tuple[Any, Any, str]] = [
            (None, {"user": "u"}, "the key is null"),
            ("a", None, "the value is null"),
            ("a", b"[1]", "the value is an array, not a JSON object"),
            ("a", {}, "field user is missing"),
            (b"\xff", {"user": "u"}, "the key is not UTF-8"),
        ]
        for key, value, _ in bad:
            test.send("views", value, key=key)
        batch = test.run()
        assert batch["counts"] == [{"product": "a", "views": 5}] and batch["alerts"] == []
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in bad]


@pytest.mark.spark
def test_a_limit_of_nothing_is_refused(spark: SparkSession) -> None:
    with (
        AppTest(spark, product_views, alert_at=0) as test,
        pytest.raises(AppFailed, match="alert_at must be 1 or more"),
    ):
        test.run()


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("before < self._alert_at <= views", "self._alert_at <= views"),
        ("before < self._alert_at <= views", "before < self._alert_at < views"),
        ("before < self._alert_at <= views", "views == self._alert_at"),
        ("before + sum(", "sum("),
        ("before + sum(len(frame) for frame in rows)", "before + len(list(rows))"),
    ],
)
def test_a_fault_in_any_clause_is_seen(there: str, instead: str) -> None:
    assert counted(product_views) == BATCHES
    assert counted(mutant(product_views, there, instead)) != BATCHES
