"""The log of a process: lines that hold no control character of a record, an error or an app, and no secret."""

from __future__ import annotations

import logging
import sys

from pipelines.model.text import visible
from pipelines.secrets import masked


class VisibleFormatter(logging.Formatter):
    """Message and traceback without secrets, in which only line feeds and tabs are obeyed by a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(masked(super().format(record)), lines=True)


def log_to_stdout() -> None:
    """Has this process log to standard output, each line with time and level."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
