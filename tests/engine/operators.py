"""Small apps, one for each operator on the page docs/operators.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import App, Changelog, Json, StaticTable, Stream, as_of, join_tables
from pipelines.model.app import Input, Result

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.state import GroupState

Body = Callable[..., Any]

SOURCE = ("topic", "partition", "offset")
ROW, USER, WINDOW = ("partition", "offset"), ("user",), ("user", "at")
LABELS = "page string, label string"
# table -> the columns of its value
TABLES = {"plans": "plan string", "limits": "most int"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An app's function that uses an operator. `key`: of its result."""

    body: Body
    key: tuple[str, ...]
    inputs: tuple[str, ...] = ("clicks",)
    watermark: str | None = "10 seconds"

    def app(self, result: Result) -> App:
        return App(
            name="odd",
            inputs={name: source_of(name) for name in self.inputs},
            results={"": result},
            function=lambda settings, **given: self.body(**given),
            watermark=self.watermark,
        )


def source_of(name: str) -> Input:
    """`plans` and `limits` are tables, `titles` a static one; the others are streams with the columns of a click."""
    if name == "titles":
        return StaticTable(topic=name, key="id string", value=Json("page string, title string"))
    if name in TABLES:
        return Changelog(topic=name, key="user string", value=Json(TABLES[name]))
    return Stream(topic=name, key="user string", value=Json("page string, n int, amount double, price decimal(8,2)"))


# without the types of its old forms
in_pandas: Any = F.pandas_udf

OPERATORS: dict[str, Operator] = {}


def operator(
    name: str, key: tuple[str, ...], *inputs: str, watermark: str | None = "10 seconds"
) -> Callable[[Body], Body]:
    """Adds a function as the one of the row `name`."""

    def add(body: Body) -> Body:
        assert name not in OPERATORS, name
        OPERATORS[name] = Operator(body=body, key=key, inputs=inputs or ("clicks",), watermark=watermark)
        return body

    return add


def row(*values: Column | str) -> Body:
    """Selects `values` of each click, with what names the click."""
    return lambda clicks: clicks.select("user", *values, *SOURCE)


def value(name: str, made: Callable[[], Column]) -> None:
    """A row of the page about an expression."""
    operator(name, ROW)(lambda clicks: clicks.select("user", made().alias("it"), *SOURCE))


def aggregate(name: str, made: Callable[[], Column]) -> None:
    """A row of the page about a function of aggregates."""
    operator(name, USER)(lambda clicks: clicks.groupBy("user").agg(made().alias("it")))


def at(frame: DataFrame, *values: str) -> DataFrame:
    return frame.select("user", F.date_format("w.start", "HH:mm:ss").alias("at"), *values)


def window(*sizes: str) -> Column:
    return F.window("event_time", *sizes).alias("w")


def labels(clicks: DataFrame) -> DataFrame:
    return clicks.sparkSession.createDataFrame([("home", "start"), ("cart", "buy")], LABELS)


# rows one by one
operator("select, withColumn", ROW)(
    lambda clicks: clicks.withColumn("more", F.col("n") + 1).select("user", "more", *SOURCE)
)
operator("where, filter", ROW)(lambda clicks: clicks.where("n > 2").select("user", "page", *SOURCE))
value("built-in functions", lambda: F.upper(F.concat("user", "page")))
operator("explode", ("user", "letter"))(
    lambda clicks: clicks.select("user", F.explode(F.split("page", "")).alias("letter"), F.lit(1).alias("one"))
)
operator("union", ROW, "clicks", "views")(
    lambda clicks, views: row("page")(clicks).union(row("page")(views))
)  # fmt: skip
operator("repartition, coalesce", ROW)(lambda clicks: row("page")(clicks.repartition(3, "user").coalesce(2)))


def sql(clicks: DataFrame) -> DataFrame:
    clicks.createOrReplaceTempView("clicks_of_odd")
    return clicks.sparkSession.sql("select user, page, topic, partition, offset from clicks_of_odd where n > 2")


operator("spark.sql", ROW)(sql)
value("Python UDF", lambda: F.udf(lambda page: page[::-1], "string")("page"))


def backwards(page: pd.Series) -> pd.Series:
    return page.str[::-1]


value("pandas UDF", lambda: in_pandas(backwards, "string")("page"))


def counted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"user": ["all"], "n": [len(frame)]})


def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(n=frame["n"] * 2)


ROWS_OF_N = "user string, n int, topic string, partition int, offset long"
operator("mapInPandas, row by row", ROW)(lambda clicks: row("n")(clicks).mapInPandas(doubled, ROWS_OF_N))
operator("mapInPandas, over a frame", USER)(
    lambda clicks: clicks.select("user").mapInPandas(counted, "user string, n int")
)

