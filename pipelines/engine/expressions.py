"""Whether Spark compiles an app's expressions, or interprets them.

By default Spark writes, compiles and loads Java classes for the expressions of each batch. That pays for large batches
only.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

# Spark's properties, which it reads when it plans a batch
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
# Measured with `stock-stats`: interpreting saves about 80 ms of CPU time in a batch of few records, and takes about 3.4 us
# more for each record
MANY_RECORDS = 20_000
# a release that is still catching up may read a small batch now and then
_SMALL_IN_A_ROW = 30


class Expressions:
    """The choice for the batches of one driver. A batch decides for the next one.

    Both ways give the same rows and the same state, so a query may change between two of its batches.
    """

    def __init__(self, spark: SparkSession, records: int) -> None:
        """`records`: how many the release has to read before it has caught up. Sets the properties of `spark`, which each
        query copies when it starts. If they interpret already, they stay.
        """
        if records < MANY_RECORDS:
            _interpret(spark)
        self._first = all(spark.conf.get(name) == value for name, value in INTERPRETED.items())
        self.start()

    def start(self) -> None:
        """A query starts: its session is a copy again."""
        self._interprets, self._small = self._first, 0

    def after_batch(self, spark: SparkSession, records: int) -> None:
        """Chooses for the next batch of the query whose session is `spark`, after a batch that read `records`."""
        self._small = 0 if records >= MANY_RECORDS else self._small + 1
        if self._interprets and self._small == 0:
            for name in INTERPRETED:
                spark.conf.unset(name)
            self._interprets = False
        elif not self._interprets and self._small >= _SMALL_IN_A_ROW:
            _interpret(spark)
            self._interprets = True


def _interpret(spark: SparkSession) -> None:
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
