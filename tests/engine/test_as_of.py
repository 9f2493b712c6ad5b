"""as_of: each row of a stream with a table's columns as of the row's time, in whatever batches the records come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame

from pipelines.model import App, AppendStream, AppSettings, Changelog, Json, Stream, app, as_of
from pipelines.testing import AppTest

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


@pytest.mark.parametrize(("size", "keys"), [(6_000, 50), pytest.param(200_000, 1_000, marks=pytest.mark.long)])
def test_it_is_what_pandas_finds_in_few_batches_and_in_many(spark: SparkSession, size: int, keys: int) -> None:
    records = numbers(size, keys, 1)
    expected = by_pandas(records)
    assert {None, *range(5)} < set(expected.values())
    for batches in (3, 8) if size < 10_000 else (11, 41):
        found, late = seen_in(spark, records, batches)
        assert late == 0
        assert found == expected
