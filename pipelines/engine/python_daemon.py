"""The process that Spark forks its Python workers from: Spark's own, with the modules that apps use already loaded.

Otherwise each worker loads pandas and Arrow itself, which takes longer than a small batch.
"""

from __future__ import annotations

from socket import socket
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import daemon
from pyspark.sql.pandas import serializers, types

from pipelines.engine import many_keys, state_client

__all__ = ["daemon", "pa", "pc", "pd", "serializers", "types"]


def install_quiet_end() -> None:
    """Lets a worker end without a traceback where Spark has closed its connection, as it does when it cancels a task.

    What an app raises never gets here: the worker has told Spark before.
    """
    worker: Any = daemon.worker

    def quiet(sock: socket, authenticated: bool) -> int:
        try:
            return int(worker(sock, authenticated))
        except (EOFError, ConnectionError) as error:
            # it may have ended while it told Spark of another error, which nobody else shows
            if error.__context__ is not None:
                raise
            return 1

    daemon.worker = quiet


if __name__ == "__main__":
    install_quiet_end()
    many_keys.install()
    state_client.install()
    daemon.manager()  # type: ignore[no-untyped-call]