# aggregates
aggregate("count, min, max", lambda: F.struct(F.count("*"), F.min("n"), F.max("price")))
aggregate("sum, avg of whole numbers and decimals", lambda: F.struct(F.sum("n"), F.avg("price")))
aggregate("sum, avg of double and float", lambda: F.sum("amount"))
aggregate("min_by, max_by", lambda: F.max_by("page", F.struct("event_time", "partition", "offset")))
aggregate("approx_count_distinct", lambda: F.approx_count_distinct("page"))
aggregate("size(collect_set)", lambda: F.size(F.collect_set("page")))
aggregate("sort_array(collect_list)", lambda: F.sort_array(F.collect_list("page")))
aggregate("percentile", lambda: F.percentile("n", 0.5))

# windows
operator("window, tumbling", WINDOW)(lambda clicks: at(clicks.groupBy("user", window("10 seconds")).count(), "count"))
operator("window, sliding", WINDOW)(
    lambda clicks: at(clicks.groupBy("user", window("10 seconds", "5 seconds")).count(), "count")
)
operator("window without a watermark", WINDOW, watermark=None)(
    lambda clicks: at(clicks.groupBy("user", window("10 seconds")).count(), "count")
)
operator("session_window", WINDOW)(
    lambda clicks: at(clicks.groupBy("user", F.session_window("event_time", "6 seconds").alias("w")).count(), "count")
)


def chained(clicks: DataFrame) -> DataFrame:
    each = clicks.groupBy("user", window("10 seconds")).count()
    minute = F.window(F.window_time("w"), "1 minute").alias("w")
    return at(each.groupBy("user", minute).agg(F.max("count").alias("most")), "most")


operator("window of windows", WINDOW)(chained)

# duplicates
operator("dropDuplicates", USER)(lambda clicks: clicks.dropDuplicates(["user"]).select("user", F.lit(1).alias("one")))
operator("dropDuplicates with event_time", (*USER, "time"))(
    lambda clicks: clicks.dropDuplicates(["user", "event_time"]).select(
        "user", F.date_format("event_time", "HH:mm:ss").alias("time"), F.lit(1).alias("one")
    )
)
operator("dropDuplicatesWithinWatermark", USER)(
    lambda clicks: clicks.dropDuplicatesWithinWatermark(["user"]).select("user", F.lit(1).alias("one"))
)
operator("distinct", ("user", "page"))(
    lambda clicks: clicks.select("user", "page", F.lit(1).alias("one")).distinct()
)  # fmt: skip

# joins
NEAR = "c.user = v.user AND v.event_time BETWEEN c.event_time AND c.event_time + INTERVAL 5 SECONDS"


def join(how: str, on: str = NEAR) -> Body:
    def joined(clicks: DataFrame, views: DataFrame) -> DataFrame:
        both = clicks.alias("c").join(views.alias("v"), F.expr(on), how)
        if how in ("leftsemi", "leftanti"):
            return both.select("c.user", "c.offset", "c.page")
        user = F.coalesce("c.user", "v.user").alias("user")
        # of a row without a match, the offset of the other side is null
        ids = F.concat_ws("/", F.col("c.offset").cast("string"), F.col("v.offset").cast("string")).alias("ids")
        return both.select(user, ids, "c.page", F.col("v.page").alias("seen"))

    return joined


JOINED = ("user", "ids")
operator("inner join with a time range", JOINED, "clicks", "views")(join("inner"))
operator("inner join without one", JOINED, "clicks", "views")(join("inner", "c.user = v.user"))
operator("left, right outer join with a time range", JOINED, "clicks", "views")(join("left"))
operator("full outer join with a time range", JOINED, "clicks", "views")(join("full"))
operator("left semi join with a time range", ("user", "offset"), "clicks", "views")(join("leftsemi"))
operator("join with rows in the code", ROW)(lambda clicks: row("label")(clicks.join(labels(clicks), "page", "left")))
LABEL_FILE = Path(__file__).with_name("labels.json")


def with_file(clicks: DataFrame) -> DataFrame:
    return row("label")(clicks.join(clicks.sparkSession.read.schema(LABELS).json(str(LABEL_FILE)), "page", "left"))


operator("join with a file", ROW)(with_file)
operator("join with a StaticTable", ROW, "clicks", "titles")(
    lambda clicks, titles: row("title")(clicks.join(titles, "page", "left"))
)
operator("as_of", ROW, "clicks", "plans")(lambda clicks, plans: row("plan")(as_of(clicks, plans, on="user")))
operator("join_tables", USER, "plans", "limits")(lambda plans, limits: join_tables(plans, limits))


