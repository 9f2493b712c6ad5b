"""A test kit for people who write apps: rows in, batches by hand, rows and dead letters out. It needs no broker."""

from pipelines.engine.records import RowTooLarge
from pipelines.testing.apptest import AppFailed, AppTest, Batch, Letter, at
from pipelines.testing.session import session

__all__ = ["AppFailed", "AppTest", "Batch", "Letter", "RowTooLarge", "at", "session"]
