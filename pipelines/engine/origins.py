"""Where in an author's code a column was made, which Spark names when the column fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import utils

# Spark's property. PySpark reads it once in a process
PROPERTY = "spark.python.sql.dataFrameDebugging.enabled"


@contextmanager
def lines_kept() -> Iterator[None]:
    """Has Spark keep the line of each column that is made in the block.

    PySpark calls the JVM eight times more for each column to do so, and tries to import IPython twice. So sessions switch
    it off (`PROPERTY`), and only an app's function has it on.
    """
    before = utils._enable_debugging_cache
    utils._enable_debugging_cache = True  # type: ignore[assignment]
    try:
        yield
    finally:
        utils._enable_debugging_cache = before
