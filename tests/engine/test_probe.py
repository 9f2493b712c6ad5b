"""What an author is told about a function that can't run, before anything of it is staged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.engine import probe as probing
from pipelines.engine.causes import cause
from pipelines.engine.frames import ddl_columns
from pipelines.engine.probe import run_on_nothing
from pipelines.engine.rehearsal import Rehearsal
from pipelines.engine.repeats import notes
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model import AppendStream, AppSettings, Changelog, Comparable, Json, Stream, Table
from pipelines.model.app import App, Result
from pipelines.testing import AppFailed, AppTest
from tests.shared.session import active_in

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

Body = Callable[..., Any]


def on_nothing(spark: SparkSession, app: App) -> DataFrame:
    return run_on_nothing(spark, app, Rehearsal(spark, app, {}))


def app_of(body: Body, *inputs: str, watermark: str | None = None) -> App:
    """An app `odd` whose function is `body` of its inputs, each with the columns of a trade."""
    source = Stream(topic="odd-input", key="ticker string", value=Json("price double"))
    return App(
        name="odd",
        inputs=dict.fromkeys(inputs, source),
        results={"": AppendStream(key=("ticker",))},
        function=lambda settings, **given: body(**given),
        watermark=watermark,
    )


def with_a_table() -> App:
    """An app that left-joins a stream with a table, as Spark would join two streams."""
    trades = Stream(topic="odd-input", key="ticker string", value=Json("price double"))
    names = Changelog(topic="odd-names", key="ticker string", value=Json("name string"))

    def body(trades: DataFrame, names: DataFrame, settings: AppSettings) -> DataFrame:
        return trades.join(names, "ticker", "left").select("ticker", "price", "name")

    return App(
        name="odd",
        inputs={"trades": trades, "names": names},
        results={"": Table(key=("ticker",))},
        function=body,
    )


def test_who_joins_a_table_as_a_stream_is_told_of_as_of(spark: SparkSession) -> None:
    with pytest.raises(BadUsage, match="Join between two streaming") as refused:
        on_nothing(spark, with_a_table())
    assert refused.value.fix.startswith("join a stream with a table by as_of, and two tables by join_tables; or use")


def renamed(trades: DataFrame) -> DataFrame:
    return trades.select("ticker", "price")


def other_topic(trades: DataFrame) -> DataFrame:
    reader = trades.sparkSession.read.format("kafka").option("kafka.bootstrap.servers", "localhost:9")
    return reader.option("subscribe", "orders").load().select(F.col("key").cast("string").alias("ticker"), "value")


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (lambda trades: trades.schema["prices"], BadUsage, ["the function of app odd raises: ", "KeyError", "prices", "(test_probe.py, line "]),
        (lambda trades: "rows", BadUsage, ["app odd returned str, not a DataFrame"]),
        (lambda trades: trades.select("price"), BadUsage, ["lacks the key column ticker", "it has price"]),
        (lambda trades: trades.select("ticker", "size"), BadUsage, ["the function of app odd raises: ", "`size`"]),
        (lambda trades: trades.groupBy("ticker").count(), BadUsage, ["can't run as a stream: ", "Spark can run it with result=Table(...)"]),
        (
            lambda trades: trades.select("ticker", F.create_map("price", F.lit(1)).alias("prices")),
            BadUsage,
            ["the result of app odd could not be read back from JSON", "MAP", "a map with text as its keys"],
        ),
        (lambda trades: trades.select("ticker", F.rand().alias("r")), Refused, ["is not deterministic"]),
        (lambda trades: trades.select("ticker", F.now().alias("at")), Refused, ["reads the clock", "event_time"]),
        (
            lambda trades: trades.where(F.current_date() > F.col("event_time")).select("ticker", "price"),
            Refused,
            ["reads the clock", "event_time"],
        ),
        (
            lambda trades: trades.groupBy("ticker").agg(F.count_distinct("price").alias("n")),
            BadUsage,
            ["can't run as a stream", "use another operator", "Distinct aggregations are not supported"],
        ),
        (lambda trades: trades.limit(trades.count()), BadUsage, ["AnalysisException", "remove actions, such as count()"]),
        (lambda trades: trades.write.save("x"), BadUsage, ["AnalysisException", "remove actions, such as count()"]),
        (
            lambda trades: renamed(trades.limit(3)),
            Refused,
            ["takes the first rows that come (limit)", "depends on batches", "choose rows by their columns"],
        ),
        (
            lambda trades: renamed(trades).groupBy("ticker").applyInPandas(lambda rows: rows, "ticker string, price double"),
            Refused,
            ["gets the rows of one batch (applyInPandas), not all rows of a group", "state of your own"],
        ),
        (
            lambda trades: renamed(trades).union(trades.sparkSession.readStream.format("rate").load().select(F.lit("a"), "value")),
            Refused,
            ["reads a stream that is not one of its inputs", "name it in the app's inputs"],
        ),
        (lambda trades: trades.join(other_topic(trades), "ticker"), Refused, ["reads a topic that is not one of its inputs"]),
        (
            lambda trades: renamed(trades.unionAll(trades)),
            BadUsage,
            ["reads its input trades 2 times", "separate input on the same topic"],
        ),
    ],
    ids=[
        "raises", "wrong-type", "no-key", "no-such-column", "unsupported", "map", "random", "now", "today", "distinct",
        "count", "write", "limit", "groups", "stream", "topic", "twice",
    ],
)  # fmt: skip
def test_a_function_that_can_not_run_is_found_on_empty_frames(
    spark: SparkSession, body: Body, kind: type[SwitchyardError], words: list[str]
) -> None:
    with pytest.raises(kind) as refusal:
        on_nothing(spark, app_of(body, "trades"))
    said = f"{refusal.value.what}; {refusal.value.fix}"
    assert [word for word in words if word not in said] == [], said


def total_by_ticker(*aggregates: Column) -> Body:
    return lambda trades: trades.groupBy("ticker").agg(*aggregates)


@pytest.mark.parametrize(
    ("aggregate", "called", "instead"),
    [
        (lambda: F.first("price"), "first(price)", "F.min_by("),
        (lambda: F.last("price"), "last(price)", "F.max_by("),
        (lambda: F.any_value("price"), "any_value(price)", "F.min_by("),
        (lambda: F.mode("price"), "mode(price)", "deterministic=True"),
        (lambda: F.collect_list("price"), "collect_list(price)", "F.sort_array("),
        (lambda: F.concat_ws(",", F.collect_set(F.col("price").cast("string"))), "collect_set(price)", "F.size("),
        (lambda: F.sort_array(F.array(F.first("price"))), "first(price)", "F.min_by("),
        (lambda: F.expr("listagg(ticker, ',')"), "listagg(ticker)", "ORDER BY"),
    ],
    ids=["first", "last", "any", "mode", "list", "set", "first-in-a-list", "listagg"],
)
def test_an_aggregate_that_depends_on_the_order_of_rows_is_refused(
    spark: SparkSession, aggregate: Callable[[], Column], called: str, instead: str
) -> None:
    app = replace(app_of(total_by_ticker(aggregate()), "trades"), results={"": Table(key=("ticker",))})
    with pytest.raises(Refused, match="depends on the order in which rows come") as refused:
        on_nothing(spark, app)
    assert f"has {called}, whose value" in refused.value.what and instead in refused.value.fix


def test_an_aggregate_of_the_same_rows_that_does_not_depend_on_their_order_is_not(spark: SparkSession) -> None:
    body = total_by_ticker(
        F.sort_array(F.collect_list("price")).alias("a"),
        F.size(F.collect_set("price")).alias("b"),
        F.mode("price", deterministic=True).alias("c"),
        F.expr("listagg(ticker, ',') WITHIN GROUP (ORDER BY ticker)").alias("d"),
    )
    app = replace(app_of(body, "trades"), results={"": Table(key=("ticker",))})
    assert on_nothing(spark, app).columns == ["ticker", "a", "b", "c", "d"]


def test_a_query_of_an_app_s_own_is_refused_and_ended(spark: SparkSession) -> None:
    def body(trades: DataFrame) -> DataFrame:
        trades.writeStream.foreachBatch(lambda rows, number: None).start()
        return renamed(trades)

    before = active_in(spark)
    with pytest.raises(Refused, match="starts a query of its own") as refused:
        on_nothing(spark, app_of(body, "trades"))
    assert "several results" in refused.value.fix
    assert active_in(spark) <= before


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: F.sum("price"), "sum(price) adds up floating-point numbers"),
        (lambda: F.stddev("price") * 2, "stddev(price) adds up floating-point numbers"),
        (lambda: F.percentile_approx("price", 0.5), "percentile_approx(price) is an approximation"),
        (lambda: F.sum(F.col("price").cast("decimal(8,2)")), None),
        (lambda: F.avg("offset"), None),
    ],
    ids=["double", "stddev", "approximate", "decimal", "whole"],
)
def test_the_plan_warns_of_digits_that_depend_on_the_order_of_rows(
    spark: SparkSession, made: Callable[[], Column], words: str | None
) -> None:
    app = replace(app_of(total_by_ticker(made().alias("it")), "trades"), results={"": Table(key=("ticker",))})
    found = notes(on_nothing(spark, app))
    assert len(found) == (words is not None) and all(words is not None and note.startswith(words) for note in found), (
        found
    )


@pytest.mark.parametrize(
    ("body", "key", "noted"),
    [
        (lambda trades: trades.select("ticker", "price"), ("ticker",), False),
        (lambda trades: trades.where("price > 1").select("ticker", "event_time", "price"), ("ticker", "event_time"), False),
        (lambda trades: trades.select("partition", "offset", "price"), ("partition", "offset"), False),
        (lambda trades: trades.groupBy("price").agg(F.max("ticker")), ("price",), False),
        (lambda trades: trades.select("price", "ticker"), ("price",), True),
        (lambda trades: trades.select("offset", "ticker"), ("offset",), True),
        (lambda trades: trades.select(F.lower("ticker").alias("ticker"), "price"), ("ticker",), True),
        (lambda trades, more: renamed(trades).union(renamed(more)), ("ticker",), True),
    ],
    ids=["key", "key-and-more", "record", "aggregate", "value", "offset", "computed", "union"],
)  # fmt: skip
def test_the_plan_warns_of_a_table_whose_newest_row_depends_on_batches(
    spark: SparkSession, body: Body, key: tuple[str, ...], noted: bool
) -> None:
    inputs = ("trades", "more") if body.__code__.co_argcount == 2 else ("trades",)
    for result in (Table(key=key), AppendStream(key=key)):
        app = replace(app_of(body, *inputs), results={"": result})
        rehearsal = Rehearsal(spark, app, {})
        found = rehearsal.notes(rehearsal.result())
        assert len(found) == (noted and isinstance(result, Table)), found
        assert all("which one that is depends on where batches end" in note for note in found)


@pytest.mark.parametrize(
    ("body", "result", "watermark", "words"),
    [
        (lambda trade: trade, AppendStream(), None, ["the parameters trade, settings", "the inputs of the app are trades"]),
        (renamed, AppendStream(), "10 secs from now", ["'10 secs from now', is not an interval", '"10 seconds"']),
        (
            lambda trades: trades.groupBy(F.window("event_time", "5 seconds"), "ticker").count(),
            Table(key=("ticker",), emit="final"),
            None,
            ['add watermark="10 seconds" to @app'],
        ),
        (lambda trades: trades.groupBy("ticker").agg(F.first("price")), Table(key=("ticker",)), None, ['F.min_by("price", ']),
    ],
    ids=["parameter", "interval", "final", "first"],
)  # fmt: skip
def test_a_wrong_definition_is_told_what_to_write(
    spark: SparkSession, body: Body, result: Result, watermark: str | None, words: list[str]
) -> None:
    app = replace(app_of(body, "trades", watermark=watermark), results={"": result})
    if words[0].startswith("the parameters"):
        app = replace(app, function=lambda trade, settings: trade)
    with pytest.raises(SwitchyardError) as refused:
        on_nothing(spark, app)
    said = f"{refused.value.what}; {refused.value.fix}"
    assert [word for word in words if word not in said] == [], said


def test_of_several_results_the_plan_warns_of_each_table_without_state(spark: SparkSession) -> None:
    app = replace(
        app_of(lambda trades: trades.select(F.struct("ticker", "price").alias("newest"), F.struct("price").alias("all")), "trades"),
        results={"newest": Table(key=("ticker",)), "all": AppendStream()},
    )  # fmt: skip
    rehearsal = Rehearsal(spark, app, {})
    [note] = rehearsal.notes(rehearsal.result())
    assert note.startswith("the table newest has the row of a key that is written last")
    assert 'groupBy("ticker").agg(F.max_by("price", F.struct("event_time", "partition", "offset"))' in note


def test_an_app_whose_runs_can_not_be_compared_may_read_the_clock_but_not_dice(spark: SparkSession) -> None:
    def timed(trades: DataFrame) -> DataFrame:
        return trades.select("ticker", F.current_timestamp().alias("at"))

    def comparable(settings: AppSettings) -> Comparable:
        return "no" if settings.clock == "wall" else "exact"

    def of(body: Body) -> App:
        return replace(app_of(body, "trades"), settings={"clock": "event"}, comparable=comparable)

    wall = {"clock": "wall"}
    found = run_on_nothing(spark, of(timed), Rehearsal(spark, of(timed), wall))
    assert found.columns == ["ticker", "at"]
    assert (of(timed).comparable_with(wall), of(timed).comparable_with({})) == ("no", "exact")
    with pytest.raises(Refused, match="reads the clock"):
        on_nothing(spark, of(timed))
    dice = of(lambda trades: trades.select("ticker", F.rand().alias("r")))
    with pytest.raises(Refused, match="is not deterministic"):
        # a batch that is run again would differ, too
        run_on_nothing(spark, dice, Rehearsal(spark, dice, wall))


def test_a_left_join_is_refused_for_a_table_and_says_what_it_could_be(spark: SparkSession) -> None:
    def joined(trades: DataFrame, orders: DataFrame) -> DataFrame:
        near = "t.ticker = o.ticker AND o.event_time BETWEEN t.event_time AND t.event_time + INTERVAL 1 SECOND"
        return trades.alias("t").join(orders.alias("o"), F.expr(near), "left").select("t.ticker", "o.price")

    app = app_of(joined, "trades", "orders", watermark="1 second")
    assert on_nothing(spark, app).columns == ["ticker", "price"]
    with pytest.raises(BadUsage, match="app odd can't run as a table") as refused:
        on_nothing(spark, replace(app, results={"": Table(key=("ticker",))}))
    assert "result=AppendStream(...)" in refused.value.fix


class Broken(StatefulProcessor):
    """Fails before it gets a row."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.prices = dict[str, int]()["prices"]

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
        yield from ()


