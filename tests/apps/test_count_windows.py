"""Golden test of count-windows: numbers in, windows out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.count_windows import count_windows
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("frames_of_two")]

LIFE = Life(records=4_000, at_least=3_000)

NUMBERS = [
    # key, number, partition, event time in seconds after noon
    ("a", 1, 0, 50),
    ("a", 3, 0, 10),  # event times don't matter, the order in the partition does
    ("b", 8, 1, 0),
    ("a", 7, 0, 30),
    ("a", 5, 0, 20),
    ("b", 8, 1, 0),  # twice: two numbers
    ("a", 11, 0, 20),
    ("c", 1, 0, 0),
    ("a", 12, 0, 0),
    ("c", 2, 0, 0),  # two numbers fill no window
    ("d", 1, 0, 0),
    ("d", 2, 1, 0),  # of two partitions, which have no order: no window of all three
    ("d", 3, 0, 0),
    ("a", 15, 0, 60),
    ("b", -8, 1, 0),
]

EXPECTED = [
    # key, kind, numbers, and the record that completed them: `numbers`, partition, offset
    ("a", "hopping", [1, 3, 7], "numbers:0:2"),
    ("a", "hopping", [7, 5, 11], "numbers:0:4"),
    ("a", "hopping", [11, 12, 15], "numbers:0:10"),
    ("a", "sliding", [1, 3, 7], "numbers:0:2"),
    ("a", "sliding", [3, 7, 5], "numbers:0:3"),
    ("a", "sliding", [5, 11, 12], "numbers:0:6"),
    ("a", "sliding", [7, 5, 11], "numbers:0:4"),
    ("a", "sliding", [11, 12, 15], "numbers:0:10"),
    ("a", "tumbling", [1, 3, 7], "numbers:0:2"),
    ("a", "tumbling", [5, 11, 12], "numbers:0:6"),
    ("b", "hopping", [8, 8, -8], "numbers:1:3"),
    ("b", "sliding", [8, 8, -8], "numbers:1:3"),
    ("b", "tumbling", [8, 8, -8], "numbers:1:3"),
]

Window = tuple[str, str, list[int], str]


def found(spark: SparkSession, app: App, *cuts: int, **settings: int) -> list[Window]:
    """The windows of NUMBERS, sorted. `cuts`: how many numbers come before each restart."""
    rows: list[Window] = []
    with AppTest(spark, app, **settings) as test:
        for start, end in zip((0, *cuts), (*cuts, len(NUMBERS)), strict=True):
            for key, number, partition, seconds in NUMBERS[start:end]:
                test.send("numbers", {"number": number}, key=key, partition=partition, time=seconds)
            batch = test.run()
            pairs = zip(batch.rows, batch.sources, strict=True)
            rows += [(row["key"], row["kind"], row["numbers"], str(source)) for row, source in pairs]
            test.restart()
    return sorted(rows)


@pytest.mark.usefixtures("compiled")
def test_golden(spark: SparkSession) -> None:
    assert found(spark, count_windows) == sorted(EXPECTED)


def test_where_batches_end_makes_no_difference_also_with_a_restart(spark: SparkSession) -> None:
    # within a window, and just after one
    assert found(spark, count_windows, 2, 7) == sorted(EXPECTED)


def test_records_that_come_to_python_in_another_order_are_taken_in_the_order_of_their_offsets(
    spark: SparkSession,
) -> None:
    shuffled = mutant(count_windows, "return numbered.", "return numbered.repartition(3).")
    assert found(spark, shuffled) == sorted(EXPECTED)


def test_settings_are_heeded(spark: SparkSession) -> None:
    of_five = found(spark, count_windows, size=5, advance=1)
    assert [(kind, numbers) for _, kind, numbers, _ in of_five] == [
        ("hopping", [1, 3, 7, 5, 11]),
        ("hopping", [3, 7, 5, 11, 12]),
        ("hopping", [7, 5, 11, 12, 15]),
        ("sliding", [1, 3, 7, 5, 11]),
        ("sliding", [3, 7, 5, 11, 12]),
        ("sliding", [7, 5, 11, 12, 15]),
        ("tumbling", [1, 3, 7, 5, 11]),
    ]


@pytest.mark.parametrize("settings", [{"size": 0}, {"advance": 0}])
def test_windows_of_nothing_are_refused(spark: SparkSession, settings: dict[str, Any]) -> None:
    with (
        AppTest(spark, count_windows, **settings) as test,
        pytest.raises(AppFailed, match="size and advance must be 1 or more"),
    ):
        test.run()


BAD: list[tuple[Any, Any, str]] = [
    ("a", "1", "the value is a number, not a JSON object"),
    ("a", "not json", "the value is not JSON: Expecting value at character 0"),
    ("a", {}, "field number is missing"),
    ("a", {"number": None}, "field number is missing"),
    ("a", {"number": "one"}, "field number is not bigint"),
    ("a", {"number": 1.5}, "field number is not bigint"),
    ("a", {"number": 2**63}, "field number is not bigint"),
    (None, {"number": 1}, "the key is null"),
    ("a", None, "the value is null"),
    ("a", b"\xff" * 2_000_000, "the value is not UTF-8"),
]


def test_a_bad_record_is_no_number_and_the_windows_go_on(spark: SparkSession) -> None:
    with AppTest(spark, count_windows) as test:
        for key, value, _ in BAD:
            test.send("numbers", value, key=key)
        # times as odd as these change nothing, nor do 2 MB of another field
        test.send("numbers", {"number": 1}, key="a", time="2099-01-01T00:00:00Z")
        test.send("numbers", {"number": 2}, key="a", time="1996-01-01T00:00:00Z")
        test.send("numbers", {"number": 3, "note": "x" * 2_000_000}, key="a")
        # the same record once more, as after a producer's retry
        test.send("numbers", {"number": 3, "note": "x"}, key="a")
        batch = test.run()
    assert [letter.reason for letter in batch.dead_letters] == [reason for *_, reason in BAD]
    assert [row["numbers"] for row in batch if row["kind"] == "sliding"] == [[1, 2, 3], [2, 3, 3]]
    assert batch.late == 0 and batch.watermark is None


def test_definition() -> None:
    assert count_windows.name == "count-windows"
    assert count_windows.results[""].key == ("key", "kind")
    assert count_windows.output_mode == "append"
    assert dict(count_windows.settings) == {"size": 3, "advance": 2}


@pytest.mark.long
@pytest.mark.parametrize(
    ("there", "instead", "cuts"),
    [
        ('"sliding": 1', '"sliding": 2', ()),
        ('"tumbling": settings.size', '"tumbling": 2', ()),
        ('"hopping": settings.advance', '"hopping": 3', ()),
        ("seen >= self._size and ", "", ()),
        ("[-self._size :]", "", ()),
        ("in sorted(batch)", "in reversed(sorted(batch))", ()),
        ("for frame in rows", "for frame in [next(rows)]", ()),
        ("numbered.groupBy(", "numbered.selectExpr(\"'a' AS key\", 'number', 'topic', 'partition', 'offset').groupBy(", ()),
        ('numbered.groupBy("key", "topic", "partition")',
         "numbered.selectExpr('key', 'number', 'topic', '1 AS partition', 'offset').groupBy('key', 'topic', 'partition')", ()),
        ("topic, partition, offset))", "topic, partition, offset - 1))", ()),
        ("self._recent.update((seen, numbers))", "self._recent.update((0, numbers))", (7,)),
    ],
)  # fmt: skip
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str, cuts: tuple[int, ...]) -> None:
    assert found(spark, mutant(count_windows, there, instead), *cuts) != sorted(EXPECTED)
