"""The log of drivers and commands: text for a person, or JSON lines for a log collector (`SWITCHYARD_LOG_FORMAT`).

No line holds a secret, or a control character of a record, an error or an app.
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
    """Message and traceback without secrets, in which only line feeds and tabs are obeyed by a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(masked(super().format(record)), lines=True)


class JsonLines(logging.Formatter):
    """A record as one line: `time` (RFC 3339, UTC), `level`, `release` where there is one, `logger`, `message`, and
    `exception`, the traceback, where there is one.
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
    """One line of the log. A line break within is escaped, as any other control character. `at_s`: default, now."""
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
    """What this module sets up, so that a second time replaces the first."""


class _StandardError(_Ours):
    """Writes to standard error as it is now, not as it was when this was made."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _is_unhandled(record: logging.LogRecord) -> bool:
    """Whether no library takes care of it: one that has a handler, if only to drop what it says, speaks to nobody here."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger is not logging.getLogger():
        if logger.handlers:
            return False
        logger = logger.parent
    return True


def configure_driver(form: LogFormat, release: str) -> None:
    """Sets up the log of a driver's process, on standard output, from INFO on."""
    _replace(_Ours(sys.stdout), JsonLines(release) if form == "json" else VisibleFormatter(TEXT), logging.INFO)


def configure_command(form: LogFormat) -> None:
    """Sets up the log of a command's process, on standard error, from WARNING on."""
    handler = _StandardError(sys.stderr)
    if form == "text":
        handler.addFilter(_is_unhandled)
    _replace(handler, JsonLines() if form == "json" else VisibleFormatter(), logging.WARNING)


def configure_service(form: LogFormat) -> None:
    """Sets up the log of a command that runs until it is told to end, on standard error, from INFO on."""
    _replace(_StandardError(sys.stderr), JsonLines() if form == "json" else VisibleFormatter(TEXT), logging.INFO)


def _replace(handler: logging.Handler, formatter: logging.Formatter, level: int) -> None:
    root = logging.getLogger()
    root.setLevel(level)
    for old in [each for each in root.handlers if isinstance(each, _Ours)]:
        root.removeHandler(old)
    handler.setFormatter(formatter)
    root.addHandler(handler)
