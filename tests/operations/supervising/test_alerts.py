"""Alerts are data: what happened, to which release, how bad it is. Their words are made where they are sent."""

from __future__ import annotations

import itertools
import json
import logging
import socket
import threading
import urllib.request
from contextlib import nullcontext
from typing import Any, get_args

import pytest

from orchestration.operations.supervising import alerts
from orchestration.operations.supervising.alerts import (
    Alert,
    CheckNotRun,
    ChecksNotEvaluated,
    DriverHung,
    EntriesUnread,
    GivenUp,
    HeartbeatsUnread,
    ProgressUnread,
    ReleaseFailed,
    RunFailed,
    severity,
    told,
)

ALERTS: dict[Alert, tuple[str, int]] = {
    ReleaseFailed(release="a.v1", failure="batch 7: not a price", log="line 1"): (
        "a.v1 has failed: batch 7: not a price; see `switchyard status a.v1`; `switchyard start a.v1 --execute` tries again\nline 1", logging.ERROR),
    GivenUp(release="a.v1", reason="started 6 times", log="line 1"): (
        "a.v1 has failed: started 6 times; `switchyard start a.v1 --execute` tries again\nline 1", logging.ERROR),
    RunFailed(job="watch", run_id="0123456789", release="a.v1", error="it failed"): (
        "watch of a.v1 failed: it failed; the log of run 01234567 in Dagster has more", logging.ERROR),
    RunFailed(job="janitor", run_id="0123456789", release=None, error="no room"): (
        "janitor failed: no room; the log of run 01234567 in Dagster has more", logging.ERROR),
    EntriesUnread(entries=2, held=1): (
        "2 entries of the registry can't be read by this version, 1 of them must not be ignored: the releases that it names are held; "
        "see `switchyard registry check`", logging.ERROR),
    EntriesUnread(entries=1, held=0): (
        "1 entry of the registry can't be read by this version; see `switchyard registry check`", logging.WARNING),
    HeartbeatsUnread(records=3): (
        "3 heartbeats of the last minute can't be read by this version; see `switchyard registry check`", logging.WARNING),
    ProgressUnread(release="a.v1", why="its newest record is odd; upgrade"): (
        "a.v1 is held and not started: its newest record is odd; upgrade", logging.ERROR),
    DriverHung(release="a.v1", why="process 7 is silent", log="line 1"): (
        "the driver of a.v1 hangs: process 7 is silent; it is fenced, and a new driver replaces it\nline 1", logging.WARNING),
    CheckNotRun(release="a.v1", error="no result yet"): (
        "the check of a.v1 could not run: no result yet; try it by hand: `switchyard check a.v1`", logging.WARNING),
    ChecksNotEvaluated(release="a.v1", failures=("volume: odd", "key: odd")): (
        "some checks of a.v1 could not be evaluated: volume: odd; key: odd; see `switchyard check a.v1`", logging.WARNING),
}  # fmt: skip


def test_every_kind_of_alert_is_tried_here() -> None:
    assert {type(each) for each in ALERTS} == set(get_args(Alert))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: type(alert).__name__)
def test_an_alert_is_logged_as_bad_as_it_is_and_sent_in_words(
    alert: Alert, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words, level = ALERTS[alert]
    sent: list[Any] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> Any:
        sent.append(json.loads(request.data))  # type: ignore[arg-type]
        return nullcontext()

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    alerts.send(alert, webhook_url="http://127.0.0.1:1/hook")
    assert (told(alert), severity(alert)) == (words, level)
    assert sent == [{"text": words}]
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(level, f"alert: {words}")]


def test_what_an_alert_quotes_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> Any:
        sent.append(json.loads(request.data))  # type: ignore[arg-type]
        return nullcontext()

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    alert = CheckNotRun(release="a.v1", error="no price: <!channel> <http://x|here> & more")
    alerts.send(alert, webhook_url="http://127.0.0.1:1/hook")
    [text] = [each["text"] for each in sent]
    assert "no price: &lt;!channel&gt; &lt;http://x|here&gt; &amp; more" in text and "<" not in text


def test_several_alerts_are_one_message(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    def urlopen(request: urllib.request.Request, timeout: float) -> Any:
        sent.append(json.loads(request.data))  # type: ignore[arg-type]
        return nullcontext()

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    one, other = list(ALERTS)[:2]
    alerts.send(one, other, webhook_url="http://127.0.0.1:1/hook")
    assert sent == [{"text": f"{told(one)}\n\n{told(other)}"}]
    assert len(caplog.records) == 2
    alerts.send(webhook_url="http://127.0.0.1:1/hook")
    assert len(sent) == 1


def test_where_no_thread_can_start_the_alert_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    alert = CheckNotRun(release="a.v1", error="no result yet")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        alerts.send(alert, webhook_url="http://127.0.0.1:1/hook")
    assert told(alert) in caplog.text and "the alert did not reach the webhook: RuntimeError" in caplog.text


def test_an_alert_is_of_its_release() -> None:
    assert {each.release for each in ALERTS} == {"a.v1", None}


# the answer would take 1,000 s
@pytest.mark.timeout(60)
def test_a_webhook_that_answers_byte_by_byte_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alerts, "_TIMEOUT_S", 0.5)
    over = threading.Event()

    def answer(server: socket.socket) -> None:
        client, _ = server.accept()
        with client:
            client.recv(65_536)
            for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(ord("x"), 20_000)):
                # no step of the client's waits for long
                if over.wait(0.05):
                    return
                client.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer, args=(server,))
        answering.start()
        try:
            alerts.send(
                CheckNotRun(release="a.v1", error="no result yet"),
                webhook_url=f"http://127.0.0.1:{server.getsockname()[1]}/hook",
            )
        finally:
            over.set()
            answering.join(10)
    assert "did not reach the webhook: no answer within 0.5 s" in caplog.text
