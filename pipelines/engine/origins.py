"""Where in an author's code a column was made, which Spark names when the column fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import utils

# Spark's property. PySpark reads it once, and keeps what it has read in `_enable_debugging_cache`
PROPERTY = "spark.python.sql.dataFrameDebugging.enabled"
# PySpark's loggers of errors that name such a line: they print Spark's plan and stack trace as JSON
LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


@contextmanager
def lines_kept() -> Iterator[None]:
    """Makes Spark keep the line where each column in the block is made.

    For that, PySpark makes some ten more calls of the JVM for each column, and tries to import IPython each time. So
    sessions switch it off (`PROPERTY`), and only an app's function has it on.
    """
    utils._enable_debugging_cache = True  # type: ignore[assignment]
    try:
        yield
    finally:
        # the property decides again
        utils._enable_debugging_cache = None
