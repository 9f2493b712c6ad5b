"""The model: frozen types, no I/O. An app's author needs only this package."""

from pipelines.model.app import (
    App,
    AppendStream,
    AppSettings,
    Avro,
    Changelog,
    Comparable,
    Json,
    Raw,
    ResultOf,
    StaticTable,
    Stream,
    Table,
    Text,
    app,
)
from pipelines.model.as_of import as_of
from pipelines.model.join_tables import join_tables
from pipelines.model.python_time import time_us

__all__ = [
    "App",
    "AppSettings",
    "AppendStream",
    "Avro",
    "Changelog",
    "Comparable",
    "Json",
    "Raw",
    "ResultOf",
    "StaticTable",
    "Stream",
    "Table",
    "Text",
    "app",
    "as_of",
    "join_tables",
    "time_us",
]
