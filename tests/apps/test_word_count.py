"""Golden test of word-count: lines in, words out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.apps.word_count import word_count
from tests.apps.mutants import mutant
from tests.apps.rows import at, frame, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LINES = [
    "The quick brown fox, the QUICK one.",
    "  (leading) and trailing;  ",
    "then the_the is one word, the 2nd is two: x2 y",
    "",
    "...",
    "naïve fox",
]

EXPECTED = [
    ("2nd", 1),
    ("and", 1),
    ("brown", 1),
    ("fox", 2),
    ("is", 2),
    ("leading", 1),
    ("na", 1),
    ("one", 2),
    ("quick", 2),
    ("the_the", 1),
    ("then", 1),
    ("trailing", 1),
    ("two", 1),
    ("ve", 1),
    ("word", 1),
    ("x2", 1),
    ("y", 1),
]


@pytest.fixture(scope="module")
def lines(spark: SparkSession) -> DataFrame:
    return frame(spark, word_count, "lines", [(line, at(0)) for line in LINES])


def test_golden(lines: DataFrame) -> None:
    assert run(word_count, {"lines": lines}) == EXPECTED


def test_definition() -> None:
    assert word_count.name == "word-count"
    assert word_count.result.key == ("word",)
    assert word_count.output_mode == "update"


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ('F.lower("line")', '"line"'),
        (r'r"\W+"', 'r" "'),
        (r'r"\W+"', r'r"[\W\d]+"'),
        (r'r"\W+"', r'r"[\W_]+"'),
        ('(F.col("word") != "") & ', ""),
        (' & (F.col("word") != "the")', ""),
        ('F.col("word") != "the"', '~F.col("word").startswith("the")'),
        (".count()", '.agg(F.count_distinct("word").alias("count"))'),
    ],
)
def test_a_fault_in_any_clause_is_seen(lines: DataFrame, there: str, instead: str) -> None:
    assert run(mutant(word_count, there, instead), {"lines": lines}) != EXPECTED