# state of your own
def total(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    sum_ = (state.get[0] if state.exists else 0) + sum(int(frame["n"].sum()) for frame in frames)
    state.update((sum_,))
    yield pd.DataFrame({"user": [key[0]], "total": [sum_]})


class Total(StatefulProcessor):
    """Adds up `n` of each user."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        before = self._total.get()
        sum_ = (0 if before is None else before[0]) + sum(int(frame["n"].sum()) for frame in rows)
        self._total.update((sum_,))
        yield pd.DataFrame({"user": [key[0]], "total": [sum_]})

    def close(self) -> None:
        pass


TOTAL = "user string, total long"


def processor(mode: str, time: str = "none") -> Body:
    return lambda clicks: clicks.groupBy("user").transformWithStateInPandas(Total(), TOTAL, mode, time)


operator("transformWithStateInPandas", USER)(processor("update"))

# refused, whatever the result is
value("rand, randn, uuid, shuffle", lambda: F.rand())
value("current_timestamp, now", lambda: F.now())
value("current_date", lambda: F.current_date())
value("monotonically_increasing_id", lambda: F.monotonically_increasing_id())
value("UDF asNondeterministic", lambda: F.udf(lambda page: page, "string").asNondeterministic()("page"))
aggregate("first, any_value", lambda: F.first("page"))
aggregate("mode", lambda: F.mode("page"))
aggregate("last", lambda: F.last("page"))
aggregate("collect_list, collect_set", lambda: F.collect_list("page"))
aggregate("listagg", lambda: F.expr("listagg(page, ',')"))
aggregate("count_distinct", lambda: F.count_distinct("page"))


def mean(amount: pd.Series) -> float:
    return float(amount.mean())


aggregate("pandas UDF in agg", lambda: in_pandas(mean, "double")("amount"))
operator("applyInPandas", ("user", "n"))(
    lambda clicks: clicks.select("user", "n", "page").groupBy("user").applyInPandas(
        lambda frame: frame, "user string, n int, page string"
    )
)  # fmt: skip
operator("applyInPandasWithState", USER)(
    lambda clicks: clicks.groupBy("user").applyInPandasWithState(total, TOTAL, "total long", "update", "NoTimeout")
)
operator("limit, offset", ROW)(lambda clicks: row("page")(clicks.limit(3)))
operator("orderBy, sort", ROW)(lambda clicks: row("page")(clicks.orderBy("n")))
operator("sample", ROW)(lambda clicks: row("page")(clicks.sample(0.5, 1)))
operator("over", ROW)(
    lambda clicks: row(F.row_number().over(Window.partitionBy("user").orderBy("n")).alias("nth"))(clicks)
)
operator("pivot with its values", USER)(lambda clicks: clicks.groupBy("user").pivot("page", ["home", "cart"]).count())
operator("pivot without values", USER)(lambda clicks: clicks.groupBy("user").pivot("page").count())
operator("intersect, subtract", USER, "clicks", "views")(
    lambda clicks, views: clicks.select("user", "page").subtract(views.select("user", "page"))
)
operator("union or join of an input with itself", ROW)(lambda clicks: row("page")(clicks.union(clicks)))
operator("left anti join", ("user", "offset"), "clicks", "views")(join("leftanti"))
operator("outer join without a time range", JOINED, "clicks", "views")(join("left", "c.user = v.user"))
operator("count", ROW)(lambda clicks: clicks.limit(clicks.count()))
operator("collect, first, show, toPandas", ROW)(lambda clicks: clicks.limit(len(clicks.collect())))
operator("cache, persist", ROW)(lambda clicks: row("page")(clicks.cache()))


def written(clicks: DataFrame) -> DataFrame:
    clicks.write.format("noop").mode("overwrite").save()
    return row("page")(clicks)


operator("write", ROW)(written)


def started(clicks: DataFrame) -> DataFrame:
    clicks.writeStream.foreachBatch(lambda rows, number: None).start()
    return row("page")(clicks)


operator("writeStream, foreachBatch", ROW)(started)


def other_stream(clicks: DataFrame) -> DataFrame:
    other = clicks.sparkSession.readStream.format("rate").load()
    same_columns = other.select(F.lit("a"), F.lit("b"), F.lit("c"), F.lit(0), "value")
    return row("page")(clicks).union(same_columns)


operator("readStream", ROW)(other_stream)


def other_topic(clicks: DataFrame) -> DataFrame:
    reader = clicks.sparkSession.read.format("kafka").option("kafka.bootstrap.servers", "localhost:9")
    plans = reader.option("subscribe", "plans").load().select(F.col("key").cast("string").alias("user"), "value")
    return clicks.join(plans, "user").select("user", F.col("value").alias("plan"), *(f"clicks.{c}" for c in SOURCE))


operator("read of a topic", ROW)(lambda clicks: other_topic(clicks.alias("clicks")))
operator("timers by the clock", USER)(processor("update", "processingTime"))
