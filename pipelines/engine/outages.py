"""Outages of Kafka: how a driver tells them from other errors, and how it waits until they are over."""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException
from pyspark.errors import UnknownException

from pipelines.engine.causes import cause, of_jvm
from pipelines.engine.telemetry import DriverStatus
from pipelines.errors import SwitchyardError, Unavailable
from pipelines.kafka.client import admin, answers, login_refused
from pipelines.kafka.failures import passes
from pipelines.model.names import REGISTRY_TOPIC
from pipelines.settings import Settings
from pipelines.signals import StopSignal

log = logging.getLogger("switchyard.driver")

_BACKOFF_S = (0.5, 1, 2, 5, 10)
# how long it waits for the cluster's answer to a login; a cluster that can be reached answers sooner
_LOGIN_S = 2.0
# how often it looks for a broker while there is none
_ASK_S = 0.25
_AWAY_S = 30.0
# how the errors of the Java client begin that Spark passes on
_JAVA_NAMES = tuple(
    f"org.apache.kafka.common.errors.{name}"
    for name in (
        "TimeoutException", "DisconnectException", "NetworkException", "BrokerNotAvailableException",
        "NotLeaderOrFollowerException", "LeaderNotAvailableException", "CoordinatorNotAvailableException",
        "SaslAuthenticationException", "SslAuthenticationException",
    )
)  # fmt: skip


def is_outage(error: BaseException) -> bool:
    """Whether Kafka is the cause, not the app or the input. Then waiting helps."""
    if isinstance(error, Unavailable):
        return True
    if isinstance(error, KafkaException):
        reason = error.args[0]
        # a topic that is gone stays gone: three tries, then the release fails
        gone = reason.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and not reason.retriable()
        return reason.code() < 0 or (passes(reason) and not gone)
    # their text begins with the class; any other may quote a record
    return any(isinstance(each, UnknownException) and str(each).startswith(_JAVA_NAMES) for each in of_jvm(error))


class Outages:
    """Waits until an outage is over, longer each time until a batch succeeds. `signalled` ends the wait."""

    def __init__(self, settings: Settings, name: str, status: DriverStatus, signalled: StopSignal) -> None:
        self._settings = settings
        self._name = name
        self._status = status
        self._signalled = signalled
        self._in_a_row = 0

    def end(self) -> None:
        """A batch has succeeded: the next wait is short again."""
        self._in_a_row = 0

    def wait_out(self, what: str, error: BaseException) -> None:
        """Waits before Kafka is asked again, longer each time. Then waits for a broker to answer, at most `_AWAY_S`.

        Reports a refused login: clients that were logged in before report only time-outs.
        """
        wait_s = _BACKOFF_S[min(self._in_a_row, len(_BACKOFF_S) - 1)]
        self._in_a_row += 1
        self._status.error = f"{what}: {cause(error)}"
        log.warning("%s: Kafka failed, next try in %g s: %s", self._name, wait_s, self._status.error)
        self._signalled.wait(wait_s)
        client = admin(self._settings)
        until = time.monotonic() + _AWAY_S
        refused: SwitchyardError | None = None
        while not self._signalled.is_set() and not answers(client, REGISTRY_TOPIC) and time.monotonic() < until:
            if refused is None and (refused := login_refused(self._settings, _LOGIN_S)) is not None:
                self._status.error = f"{what}: {refused.what}; {refused.fix}"
                log.warning("%s: %s", self._name, self._status.error)
            self._signalled.wait(_ASK_S)
