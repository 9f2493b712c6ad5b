"""Alerts: what someone must know of, as data. Here they become text: a log line and, if there is one, a webhook's `{"text": ...}`."""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

from orchestration.operations.looking.unread import unread_in_words
from pipelines.secrets import masked, remember

log = logging.getLogger("switchyard.alerts")

WEBHOOK = "SWITCHYARD_ALERT_WEBHOOK"
# in all: whoever tells of something has more to do
_TIMEOUT_S = 10.0


class Severity(IntEnum):
    """How bad it is, as the level of the log line. WARNING: the platform goes on. ERROR: someone has to act."""

    WARNING = logging.WARNING
    ERROR = logging.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFailed:
    """A release has failed. `failure`: why, as the registry has it. `log`: the last lines of its driver."""

    release: str
    failure: str | None
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A release was started too often and is set to failed. `reason`, and the last lines of its driver."""

    release: str
    reason: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHung:
    """A driver that lived and was not heard of was fenced and ended; it is replaced. `why`, and its last lines."""

    release: str
    why: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesUnread:
    """The registry has entries that this version can't read. `held`: how many of them hold what they are about."""

    entries: int
    held: int
    release: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNotRun:
    """The check of a release that is watched did not run. `error`: what is wrong."""

    release: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksNotEvaluated:
    """Of a release that is watched, expectations could not be evaluated. `failures`: all that did not hold, and why."""

    release: str
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """A run of Dagster has failed. `release`: that it was about; None: about none, or not known."""

    job: str
    run_id: str
    release: str | None
    error: str


Alert = ReleaseFailed | GivenUp | DriverHung | EntriesUnread | CheckNotRun | ChecksNotEvaluated | RunFailed
# takes an alert to whoever must know of it
Send = Callable[[Alert], None]


def to_nobody(_: Alert) -> None:
    """Sends nothing."""


def severity(alert: Alert) -> Severity:
    """How bad `alert` is."""
    match alert:
        case ReleaseFailed() | GivenUp() | RunFailed():
            return Severity.ERROR
        case EntriesUnread():
            return Severity.ERROR if alert.held else Severity.WARNING
        case DriverHung() | CheckNotRun() | ChecksNotEvaluated():
            return Severity.WARNING
        case _:
            assert_never(alert)


def told(alert: Alert) -> str:
    """`alert` in words, for people alone: nothing is decided by them."""
    match alert:
        case ReleaseFailed():
            return f"{alert.release} has failed: {alert.failure}\n{alert.log}"
        case GivenUp():
            return f"{alert.release} has failed: {alert.reason}; `switchyard start {alert.release} --execute` tries again\n{alert.log}"
        case DriverHung():
            return f"the driver of {alert.release} hangs: {alert.why}; it is fenced, ended and replaced\n{alert.log}"
        case EntriesUnread():
            return f"{unread_in_words(alert.entries, alert.held)}; see `switchyard registry check`"
        case CheckNotRun():
            return f"the check of {alert.release} could not run: {alert.error}"
        case ChecksNotEvaluated():
            return f"checks of {alert.release} could not be evaluated: {'; '.join(alert.failures)}"
        case RunFailed():
            of = f" of {alert.release}" if alert.release else ""
            return f"{alert.job}{of} failed (run {alert.run_id[:8]}): {alert.error}"
        case _:
            assert_never(alert)


def send(alert: Alert, webhook_url: str | None) -> None:
    """Tells `alert`. A webhook that can't be reached is logged: an alert must not fail what it tells of."""
    text = told(alert)
    log.log(severity(alert), "alert: %s", text)
    if webhook_url is None:
        return
    failed: list[Exception] = []

    def post() -> None:
        try:
            _post(webhook_url, json.dumps({"text": text}).encode())
        except Exception as error:
            failed.append(error)

    # urllib's limit is for each step: the look-up of the name has none, redirects and a slow answer add up
    posting = threading.Thread(target=post, name="alert", daemon=True)
    posting.start()
    posting.join(_TIMEOUT_S)
    if posting.is_alive():
        log.error("the webhook could not be told: no answer within %g s; see whether its server answers", _TIMEOUT_S)
    for error in failed:
        # what is wrong with the address itself shows it, or a part of it
        why = masked(str(error)) if isinstance(error, OSError) else type(error).__name__
        log.error("the webhook could not be told: %s", why)


def _post(url: str, body: bytes) -> None:
    # one that is no URL is refused here, by an error that shows it
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass


def webhook() -> str | None:
    """The webhook that the environment names, if it names one: a secret, as who knows it can write there."""
    url = os.environ.get(WEBHOOK) or None
    if url:
        remember({WEBHOOK: url})
    return url


def to_environment(alert: Alert) -> None:
    """Tells `alert` to the webhook that the environment names, if it names one."""
    send(alert, webhook())
