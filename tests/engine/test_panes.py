"""Sliding windows that are summed up by pane first: every result and every state is the same as without panes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from pipelines.engine.expressions import INTERPRETED
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.spark_conf import session_conf
from pipelines.settings import Settings
from tests.shared.session import COMPILED, configured
from tests.shared.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.spark]

PANES = "org.apache.spark.sql.switchyard.Panes"
SCHEMA = "at timestamp, name string, small int, whole bigint, price decimal(8,2), yes boolean, day date, real double"
BATCHES = 3
EXACT = {
    "rows": lambda: F.count(F.lit(1)),
    "prices": lambda: F.count("price"),
    "lowest": lambda: F.min("price"),
    "total": lambda: F.sum("price"),
    "average": lambda: F.avg("price"),
    "smallest": lambda: F.min("small"),
    "whole": lambda: F.sum("whole"),
    "mean": lambda: F.avg("whole"),
    "any": lambda: F.max("yes"),
    "last": lambda: F.max("day"),
    "latest": lambda: F.max("at"),
}
Results = dict[tuple[Any, ...], dict[str, Any]]
Make = Callable[["DataFrame"], "DataFrame"]


def rows(seed: int) -> Iterator[dict[str, Any]]:
    """Rows around 1970, where times become negative, and in 2026; some at the very start of a window, some with nulls."""
    rng = random.Random(seed)
    for _ in range(400):
        base = rng.choice([datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)])
        at = base + timedelta(microseconds=rng.choice([1, 1_000_000, 250_000]) * rng.randint(-30, 30))
        row = {
            "at": at,
            "name": rng.choice(["a", "b", "", "ä"]),
            "small": rng.randint(-(2**31), 2**31 - 1),
            "whole": rng.randint(-(2**40), 2**40),
            "price": Decimal(rng.randint(-99_999_999, 99_999_999)) / 100,
            "yes": rng.random() < 0.5,
            "day": date(2026, 1, 1) + timedelta(days=rng.randint(0, 400)),
            "real": rng.uniform(-1e9, 1e9),
        }
        yield {name: None if rng.random() < 0.05 else value for name, value in row.items()}


@pytest.fixture(scope="module")
def given(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file for each batch."""
    folder = tmp_path_factory.mktemp("rows")
    for seed in range(BATCHES):
        found = [tuple(row.values()) for row in rows(seed)]
        spark.createDataFrame(found, SCHEMA).coalesce(1).write.mode("append").parquet(str(folder))
    return folder


class Query:
    """A query over the files of `given`, which may stop after some batches and go on with other properties."""

    def __init__(self, spark: SparkSession, given: Path, work: Path, make: Make) -> None:
        self._spark, self._given, self._make = spark, given, make
        self.checkpoint = work / "checkpoint"
        self.results: Results = {}
        self.plans: list[str] = []

    def run(self, *, panes: bool, batches: int = BATCHES, properties: Mapping[str, str] = COMPILED) -> Query:
        with configured(self._spark, {**properties, java_class(PANES).Property(): str(panes).lower()}):
            stream = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self._given))
            query = (
                self._make(stream.withWatermark("at", "100 years"))
                .writeStream.outputMode("update")
                .option("checkpointLocation", str(self.checkpoint))
                .foreachBatch(self._take)
                .start()
            )
            try:
                until(f"batch {batches - 1}", lambda: self._has_done(query, batches - 1), timeout_s=60)
                self.plans.append(query._jsq.explainInternal(False))
            finally:
                query.stop()
        return self

    def state(self) -> list[Any]:
        """All keys and values of the state, as Spark keeps them."""
        read = self._spark.read.format("statestore").load(str(self.checkpoint))
        return sorted(map(repr, read.select("key", "value").collect()))

    @property
    def has_panes(self) -> bool:
        return "pane#" in self.plans[-1]

    @staticmethod
    def _has_done(query: StreamingQuery, batch_id: int) -> bool:
        assert query.isActive, query.exception()
        return query.lastProgress is not None and query.lastProgress.batchId >= batch_id

    def _take(self, batch: DataFrame, _: int) -> None:
        keys = [name for name in ("name", "window") if name in batch.columns]
        for row in batch.collect():
            self.results[tuple(row[key] for key in keys)] = row.asDict(recursive=True)


def windows(size: str, advance: str, start: str | None = None) -> Column:
    return F.window("at", size, advance, start)


def by_name(window: Column, **aggregates: Callable[[], Column]) -> Make:
    return lambda rows: rows.groupBy("name", window).agg(
        *(made().alias(name) for name, made in (aggregates or EXACT).items())
    )


