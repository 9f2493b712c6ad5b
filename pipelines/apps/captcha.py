"""captcha: browsers that act so often that they should show that a person uses them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from pipelines.model import AppendStream, AppSettings, Json, Stream, Table, app

if TYPE_CHECKING:
    import pandas as pd

ACTIONS, VERIFICATIONS = "browser-actions", "captcha"
_SOURCE = ("topic", "partition", "offset")
# a row is a request, with the record of its action, or the count after the batch; the columns of the other are null
COLUMNS = "browser_hash string, actions bigint, topic string, partition int, offset bigint"


class Actions(StatefulProcessor):
    """The state of a browser: how often it acted, and whether its last verification was passed."""

    def __init__(self, ask_at: int) -> None:
        self._ask_at = ask_at

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._browser = handle.getValueState("browser", "actions bigint, verified boolean")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        # here, as Dagster imports all apps, and pandas takes long; Python workers have it loaded
        import pandas as pd

        actions, verified = self._browser.get() or (0, False)
        told: list[tuple[Any, ...]] = []
        # Spark gives the records of a batch in any order, and a large batch in several frames
        batch = (row for frame in rows for row in frame.to_numpy().tolist())
        for _, acts, passed, topic, partition, offset in sorted(batch, key=itemgetter(4, 5)):
            if not acts:
                verified = passed
                continue
            actions += 1
            if actions >= self._ask_at and not verified:
                told.append((*key, actions, topic, partition, offset))
        self._browser.update((actions, verified))
        # a verification alone is no count: there is nothing that it could be joined to
        if actions:
            told.append((*key, 0 if verified else actions, None, None, None))
        if told:
            # objects: pandas would make floats of whole numbers in a column with nulls
            yield pd.DataFrame(told, columns=[column.split()[0] for column in COLUMNS.split(", ")], dtype=object)

    def close(self) -> None:
        """Nothing is open."""


@app(
    name="captcha",
    inputs={
        "logs": Stream(topic="logs", value=Json("logger_name string NOT NULL, context map<string,string>")),
    },
    results={
        "counts": Table(key=("browser_hash",), partitions=4, suite="captcha_counts"),
        "requests": AppendStream(key=("browser_hash",), partitions=4, suite="captcha_requests"),
    },
    shows="join",
    oversized="dead-letter",
    settings={"ask_at": 5},
)
def captcha(logs: DataFrame, settings: AppSettings) -> DataFrame:
    """Counts the actions of each browser, and asks for a captcha from the `ask_at`th on, until it is passed.

    Results:

    - `counts` by browser_hash: actions so far, or 0 while the browser is verified.
    - `requests` by browser_hash: actions (so far), and topic, partition and offset of the action. There is one for each
      action from the `ask_at`th on that a browser makes while it is not verified.

    The logs contain both tables that are joined here. The logger tells them apart: an action is a record of
    `browser-actions`, a verification is one of `captcha`. The browser is `context.browserHash`; a record without it is
    not counted. Only the last verification of a browser counts. The browser passed it if `context.passed` is `true`.
    Actions are also counted while a browser is verified, so after a verification that it did not pass, the count is
    that of all actions again.

    The record with the lower offset comes first, as in a join of two tables in Kafka Streams. Event times don't matter,
    and batches make no difference. For that, the producer must put all records of a browser into one partition. State:
    two values for each browser. It is Python, because each action depends on what came before it: one call for each
    browser of a batch.

    Both tables are joined by their key. A second form, with the table of verified browsers copied to every task, would
    give nothing: a count needs all actions of its browser in one task, and the verifications of that browser go to the
    same task. No other task would read its copy. docs/operators.md says why there is no broadcast of a table that
    changes, and what to use instead.
    """
    if settings.ask_at < 1:
        raise ValueError("ask_at must be 1 or more")
    about = logs.where(F.col("logger_name").isin(ACTIONS, VERIFICATIONS)).select(
        F.col("context")["browserHash"].alias("browser_hash"),
        (F.col("logger_name") == ACTIONS).alias("acts"),
        F.coalesce(F.col("context")["passed"] == "true", F.lit(False)).alias("passed"),
        *_SOURCE,
    )
    found = (
        about.where(F.col("browser_hash").isNotNull())
        .groupBy("browser_hash")
        .transformWithStateInPandas(Actions(settings.ask_at), COLUMNS, "update", "none")
    )
    is_request = F.col("offset").isNotNull()
    return found.select(
        F.when(~is_request, F.struct("browser_hash", "actions")).alias("counts"),
        F.when(is_request, F.struct("browser_hash", "actions", *_SOURCE)).alias("requests"),
    )
