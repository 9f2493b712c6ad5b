"""as_of: each row of a stream with a table's columns as of the row's time, in whatever batches the records come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.errors import BadUsage
from pipelines.model import App, AppendStream, AppSettings, Changelog, Json, Stream, Table, app, as_of
from pipelines.testing import AppTest, at
from tests.engine.test_probe import on_nothing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def joined(watermark: str = "10 seconds") -> App:
    @app(
        name="joined",
        inputs={
            "clicks": Stream(topic="clicks", key="user string", value=Json("n long NOT NULL")),
            "profiles": Changelog(topic="profiles", key="user string", value=Json("age int NOT NULL, zip string")),
        },
        result=AppendStream(key=("user",)),
        watermark=watermark,
    )
    def function(clicks: DataFrame, profiles: DataFrame, settings: AppSettings) -> DataFrame:
        return as_of(clicks, profiles, on="user")

    return function


JOINED = joined()


def told(batch: Any) -> list[tuple[Any, ...]]:
    return [(row["n"], row["age"], row["zip"]) for row in batch.rows]


@pytest.mark.usefixtures("compiled")
def test_a_row_sees_the_version_that_is_the_latest_at_or_before_its_time(spark: SparkSession) -> None:
    with AppTest(spark, JOINED) as test:
        # out of order, on both sides
        test.send("profiles", {"age": 3, "zip": "c"}, key="ada", time=30)
        test.send("profiles", {"age": 1, "zip": "a"}, key="ada", time=10)
        test.send("profiles", {"age": 2}, key="ada", time=20)
        test.send("profiles", None, key="ada", time=40)
        for number, time in enumerate((50, 40, 30, 29.999, 20, 10.001, 10, 9.999, 39.999)):
            test.send("clicks", {"n": number}, key="ada", time=time)
        test.send("clicks", {"n": 9}, key="ben", time=45)
        batch = test.run()
        assert told(batch) == [
            (7, None, None),
            (6, 1, "a"),
            (5, 1, "a"),
            (4, 2, None),
            (3, 2, None),
            (2, 3, "c"),
            (8, 3, "c"),
            (1, None, None),
        ]
        assert sorted(told(test.advance_watermark(60))) == [(0, None, None), (9, None, None)]


def numbers(size: int, keys: int, seed: int) -> pd.DataFrame:
    """Records of both inputs in order of arrival: time in ms, with ties; key, tombstones, and up to 5 s of disorder."""
    random = np.random.default_rng(seed)
    arrives = np.sort(random.integers(0, size * 4, size))
    frame = pd.DataFrame(
        {
            "n": np.arange(size),
            # so coarse that many are equal
            "time": (arrives - random.integers(0, 5_000, size)).clip(1) // 50 * 50 + 1,
            "user": random.integers(0, keys, size),
            "table": random.random(size) < 0.3,
        }
    )
    frame["age"] = np.where(random.random(size) < 0.2, -1, random.integers(0, 100, size))
    return frame


def by_pandas(records: pd.DataFrame) -> dict[int, float | None]:
    """n of a row of the stream -> the age that it sees."""
    rows = records[~records.table].sort_values("time", kind="stable")
    table = records[records.table].sort_values("time", kind="stable")[["time", "user", "age"]]
    found = pd.merge_asof(rows[["n", "time", "user"]], table, on="time", by="user")
    return {int(n): None if pd.isna(age) or age < 0 else age for n, age in zip(found.n, found.age, strict=True)}


def send_all(test: AppTest, records: pd.DataFrame) -> None:
    for row in records.itertuples():
        user, time = f"u{row.user}", row.time / 1000
        if not row.table:
            test.send("clicks", {"n": row.n}, key=user, time=time)
        else:
            test.send("profiles", None if row.age < 0 else {"age": int(row.age)}, key=user, time=time)


def seen_in(spark: SparkSession, records: pd.DataFrame, batches: int) -> tuple[dict[int, float | None], int]:
    """What the rows see if the records come in so many batches, and how many were late."""
    found: dict[int, float | None] = {}
    late = 0
    with AppTest(spark, JOINED) as test:
        for part in np.array_split(np.arange(len(records)), batches):
            send_all(test, records.iloc[part])
            batch = test.run()
            found |= {row["n"]: row["age"] for row in batch}
            late += batch.late
        last = test.advance_watermark(float(records.time.max()) / 1000 + 1)
        found |= {row["n"]: row["age"] for row in last}
    return found, late


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("size", "keys"), [(3_000, 30), pytest.param(20_000, 1_000, marks=pytest.mark.long)])
def test_as_of_finds_what_pandas_finds_in_few_batches_and_in_many(spark: SparkSession, size: int, keys: int) -> None:
    records = numbers(size, keys, 1)
    expected = by_pandas(records)
    assert {None, *range(5)} < set(expected.values())
    for batches in (2, 5) if size < 10_000 else (7, 23):
        found, late = seen_in(spark, records, batches)
        assert late == 0
        assert found == expected


def profile(test: AppTest, age: int | None, *, time: float, key: str = "ada", partition: int = 0) -> None:
    test.send("profiles", None if age is None else {"age": age}, key=key, time=time, partition=partition)


def click(test: AppTest, number: int, *, time: float, key: str = "ada") -> None:
    test.send("clicks", {"n": number}, key=key, time=time)


def ages(batch: Any) -> list[tuple[int, int | None]]:
    return sorted((row["n"], row["age"]) for row in batch.rows)


def test_of_versions_with_the_same_time_the_last_in_its_partition_holds(spark: SparkSession) -> None:
    with AppTest(spark, JOINED) as test:
        click(test, 1, time=10)
        # the order of batches is not that of offsets between partitions
        profile(test, 3, time=10, partition=1)
        test.run()
        profile(test, 1, time=10)
        profile(test, 2, time=10)
        test.run()
        click(test, 2, time=10)
        assert ages(test.advance_watermark(10)) == [(1, 3), (2, 3)]


def test_a_row_waits_in_the_state_over_a_restart_until_the_watermark_reaches_its_time(spark: SparkSession) -> None:
    with AppTest(spark, JOINED) as test:
        profile(test, 1, time=0)
        profile(test, 4, time=39.999)
        click(test, 1, time=30)
        assert test.run().rows == []
        test.restart()
        assert test.advance_watermark(29.999).rows == []
        # in time, though the row was there first
        profile(test, 3, time=30)
        assert test.run().rows == []
        test.restart()
        assert ages(test.advance_watermark(30)) == [(1, 3)]
        assert test.advance_watermark(100).rows == []
        test.restart()
        click(test, 2, time=200)
        test.run()
        assert ages(test.advance_watermark(200)) == [(2, 4)]


def test_a_late_row_is_dropped_and_counted(spark: SparkSession) -> None:
    with AppTest(spark, JOINED) as test:
        profile(test, 1, time=0)
        test.run()
        test.advance_watermark(50)
        click(test, 1, time=50)
        click(test, 2, time=50.001)
        batch = test.run()
        assert (ages(batch), batch.late) == ([], 1)
        assert ages(test.advance_watermark(51)) == [(2, 1)]


def test_a_late_version_applies_to_rows_that_still_wait_and_is_counted(spark: SparkSession) -> None:
    with AppTest(spark, JOINED) as test:
        profile(test, 1, time=0)
        click(test, 1, time=20)
        click(test, 2, time=60)
        assert ages(test.run()) == [(1, 1)]
        # it would have held at 20, which was told
        profile(test, 2, time=10)
        # older than the version that holds
        profile(test, 9, time=-10)
        batch = test.run()
        assert (ages(batch), batch.late) == ([], 2)
        test.restart()
        profile(test, 5, time=50.001)
        batch = test.run()
        assert (ages(batch), batch.late) == ([], 0)
        click(test, 3, time=50.001)
        assert ages(test.advance_watermark(60)) == [(2, 5), (3, 5)]


def test_a_late_deletion_deletes_what_is_older_and_a_newer_version_stays(spark: SparkSession) -> None:
    with AppTest(spark, JOINED) as test:
        profile(test, 1, time=0)
        profile(test, 1, time=30, key="ben")
        test.advance_watermark(50)
        for user in ("ada", "ben"):
            profile(test, None, time=20, key=user)
        assert test.run().late == 2
        click(test, 1, time=60)
        click(test, 2, time=60, key="ben")
        test.run()
        assert ages(test.advance_watermark(60)) == [(1, None), (2, 1)]


@pytest.mark.parametrize("idle", ["clicks", "profiles"])
def test_an_idle_input_holds_nothing_up(spark: SparkSession, idle: str) -> None:
    with AppTest(spark, JOINED) as test:
        profile(test, 1, time=0)
        click(test, 1, time=1)
        test.run()
        # another process knows the watermark, and not which input it came from
        test.restart()
        (profile if idle == "clicks" else click)(test, 2, time=11.001)
        batch = test.run()
        assert batch.watermark == at(1.001)
        assert ages(batch) == [(1, 1)]


def test_what_is_bad_is_a_dead_letter_and_a_deletion_is_not(spark: SparkSession) -> None:
    with AppTest(spark, JOINED) as test:
        bad: list[tuple[Any, Any]] = [
            (None, None),
            (b"\xff", None),
            ("ada", {}),
            ("ada", "no JSON"),
            ("ada", b"\xff"),
            ("ada", {"age": "old"}),
            ("ada", {"age": 1, "note": "x" * 2_000_000}),
        ]
        for key, value in bad:
            test.send("profiles", value, key=key, time=5)
        test.send("profiles", None, key="ben", time=5)
        test.send("clicks", None, key="ada", time=6)
        click(test, 1, time=6)
        # twice is twice
        click(test, 1, time=6)
        # from 2099 it is told when the watermark comes there; until then its key has one more row that waits
        click(test, 2, time=at("2099-01-01T00:00:00Z").timestamp() - at(0).timestamp())
        click(test, 3, time=at("1996-01-01T00:00:00Z").timestamp() - at(0).timestamp())
        batch = test.run()
        assert [(letter.topic, letter.reason) for letter in batch.dead_letters] == [
            ("clicks", "the value is null"),
            ("profiles", "the key is null"),
            ("profiles", "the key is not UTF-8"),
            ("profiles", "field age is missing"),
            ("profiles", "the value is not JSON: Expecting value at character 0"),
            ("profiles", "the value is not UTF-8"),
            ("profiles", "field age is not int"),
        ]
        # as in a window: an event of 2099 moves the watermark for all
        assert batch.watermark == at("2098-12-31T23:59:50Z")
        assert ages(batch) == [(1, 1), (1, 1), (3, None)]


Body = Callable[[DataFrame, DataFrame], DataFrame]


def app_of(body: Body, result: AppendStream | Table, *, watermark: str | None = "10 seconds") -> App:
    """An app whose function is `body` of clicks and profiles."""
    return App(
        name="joined",
        inputs=JOINED.inputs,
        results={"": result},
        function=lambda clicks, profiles, settings: body(clicks, profiles),
        watermark=watermark,
    )


def test_a_table_of_what_was_joined(spark: SparkSession) -> None:
    latest = app_of(lambda c, p: as_of(c, p, on="user").select("user", "n", "age"), Table(key=("user",)))
    with AppTest(spark, latest) as test:
        profile(test, 7, time=0)
        click(test, 1, time=1)
        click(test, 2, time=2)
        test.run()
        test.advance_watermark(10)
        assert test.table == {("ada",): {"n": 2, "age": 7}}


def test_windows_can_follow_and_lose_no_row(spark: SparkSession) -> None:
    def by_age(clicks: DataFrame, profiles: DataFrame) -> DataFrame:
        counted = as_of(clicks, profiles, on="user").groupBy("age", F.window("event_time", "10 seconds")).count()
        return counted.select("age", F.date_format("window.start", "ss").alias("from"), "count")

    with AppTest(spark, app_of(by_age, Table(key=("age", "from"), emit="final"))) as test:
        profile(test, 7, time=0)
        for second in range(1, 31):
            click(test, second, time=second)
            if second % 7 == 0:
                test.run()
        test.run()
        batch = test.advance_watermark(100)
        assert batch.late == 0
        assert {key: row["count"] for key, row in test.table.items()} == {
            (7, "00"): 9,
            (7, "10"): 10,
            (7, "20"): 10,
            (7, "30"): 1,
        }


def test_a_second_table_can_follow(spark: SparkSession) -> None:
    places = Changelog(topic="places", key="zip string", value=Json("city string"))

    def function(clicks: DataFrame, profiles: DataFrame, places: DataFrame, settings: AppSettings) -> DataFrame:
        return as_of(as_of(clicks, profiles, on="user"), places, on="zip").select("user", "n", "age", "city")

    both = App(
        name="both",
        inputs={**JOINED.inputs, "places": places},
        results={"": AppendStream(key=("user",))},
        function=function,
        watermark="10 seconds",
    )
    with AppTest(spark, both) as test:
        test.send("places", {"city": "Bern"}, key="3000", time=0)
        test.send("profiles", {"age": 7, "zip": "3000"}, key="ada", time=1)
        click(test, 1, time=2)
        # a user whose zip is not known
        click(test, 2, time=2, key="ben")
        click(test, 3, time=0.5)
        test.send("places", {"city": "Köniz"}, key="3000", time=3)
        click(test, 4, time=3)
        test.run()
        rows = test.advance_watermark(10).rows
        assert sorted((r["n"], r["age"], r["city"]) for r in rows) == [
            (1, 7, "Bern"),
            (2, None, None),
            (3, None, None),
            (4, 7, "Köniz"),
        ]


@pytest.mark.parametrize(
    ("body", "watermark", "words"),
    [
        (lambda c, p: as_of(c, p, on="user"), None, ["as_of needs a watermark", "watermark="]),
        (lambda c, p: as_of(c.drop("event_time"), p, on="user"), "1 second", ["needs the column event_time"]),
        (lambda c, p: as_of(p, c, on="user"), "1 second", ["the table of as_of is not a table", "a Changelog"]),
        (lambda c, p: as_of(c, p.drop("offset"), on="user"), "1 second", ["it lacks offset"]),
        (lambda c, p: as_of(c, p, on="n"), "1 second", ["is not the key of the table, user"]),
        (lambda c, p: as_of(c.drop("user"), p, on="user"), "1 second", ["user is missing in the stream"]),
        (
            lambda c, p: as_of(c.withColumn("user", F.lit(1)), p, on="user"),
            "1 second",
            ["user is int in the stream and string in the table"],
        ),
        (lambda c, p: as_of(c, p.withColumnRenamed("age", "N"), on="user"), "1 second", ["both have a column N"]),
        (lambda c, p: as_of(c, p.drop("age", "zip"), on="user"), "1 second", ["no column besides its key"]),
    ],
    ids=["watermark", "time", "swapped", "no-offset", "not-the-key", "missing", "type", "twice", "nothing"],
)
def test_what_can_not_be_joined_is_refused_in_plain_words(
    spark: SparkSession, body: Body, watermark: str | None, words: list[str]
) -> None:
    with pytest.raises(BadUsage) as refused:
        on_nothing(spark, app_of(body, AppendStream(), watermark=watermark))
    said = f"{refused.value.what}; {refused.value.fix}"
    assert [word for word in words if word not in said] == [], said


def test_it_is_tried_at_staging_as_a_stream(spark: SparkSession) -> None:
    assert on_nothing(spark, JOINED).columns == [
        "user", "n", "event_time", "topic", "partition", "offset", "age", "zip"
    ]  # fmt: skip