def test_a_state_that_can_not_be_set_up_is_the_authors_to_correct(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, wait = list[StreamingQuery](), StreamingQuery.awaitTermination

    def watched(query: StreamingQuery) -> None:
        ended.append(query)
        wait(query)

    monkeypatch.setattr(StreamingQuery, "awaitTermination", watched)

    def broken(trades: DataFrame) -> DataFrame:
        return trades.groupBy("ticker").transformWithStateInPandas(Broken(), "ticker string, n long", "append", "none")

    app = app_of(broken, "trades")
    line = Broken.init.__code__.co_firstlineno + 1
    raised = f"test_probe.py, line {line}, in init: KeyError: 'prices'"
    with pytest.raises(BadUsage) as refused:
        on_nothing(spark, app)
    assert refused.value.what == f"app odd fails before its first row: {raised}"
    assert refused.value.fix == "correct what runs before the first row, such as the init of a StatefulProcessor"
    with AppTest(spark, app) as test:
        test.send("trades", {"price": 1}, key="IBM")
        with pytest.raises(AppFailed) as failed:
            test.run()
    assert failed.value.what == raised
    # no second try, and a driver asks its query
    assert len(ended) == 2
    error = ended[0].exception()
    assert error is not None and cause(error) == f"KeyError: 'prices' (test_probe.py, line {line}, in init)"


@pytest.mark.parametrize("failures", [2, 3])
def test_an_app_whose_worker_does_not_start_is_tried_again(
    failures: int, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_batch, left = probing._first_batch, [RuntimeError("Python worker failed to connect back.")] * failures

    def on_a_busy_machine(app: App, written: DataFrame) -> Any:
        if left:
            raise left.pop()
        return first_batch(app, written)

    monkeypatch.setattr(probing, "_first_batch", on_a_busy_machine)
    app = app_of(lambda trades: trades.select("ticker", "price"), "trades")
    if failures < 3:
        assert on_nothing(spark, app).columns == ["ticker", "price"]
        return
    with pytest.raises(BadUsage, match=r"app odd fails before its first row: .*Python worker failed") as refused:
        on_nothing(spark, app)
    assert "busy" in refused.value.fix


def counted(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    total = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"ticker": [key[0]], "count": [total]})


def test_what_runs_on_streams_alone_is_tried_as_a_stream(spark: SparkSession) -> None:
    dropped = app_of(
        lambda trades: trades.dropDuplicatesWithinWatermark(["ticker"]).select("ticker", "price"),
        "trades",
        watermark="1 minute",
    )
    assert on_nothing(spark, dropped).columns == ["ticker", "price"]


def test_what_fails_as_soon_as_there_are_rows_is_refused(spark: SparkSession) -> None:
    app = app_of(lambda trades: with_timeout(trades, "NoTimeout"), "trades")
    with pytest.raises(Refused, match="has applyInPandasWithState, which fails with this Spark and this pyarrow") as no:
        on_nothing(spark, app)
    assert "transformWithStateInPandas" in no.value.fix
    with AppTest(spark, app) as test:
        for price in (1, 2):
            test.send("trades", {"price": price}, key="IBM")
        # once this works, it need not be refused
        with pytest.raises(AppFailed, match="'float' object cannot be interpreted as an integer"):
            test.run()


class Idle(StatefulProcessor):
    """Keeps nothing."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        return iter(())

    def close(self) -> None:
        pass


def with_processor(trades: DataFrame, time_mode: str) -> DataFrame:
    return trades.groupBy("ticker").transformWithStateInPandas(Idle(), "ticker string, n long", "append", time_mode)


def with_timeout(trades: Any, timeout: str) -> Any:
    return trades.groupBy("ticker").applyInPandasWithState(
        counted, "ticker string, count long", "count long", "append", timeout
    )


@pytest.mark.parametrize(
    ("body", "by_clock"), [(with_processor, "processingTime"), (with_timeout, "ProcessingTimeTimeout")]
)
def test_timers_go_off_by_event_time_and_not_by_the_clock(
    spark: SparkSession, body: Callable[[DataFrame, str], DataFrame], by_clock: str
) -> None:
    good = app_of(lambda trades: with_processor(trades, "eventTime"), "trades", watermark="10 seconds")
    assert on_nothing(spark, good).columns[0] == "ticker"
    with pytest.raises(Refused, match="has processing-time timers") as refused:
        on_nothing(spark, app_of(lambda trades: body(trades, by_clock), "trades", watermark="10 seconds"))
    assert "eventTime" in refused.value.fix


def test_an_input_that_is_not_read_is_named(spark: SparkSession) -> None:
    with pytest.raises(BadUsage, match="does not read its input orders"):
        on_nothing(spark, app_of(lambda trades, orders: renamed(trades), "trades", "orders"))


def test_what_can_run_is_run(spark: SparkSession) -> None:
    both = app_of(lambda trades, orders: renamed(trades.unionAll(orders)), "trades", "orders")
    assert on_nothing(spark, both).columns == ["ticker", "price"]


@pytest.mark.parametrize(
    ("result", "is_final"),
    [(Table(key=("k",), emit="final"), True), (Table(key=("k",)), False), (AppendStream(), False)],
)
def test_it_says_whether_a_row_of_a_table_comes_once(spark: SparkSession, result: Result, is_final: bool) -> None:
    assert probing._result_as_json(result, ddl_columns("k string, n int"))["final"] is is_final


def test_a_trial_of_a_function_without_python_in_it_needs_no_python_process(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take seconds to start."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python")
    assert on_nothing(spark, app_of(renamed, "trades")).columns == ["ticker", "price"]
    with pytest.raises(BadUsage, match="/no/such/python"):
        on_nothing(spark, app_of(lambda trades: trades.select("ticker", F.udf(str)("price")), "trades"))
