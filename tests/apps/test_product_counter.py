"""Golden test of product-counter: views in, counters out once a second of event time, all written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.product_counter import product_counter
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest, Batch
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=4_000, at_least=3_000)

VIEWS = [
    # product, partition, event time in seconds after noon
    ("b", 0, 0.9),
    ("b", 0, 0.9),  # twice: counted twice
    ("a", 0, 0.2),  # out of order
    ("a", 0, 1.0),  # on the edge: of the second that begins here
    ("c", 0, 4.999),
    ("a", 1, 1.5),  # from another partition, and out of order
    ("b", 0, 0.5),
    ("c", 0, 9.0),
]
# moves the watermark to second 20; the second of its own view is not over
LAST = ("last", 0, 30.0)

EXPECTED = [
    # second after noon, product, views before it; seconds without a view tell nothing
    (1, "a", 1),
    (1, "b", 3),
    (2, "a", 3),
    (2, "b", 3),
    (5, "a", 3),
    (5, "b", 3),
    (5, "c", 1),
    (10, "a", 3),
    (10, "b", 3),
    (10, "c", 2),
]

Told = tuple[int, str, int]


@pytest.fixture(autouse=True)
def _frames_of_two(spark: SparkSession) -> Iterator[None]:
    """Has Spark hand views, timers and counters to Python by twos, as it does in large batches; and use one worker."""
    wanted = {"spark.sql.execution.arrow.maxRecordsPerBatch": "2", "spark.sql.shuffle.partitions": "1"}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def view(test: AppTest, product: str, partition: int, time: float | str) -> None:
    test.send("views", {"user": "u1"}, key=product, partition=partition, time=time)


def told(batch: Batch) -> list[Told]:
    """The rows of a batch, all of which must be of the minute after noon."""
    found = []
    for row in batch:
        minute, _, second = row["at"].removesuffix("Z").rpartition(":")
        assert minute == "2026-01-01T12:00"
        found.append((int(second), row["product"], row["views"]))
    return sorted(found)


def found(spark: SparkSession, app: App, *cuts: int, **settings: int) -> list[Told]:
    """The counters that VIEWS make, sorted. `cuts`: how many views come before each restart."""
    rows: list[Told] = []
    views = [*VIEWS, LAST]
    with AppTest(spark, app, **settings) as test:
        for start, end in zip((0, *cuts), (*cuts, len(views)), strict=True):
            for each in views[start:end]:
                view(test, *each)
            rows += told(test.run())
            test.restart()
    return sorted(rows)


@pytest.mark.usefixtures("compiled")
def test_golden(spark: SparkSession) -> None:
    assert found(spark, product_counter) == EXPECTED


def test_where_batches_end_makes_no_difference_also_with_a_restart(spark: SparkSession) -> None:
    assert found(spark, product_counter, 6) == EXPECTED


def test_a_longer_interval_tells_less_often(spark: SparkSession) -> None:
    assert found(spark, product_counter, every_s=5) == [
        (5, "a", 3), (5, "b", 3), (5, "c", 1),
        (10, "a", 3), (10, "b", 3), (10, "c", 2),
    ]  # fmt: skip


def test_a_timer_tells_the_counters_of_its_own_store(spark: SparkSession) -> None:
    # so many that each product is alone
    assert found(spark, product_counter, stores=100_000) == [
        (1, "a", 1), (1, "b", 3), (2, "a", 3), (5, "c", 1), (10, "c", 2),
    ]  # fmt: skip


def test_a_second_is_told_when_the_watermark_reaches_its_end_and_later_views_of_it_are_dropped(
    spark: SparkSession,
) -> None:
    with AppTest(spark, product_counter) as test:
        view(test, "a", 0, 5.0)
        view(test, "z", 0, 15.9)
        assert told(test.run()) == []
        test.restart()
        view(test, "a", 0, 5.95)
        view(test, "z", 0, 16.0)
        assert told(test.run()) == [(6, "a", 2)]
        view(test, "a", 0, 6.0)
        view(test, "z", 0, 40.0)
        batch = test.run()
        assert batch.late == 1
        assert told(batch) == [(16, "a", 2), (16, "z", 1), (17, "a", 2), (17, "z", 2)]


BAD: list[tuple[Any, Any, str]] = [
    ("a", "not json", "the value is not JSON: Expecting value at character 0"),
    ("a", {}, "field user is missing"),
    (None, {"user": "u1"}, "the key is null"),
    (b"\xff", {"user": "u1"}, "the key is not UTF-8"),
    ("a", None, "the value is null"),
    ("a", "[1]", "the value is an array, not a JSON object"),
]


def test_a_bad_record_is_no_view_and_the_counters_go_on(spark: SparkSession) -> None:
    with AppTest(spark, product_counter) as test:
        view(test, "a", 0, "1996-01-01T00:00:00Z")
        for key, value, _ in BAD:
            test.send("views", value, key=key, time=1)
        # a number is read as text, and another field may be large: both are views
        test.send("views", {"user": 7}, key="a", time=1)
        test.send("views", {"user": "u1", "note": "x" * 2_000_000}, key="a", time=1)
        view(test, "z", 0, 30)
        batch = test.run()
        assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
        # an old view counts, as long as the watermark has not passed it, and has a second of its own
        assert batch.rows == [
            {"product": "a", "at": "1996-01-01T00:00:01Z", "views": 1},
            {"product": "a", "at": "2026-01-01T12:00:02Z", "views": 3},
        ]
        # a view from the far future tells what waited, once, and not each second until then
        view(test, "a", 0, "2099-01-01T00:00:00Z")
        assert told(test.run()) == [(31, "a", 3), (31, "z", 1)]
        # but it moves the watermark, so that all views after it are late
        view(test, "a", 0, 31)
        batch = test.run()
        assert (batch.rows, batch.late) == ([], 1)


def test_a_time_that_pandas_does_not_have_is_a_time(spark: SparkSession) -> None:
    with AppTest(spark, product_counter) as test:
        view(test, "a", 0, 0)
        view(test, "b", 0, "2999-01-01T00:00:00Z")
        view(test, "b", 0, "9999-12-31T23:59:59Z")
        batch = test.run()
        assert [(row["product"], row["at"], row["views"]) for row in batch] == [
            ("a", "2026-01-01T12:00:01Z", 1),
            ("a", "2999-01-01T00:00:01Z", 1),
            ("b", "2999-01-01T00:00:01Z", 1),
        ]
        assert batch.dead_letters == []
        # late, by the watermark that it has moved
        view(test, "a", 0, "9999-12-31T23:59:49Z")
        view(test, "c", 0, "9999-12-31T23:59:49.001Z")
        batch = test.run()
        assert (batch.late, str(batch.watermark)) == (1, "9999-12-31 23:59:49+00:00")


@pytest.mark.parametrize("settings", [{"every_s": 0}, {"stores": 0}])
def test_counters_that_are_told_never_or_nowhere_are_refused(spark: SparkSession, settings: dict[str, Any]) -> None:
    with (
        AppTest(spark, product_counter, **settings) as test,
        pytest.raises(AppFailed, match="every_s and stores must be 1 or more"),
    ):
        test.run()


def test_definition() -> None:
    assert product_counter.name == "product-counter"
    assert product_counter.results[""].key == ("product",)
    assert product_counter.output_mode == "append"
    assert product_counter.watermark == "10 seconds"
    assert dict(product_counter.settings) == {"every_s": 1, "stores": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead"),
    [
        # the second of a view, and its end
        ("div {every_ms} + 1)", "div {every_ms})"),
        ("unix_millis(event_time)", "(unix_millis(event_time) - 1)"),
        ("settings.every_s * 1000", "2000"),
        # each view counts, in whichever frame it comes
        ("products.value_counts()", "products.drop_duplicates().value_counts()"),
        ("views.get(product, 0) + count", "count"),
        # counters add up
        ("before.get(product, 0) + count", "count"),
        # every counter is told, of every product
        ("in counters.items()]", "in counters.items() if product in new]"),
        ("pmod(xxhash64(product), {settings.stores})", "partition"),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert found(spark, mutant(product_counter, there, instead)) != EXPECTED
