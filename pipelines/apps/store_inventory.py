"""store-inventory: what each store has in stock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import AppSettings, Json, Stream, Table, app

if TYPE_CHECKING:
    import pandas as pd


class Stock(StatefulProcessor):
    """The state of a store: the quantity of each SKU."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        # one map, as each update tells all of it
        self._stock = handle.getValueState("stock", "quantities map<string,bigint>")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        [before] = self._stock.get() or ({},)
        stock = dict(before)
        for frame in rows:
            for sku, change in zip(frame["sku"].tolist(), frame["quantity"].tolist(), strict=True):
                stock[sku] = stock.get(sku, 0) + change
        # in one order, so that the same stock makes the same record
        stock = dict(sorted(stock.items()))
        self._stock.update((stock,))
        yield pd.DataFrame([(*key, stock)], columns=["store", "stock"])

    def close(self) -> None:
        """Nothing is open."""


@app(
    name="store-inventory",
    inputs={
        "events": Stream(
            topic="item-events", key="store string", value=Json("sku string NOT NULL, quantity int NOT NULL")
        )
    },
    result=Table(key=("store",), partitions=4),
    suite="store_inventory",
    shows="aggregate",
    oversized="dead-letter",
)
def store_inventory(events: DataFrame, settings: AppSettings) -> DataFrame:
    """The stock of each store: the sum of what came in and went out, by SKU.

    Result: store, stock (SKU -> quantity, by SKU). An event's quantity is what comes in, or less than 0 for what goes
    out. A SKU that is sold out stays, with 0. A quantity below 0 means that more went out than was known to be there.
    Neither event times nor the order matter: a late event counts. An event that comes twice counts twice.

    Spark SQL has no aggregate that adds up maps, and no second aggregate on a table's updates. So this is Python: one
    call for each store of a batch. Each batch reads and writes the whole stock of a store that it has events for. A
    stock that is larger than a record may be, 1 MiB or about 40,000 short SKUs, becomes a dead letter.
    """
    changes = events.select("store", "sku", "quantity")
    return changes.groupBy("store").transformWithStateInPandas(
        Stock(), "store string, stock map<string,bigint>", "update", "none"
    )
