"""Alerts: what someone must know, as data. They are sent as text: a log line and, if set, `{"text": ...}` to a webhook."""

from __future__ import annotations

import json
import logging
import os
import threading
import urllib.request
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, assert_never

from orchestration.operations.looking.unread import heartbeats_in_words, unread_in_words
from pipelines.secrets import masked, remember

log = logging.getLogger("switchyard.alerts")

WEBHOOK = "SWITCHYARD_ALERT_WEBHOOK"
# in total, so that a slow webhook does not hold up the sender
_TIMEOUT_S = 10.0


class Severity(IntEnum):
    """How bad it is, as the level of the log line. WARNING: the platform continues by itself. ERROR: someone must act."""

    WARNING = logging.WARNING
    ERROR = logging.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFailed:
    """A release has failed. `failure`: the reason in the registry. `log`: the last lines of its driver's log."""

    release: str
    failure: str | None
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """A release was started too often and is set to failed. `log`: the last lines of its driver's log."""

    release: str
    reason: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHung:
    """A driver lived but sent no heartbeats; it was fenced and is replaced. `log`: the last lines of its log."""

    release: str
    why: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntriesUnread:
    """The registry has entries that this version can't read. `held`: how many of them it must understand."""

    entries: int
    held: int
    release: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatsUnread:
    """Someone writes heartbeats that this version can't read. `records`: how many in the last minute."""

    records: int
    release: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressUnread:
    """A release that should run isn't started, because its newest progress record can't be read. `why`: and what helps."""

    release: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckNotRun:
    """The check of a watched release could not run. `error`: what is wrong."""

    release: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksNotEvaluated:
    """Some expectations of a watched release could not be evaluated. `failures`: which, and why."""

    release: str
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """A Dagster run failed. `release`: the one that it was about; None: none, or unknown."""

    job: str
    run_id: str
    release: str | None
    error: str


Alert = (
    ReleaseFailed
    | GivenUp
    | DriverHung
    | EntriesUnread
    | HeartbeatsUnread
    | ProgressUnread
    | CheckNotRun
    | ChecksNotEvaluated
    | RunFailed
)


class Send(Protocol):
    """Sends alerts to the people who must know."""

    def __call__(self, *alerts: Alert) -> None: ...


def to_nobody(*_: Alert) -> None:
    """Sends nothing."""


def severity(alert: Alert) -> Severity:
    """How bad `alert` is."""
    match alert:
        case ReleaseFailed() | GivenUp() | ProgressUnread() | RunFailed():
            return Severity.ERROR
        case EntriesUnread():
            return Severity.ERROR if alert.held else Severity.WARNING
        case DriverHung() | HeartbeatsUnread() | CheckNotRun() | ChecksNotEvaluated():
            return Severity.WARNING
        case _:
            assert_never(alert)


def told(alert: Alert) -> str:
    """`alert` in words. They are only for people; no decision reads them."""
    match alert:
        case ReleaseFailed():
            return f"{alert.release} has failed: {alert.failure}; see `switchyard status {alert.release}`; `switchyard start {alert.release} --execute` tries again\n{alert.log}"
        case GivenUp():
            return f"{alert.release} has failed: {alert.reason}; `switchyard start {alert.release} --execute` tries again\n{alert.log}"
        case DriverHung():
            return f"the driver of {alert.release} hangs: {alert.why}; it is fenced, and a new driver replaces it\n{alert.log}"
        case EntriesUnread():
            return f"{unread_in_words(alert.entries, alert.held)}; see `switchyard registry check`"
        case HeartbeatsUnread():
            return f"{heartbeats_in_words(alert.records)}; see `switchyard registry check`"
        case ProgressUnread():
            return f"{alert.release} is held and not started: {alert.why}"
        case CheckNotRun():
            return f"the check of {alert.release} could not run: {alert.error}; try it by hand: `switchyard check {alert.release}`"
        case ChecksNotEvaluated():
            return f"some checks of {alert.release} could not be evaluated: {'; '.join(alert.failures)}; see `switchyard check {alert.release}`"
        case RunFailed():
            of = f" of {alert.release}" if alert.release else ""
            return f"{alert.job}{of} failed: {alert.error}; the log of run {alert.run_id[:8]} in Dagster has more"
        case _:
            assert_never(alert)


def send(*alerts: Alert, webhook_url: str | None) -> None:
    """Logs `alerts` and posts them to the webhook as one message. If that fails, it is only logged: an alert must not stop
    its sender.
    """
    for alert in alerts:
        log.log(severity(alert), "alert: %s", told(alert))
    if webhook_url is None or not alerts:
        return
    text = "\n\n".join(map(told, alerts))
    failed: list[Exception] = []

    def post() -> None:
        try:
            _post(webhook_url, json.dumps({"text": _escaped(text)}).encode())
        except Exception as error:
            failed.append(error)

    # urllib's timeout is per step: name resolution has none, and redirects and slow answers add up
    posting = threading.Thread(target=post, name="alert", daemon=True)
    try:
        posting.start()
    except RuntimeError as no_thread:
        # the machine is short of them, or the process is about to end
        failed.append(no_thread)
    else:
        posting.join(_TIMEOUT_S)
    if posting.is_alive():
        log.error("the alert did not reach the webhook: no answer within %g s; see whether its server runs", _TIMEOUT_S)
    for error in failed:
        # an error about the address itself may show the address, which is a secret
        why = masked(str(error)) if isinstance(error, OSError) else type(error).__name__
        log.error("the alert did not reach the webhook: %s", why)


def _escaped(text: str) -> str:
    """`text` with `&`, `<` and `>` escaped, as Slack demands. Otherwise a record that it quotes could call everyone with
    `<!channel>`, or hide an address behind words.
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _post(url: str, body: bytes) -> None:
    # for an invalid URL this raises an error that shows it
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
        pass


def webhook() -> str | None:
    """The webhook that the environment names, or None. It is a secret: whoever knows it can post there."""
    url = os.environ.get(WEBHOOK) or None
    if url:
        remember({WEBHOOK: url})
    return url


def to_environment(*alerts: Alert) -> None:
    """Sends `alerts` to the webhook that the environment names, if any."""
    send(*alerts, webhook_url=webhook())
