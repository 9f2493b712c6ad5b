"""Alerts: a log line and, if there is one, a webhook that takes `{"text": ...}`."""

from __future__ import annotations

import json
import logging
import os
import urllib.request

from pipelines.secrets import masked, remember

log = logging.getLogger("switchyard.alerts")

WEBHOOK = "SWITCHYARD_ALERT_WEBHOOK"
_TIMEOUT_S = 10.0


def send(text: str, webhook_url: str | None) -> None:
    """Tells `text`. A webhook that can't be reached is logged: an alert must not fail what it tells of."""
    log.error("alert: %s", text)
    if webhook_url is None:
        return
    body = json.dumps({"text": text}).encode()
    try:
        # one that is no URL is refused here, by an error that shows it
        request = urllib.request.Request(webhook_url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            pass
    except (OSError, ValueError) as error:
        log.error("the webhook could not be told: %s", masked(str(error)))


def webhook() -> str | None:
    """The webhook that the environment names, if it names one: a secret, as who knows it can write there."""
    url = os.environ.get(WEBHOOK) or None
    if url:
        remember({WEBHOOK: url})
    return url


def to_environment(text: str) -> None:
    """Tells `text` to the webhook that the environment names, if it names one."""
    send(text, webhook())
