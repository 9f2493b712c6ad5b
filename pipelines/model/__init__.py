"""The model: frozen types, no I/O. An app's author needs only this package."""

from pipelines.model.app import App, AppendStream, AppSettings, Json, Raw, Stream, Table, Text, app

__all__ = ["App", "AppSettings", "AppendStream", "Json", "Raw", "Stream", "Table", "Text", "app"]