SLIDING: dict[str, Callable[[], Make]] = {
    "5 s, each second": lambda: by_name(windows("5 seconds", "1 second")),
    "2 s, each 250 ms, from 100 ms on": lambda: by_name(windows("2 seconds", "250 milliseconds", "100 milliseconds")),
    "a day, each hour": lambda: by_name(windows("1 day", "1 hour")),
    "no other key": lambda: lambda rows: rows.groupBy(windows("6 seconds", "2 seconds")).agg(F.count("small")),
    "a computed key": lambda: lambda rows: (
        rows.groupBy(windows("6 seconds", "2 seconds"), F.upper("name").alias("name")).agg(F.avg("small"), F.sum("price"))
    ),
    "rows left out": lambda: lambda rows: by_name(windows("5 seconds", "1 second"))(rows.where("price > 0 and yes")),
    "windows that are columns": lambda: lambda rows: (
        rows.select("name", "price", windows("5 seconds", "1 second").alias("window"))
        .groupBy("name", "window")
        .agg(F.max("price"))
    ),
    "a computed value": lambda: by_name(
        windows("4 seconds", "2 seconds"), late=lambda: F.max(F.col("at") + F.expr("interval 1 day")),
        few=lambda: F.sum(F.when(F.col("yes"), F.col("small")).otherwise(0)),
    ),
}  # fmt: skip
# why Spark's plan stays as it is
LEFT_ALONE: dict[str, Callable[[], Make]] = {
    "windows that do not overlap": lambda: by_name(windows("5 seconds", "5 seconds")),
    "windows that are no whole number of panes": lambda: by_name(windows("5 seconds", "2 seconds")),
    "a sum of doubles": lambda: by_name(windows("5 seconds", "1 second"), total=lambda: F.sum("real")),
    "the least double": lambda: by_name(windows("5 seconds", "1 second"), least=lambda: F.min("real")),
    "the first of its rows": lambda: by_name(windows("5 seconds", "1 second"), first=lambda: F.first("small")),
    "a count of different values": lambda: by_name(
        windows("5 seconds", "1 second"), about=lambda: F.approx_count_distinct("small")
    ),
    "a value of the window": lambda: (
        lambda rows: (
            rows.select("name", windows("5 seconds", "1 second").alias("window"))
            .groupBy("name", "window")
            .agg(F.max(F.col("window.end")))
        )
    ),
}


@pytest.mark.parametrize("which", SLIDING)
def test_results_and_state_are_as_without_panes(spark: SparkSession, given: Path, tmp_path: Path, which: str) -> None:
    with_panes, without = (
        Query(spark, given, tmp_path / name, SLIDING[which]()).run(panes=name == "with") for name in ("with", "without")
    )
    assert with_panes.has_panes and not without.has_panes
    assert with_panes.results == without.results and with_panes.results
    assert with_panes.state() == without.state() and with_panes.state()


@pytest.mark.parametrize("first", [True, False])
def test_a_checkpoint_goes_on_with_and_without_panes(
    spark: SparkSession, given: Path, tmp_path: Path, first: bool
) -> None:
    make = by_name(windows("5 seconds", "1 second"))
    whole = Query(spark, given, tmp_path / "whole", make).run(panes=False)
    changed = Query(spark, given, tmp_path / "changed", make).run(panes=first, batches=1).run(panes=not first)
    assert changed.results == whole.results and changed.state() == whole.state()
    assert ["pane#" in plan for plan in changed.plans] == [first, not first]


def test_a_plan_that_is_not_compiled_has_no_panes(spark: SparkSession, given: Path, tmp_path: Path) -> None:
    make = by_name(windows("5 seconds", "1 second"))
    changed = Query(spark, given, tmp_path / "changed", make)
    changed.run(panes=True, batches=1).run(panes=True, batches=2, properties=INTERPRETED).run(panes=True)
    assert ["pane#" in plan for plan in changed.plans] == [True, False, True]
    assert changed.results == Query(spark, given, tmp_path / "whole", make).run(panes=False).results


@pytest.mark.parametrize("which", LEFT_ALONE)
def test_other_plans_stay_as_spark_makes_them(spark: SparkSession, given: Path, tmp_path: Path, which: str) -> None:
    query = Query(spark, given, tmp_path, LEFT_ALONE[which]()).run(panes=True, batches=1)
    assert not query.has_panes and query.results


def test_a_deployment_s_own_extensions_are_kept(tmp_path: Path) -> None:
    conf = session_conf(Settings(state_dir=tmp_path, spark={"spark.sql.extensions": "com.example.Mine"}))
    assert conf["spark.sql.extensions"] == f"com.example.Mine,{PANES}"
