"""The log of drivers and commands: text for a person, or JSON lines for a log collector (`SWITCHYARD_LOG_FORMAT`).

No line contains a secret, or a control character of a record, an error or an app.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import IO, Literal

from pipelines.model.text import json_text, visible
from pipelines.secrets import masked

LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(message)s"


class VisibleFormatter(logging.Formatter):
    """Message and traceback without secrets. Line feeds and tabs are the only control characters that are kept."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(masked(super().format(record)), lines=True)


class JsonLines(logging.Formatter):
    """A record as one line: `time` (RFC 3339, UTC), `level`, `release` if there is one, `logger`, `message`, and
    `exception`, the traceback, if there is one.
    """

    def __init__(self, release: str | None = None) -> None:
        super().__init__()
        self._release = release

    def format(self, record: logging.LogRecord) -> str:
        exception = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None
        return json_line(
            record.levelname,
            record.getMessage(),
            release=self._release,
            logger=record.name,
            exception=exception,
            at_s=record.created,
        )


def json_line(
    level: str,
    message: str,
    *,
    release: str | None = None,
    logger: str = "switchyard",
    exception: str | None = None,
    at_s: float | None = None,
) -> str:
    """One line of the log. Line breaks and other control characters are escaped. `at_s`: default, now."""
    at = datetime.now(UTC) if at_s is None else datetime.fromtimestamp(at_s, UTC)
    line = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level,
        "release": release,
        "logger": logger,
        "message": masked(message),
        "exception": exception and masked(exception),
    }
    return json_text({name: value for name, value in line.items() if value is not None})


class _Ours(logging.StreamHandler[IO[str]]):
    """A handler that this module set up, so that a second call replaces it."""


class _StandardError(_Ours):
    """Writes to the current standard error, not to the one when this was created."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _is_unhandled(record: logging.LogRecord) -> bool:
    """Whether no library handles it. A logger with a handler of its own, even a silent one, isn't shown here."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger is not logging.getLogger():
        if logger.handlers:
            return False
        logger = logger.parent
    return True


def configure_driver(form: LogFormat, release: str) -> None:
    """Sets up the log of a driver's process: standard output, from INFO up."""
    _replace(_Ours(sys.stdout), JsonLines(release) if form == "json" else VisibleFormatter(TEXT), logging.INFO)


def configure_command(form: LogFormat) -> None:
    """Sets up the log of a command's process: standard error, from WARNING up."""
    handler = _StandardError(sys.stderr)
    if form == "text":
        handler.addFilter(_is_unhandled)
    _replace(handler, JsonLines() if form == "json" else VisibleFormatter(), logging.WARNING)


def configure_service(form: LogFormat) -> None:
    """Sets up the log of a command that runs until it is stopped: standard error, from INFO up."""
    _replace(_StandardError(sys.stderr), JsonLines() if form == "json" else VisibleFormatter(TEXT), logging.INFO)


def _replace(handler: logging.Handler, formatter: logging.Formatter, level: int) -> None:
    root = logging.getLogger()
    root.setLevel(level)
    for old in [each for each in root.handlers if isinstance(each, _Ours)]:
        root.removeHandler(old)
    handler.setFormatter(formatter)
    root.addHandler(handler)
