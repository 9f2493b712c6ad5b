"""The process that Spark forks its Python workers from: Spark's own, with the modules that apps use already loaded.

Otherwise each worker loads pandas and Arrow itself, which takes longer than a small batch.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import daemon
from pyspark.sql.pandas import serializers, types

from pipelines.engine import many_keys, state_client

__all__ = ["daemon", "pa", "pc", "pd", "serializers", "types"]

if __name__ == "__main__":
    many_keys.install()
    state_client.install()
    daemon.manager()  # type: ignore[no-untyped-call]
