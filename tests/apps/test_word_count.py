"""Golden test of word-count: lines in, words out, all written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.apps.word_count import word_count
from pipelines.model import App
from pipelines.testing import AppTest
from tests.apps.lives import Life
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LIFE = Life(records=3_000, at_least=1_000)

LINES = [
    "The quick brown fox, the QUICK one.",
    "  (leading) and trailing;  ",
    "then the_the is one word, the 2nd is two: x2 y",
    "",
    "...",
    "naïve fox",
]

EXPECTED = {
    "2nd": 1,
    "and": 1,
    "brown": 1,
    "fox": 2,
    "is": 2,
    "leading": 1,
    "na": 1,
    "one": 2,
    "quick": 2,
    "the_the": 1,
    "then": 1,
    "trailing": 1,
    "two": 1,
    "ve": 1,
    "word": 1,
    "x2": 1,
    "y": 1,
}


def counts(test: AppTest) -> dict[str, int]:
    return {word: row["count"] for (word,), row in test.table.items()}


def counted(spark: SparkSession, app: App) -> dict[str, int]:
    with AppTest(spark, app) as test:
        for line in LINES:
            test.send("lines", line)
        test.run()
        return counts(test)


@pytest.mark.usefixtures("compiled")
def test_golden(spark: SparkSession) -> None:
    assert counted(spark, word_count) == EXPECTED


def test_counts_go_on_after_a_restart(spark: SparkSession) -> None:
    with AppTest(spark, word_count) as test:
        test.send("lines", "one fox")
        test.run()
        test.restart()
        test.send("lines", "two foxes, one fox")
        assert sorted(row["word"] for row in test.run()) == ["fox", "foxes", "one", "two"]
        assert counts(test) == {"one": 2, "fox": 2, "two": 1, "foxes": 1}


def test_what_is_not_text_is_a_dead_letter(spark: SparkSession) -> None:
    with AppTest(spark, word_count) as test:
        for value in (b"\xff\xfe", "fox", None):
            test.send("lines", value)
        batch = test.run()
    assert batch.rows == [{"word": "fox", "count": 1}]
    assert [(letter.offset, letter.reason) for letter in batch.dead_letters] == [
        (0, "the value is not UTF-8"),
        (2, "the value is null"),
    ]


def test_a_line_counts_whatever_its_time_and_its_size(spark: SparkSession) -> None:
    with AppTest(spark, word_count) as test:
        for time in ("2099-01-01T00:00:00Z", "1996-01-01T00:00:00Z"):
            test.send("lines", "fox", time=time)
        # 2 MB of words, and a word of 2 MB
        test.send("lines", "fox " * 500_000)
        test.send("lines", "x" * 2_000_000)
        batch = test.run()
        assert counts(test) == {"fox": 500_002}
        [letter] = batch.dead_letters
        assert (letter.topic, letter.key) == ("word-count.v1.g1", None) and "too large" in letter.reason
        assert letter.headers["key-start"].startswith(b'{"word":"xxx')
        test.send("lines", "fox")
        batch = test.run()
        assert batch.rows == [{"word": "fox", "count": 500_003}]
        assert batch.late == 0 and batch.watermark is None


def test_definition() -> None:
    assert word_count.name == "word-count"
    assert word_count.results[""].key == ("word",)
    assert word_count.output_mode == "update"


@pytest.mark.long
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
        (".count()", '.agg(F.approx_count_distinct("word").alias("count"))'),
    ],
)
def test_a_fault_in_any_clause_is_seen(spark: SparkSession, there: str, instead: str) -> None:
    assert counted(spark, mutant(word_count, there, instead)) != EXPECTED
