"""product-counter: how often each product was viewed, written once a second by a timer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from pipelines.model import AppendStream, AppSettings, Json, Stream, app, time_us

if TYPE_CHECKING:
    import pandas as pd


class Counters(StatefulProcessor):
    """Counts views by product. The `tick` of a view is the first time at which a result includes it, in ms of event
    time.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        # one map, as each tick reads all counters: a MapState gives them to Python one by one, which took 4 times as long
        self._counters = handle.getValueState("counters", "views map<string,bigint>")
        # the counters are as of the last tick: a view that comes out of order may belong before one that is here already
        self._waiting = handle.getMapState("waiting", "tick bigint", "views map<string,bigint>")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for tick, products in frame.groupby("tick")["product"]:
                waiting = self._waiting.getValue((tick,))
                views = dict(waiting[0]) if waiting else {}
                for product, count in products.value_counts().items():
                    views[product] = views.get(product, 0) + count
                self._waiting.updateValue((tick,), (views,))
                self._handle.registerTimer(tick)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        tick = expiredTimerInfo.getExpiryTimeInMs()
        [new] = self._waiting.getValue((tick,)) or ({},)
        [before] = self._counters.get() or ({},)
        counters = before | {product: before.get(product, 0) + count for product, count in new.items()}
        self._counters.update((counters,))
        self._waiting.removeKey((tick,))
        told = [(product, tick, views) for product, views in counters.items()]
        yield pd.DataFrame(told, columns=["product", "tick", "views"])

    def close(self) -> None:
        """Nothing is open."""


@app(
    name="product-counter",
    inputs={"views": Stream(topic="product-views", key="product string", value=Json("user string NOT NULL"))},
    result=AppendStream(key=("product",), partitions=4),
    suite="product_counter",
    shows="low level",
    oversized="dead-letter",
    watermark="10 seconds",
    settings={"every_s": 1, "stores": 1},
)
def product_counter(views: DataFrame, settings: AppSettings) -> DataFrame:
    """The number of views of every product so far, each `every_s` seconds.

    Result: product, at (UTC, `2013-03-01T14:30:01Z`), views (of the product, before `at`).

    Seconds are seconds of event time, so that a replay gives the same result. A timer is set for the end of each second
    in which any product was viewed, and fires when the watermark has passed it. It then writes every counter, also
    those that have not changed. A second without a view writes nothing, because nothing has changed: without records,
    event time does not advance. So the result does not yet include the newest 10 s, and views that are later than that
    are dropped.

    The counters are in one store, which one core handles. With more `stores`, each store has some of the products, and
    a timer that only views of its products set. A second costs a row for every product that was ever viewed.
    """
    if settings.every_s < 1 or settings.stores < 1:
        raise ValueError("every_s and stores must be 1 or more")
    every_ms = settings.every_s * 1000
    # Spark drops late views by it
    placed = views.select(
        "product",
        time_us(views),
        F.expr(f"(unix_millis(event_time) div {every_ms} + 1) * {every_ms}").alias("tick"),
        F.expr(f"pmod(xxhash64(product), {settings.stores})").alias("store"),
    )
    told = placed.groupBy("store").transformWithStateInPandas(
        Counters(), "product string, tick bigint, views bigint", "append", "eventTime"
    )
    at = F.date_format(F.timestamp_millis("tick"), "yyyy-MM-dd'T'HH:mm:ss'Z'")
    return told.select("product", at.alias("at"), "views")
