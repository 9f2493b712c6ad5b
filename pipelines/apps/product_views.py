"""product-views: how often each product was viewed, and an alert when it has been viewed often enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import AppendStream, AppSettings, Json, Stream, Table, app

if TYPE_CHECKING:
    import pandas as pd


class Views(StatefulProcessor):
    """Counts views by product. `reached`: whether the product has reached `alert_at` views in this batch."""

    def __init__(self, alert_at: int) -> None:
        self._alert_at = alert_at

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._views = handle.getValueState("views", "views bigint")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        [before] = self._views.get() or (0,)
        views = before + sum(len(frame) for frame in rows)
        self._views.update((views,))
        reached = before < self._alert_at <= views
        yield pd.DataFrame({"product": [key[0]], "views": [views], "reached": [reached]})

    def close(self) -> None:
        """Nothing is open."""


@app(
    name="product-views",
    inputs={"views": Stream(topic="product-views", key="product string", value=Json("user string NOT NULL"))},
    results={
        "counts": Table(key=("product",), partitions=4, suite="product_views_counts"),
        "alerts": AppendStream(key=("product",), partitions=1, suite="product_views_alerts"),
    },
    shows="low level",
    oversized="dead-letter",
    settings={"alert_at": 1000},
)
def product_views(views: DataFrame, settings: AppSettings) -> DataFrame:
    """The number of views of each product, and one alert per product when it reaches `alert_at` views.

    Results:

    - `counts` by product: views so far.
    - `alerts` by product: views, which is `alert_at`. A product gets one alert in its life, no matter how its views fall
      into batches.

    A view counts no matter when it comes: there is no watermark, and the state of a product is one number.
    """
    if settings.alert_at < 1:
        raise ValueError("alert_at must be 1 or more")
    viewed = views.select("product")
    counted = viewed.groupBy("product").transformWithStateInPandas(
        Views(settings.alert_at), "product string, views bigint, reached boolean", "update", "none"
    )
    alert = F.struct("product", F.lit(settings.alert_at).cast("bigint").alias("views"))
    return counted.select(F.struct("product", "views").alias("counts"), F.when(F.col("reached"), alert).alias("alerts"))
