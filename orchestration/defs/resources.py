"""Resources: the operations, a Spark session for checks, and the destination of alerts."""

from __future__ import annotations

import getpass
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dagster import ConfigurableResource, EnvVar, InitResourceContext
from dagster_pyspark import PySparkResource
from pydantic import Field, PrivateAttr

from orchestration.operations.context import Context, open_context
from orchestration.operations.reading import Say
from orchestration.operations.supervising import alerts as alerting
from pipelines.engine.session import build_session
from pipelines.engine.spark_conf import session_conf
from pipelines.model.entries import ReadyRecorded, VerdictRecorded
from pipelines.model.text import visible
from pipelines.settings import Settings, get_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# how people see who made an entry. Earlier builds say it nowhere else, so it must never change
_BY_DAGSTER = " (dagster)"


def by_dagster(entry: ReadyRecorded | VerdictRecorded) -> bool:
    """Whether a Dagster run made a registry entry. Then that run reports it itself."""
    return entry.via == "dagster" or entry.actor.endswith(_BY_DAGSTER)


class SparkResource(PySparkResource):
    """Dagster's PySpark resource with Switchyard's own session: jars, memory limit, UTC.

    The session starts when a check first asks for it, because most runs need no JVM. Streams never run in it.
    """

    spark_config: dict[str, Any] = Field(
        default_factory=dict, description="Spark properties that override Switchyard's own."
    )
    heap_mb: int | None = Field(default=None, description="Java heap; default: the setting driver_heap_mb.")
    cores: int | None = Field(default=None, description="Cores; default: the setting driver_cores.")
    _session: Any = PrivateAttr(default=None)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Does nothing yet."""

    @property
    def spark_session(self) -> SparkSession:
        if self._session is None:
            with _own_interrupts():
                self._session = build_session(self._settings(), "dagster", heap_mb=self.heap_mb, cores=self.cores)
        session: SparkSession = self._session
        return session

    def properties(self) -> dict[str, str]:
        """The properties of its session."""
        settings = self._settings()
        return session_conf(
            settings,
            heap_mb=self.heap_mb or settings.driver_heap_mb,
            cores=self.cores or settings.driver_cores,
        )

    def _settings(self) -> Settings:
        settings = get_settings().on_this_machine()
        extra = {name: str(value) for name, value in self.spark_config.items()}
        # no web UI, because its port belongs to the drivers
        return settings.model_copy(update={"spark": {**settings.spark, **extra}, "spark_ui_port": 0})


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps the SIGINT handler: PySpark replaces it, and then Dagster could not end the run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class Platform(ConfigurableResource):  # type: ignore[type-arg]
    """The same operations as on the terminal, on the cluster of the settings. Connects only when it is used."""

    @contextmanager
    def open(self, say: Say, spark: SparkResource | None = None) -> Iterator[Context]:
        """A context for operations, closed afterwards. Raises Unavailable if the cluster can't be reached.

        Dagster prints what is said on its terminal, as it is: so control characters are escaped.
        """
        session: Callable[[], SparkSession] | None = None if spark is None else lambda: spark.spark_session
        actor = getpass.getuser() + _BY_DAGSTER
        context = open_context(
            self.settings(), say=lambda text: say(visible(text, lines=True)), actor=actor, via="dagster", spark=session
        )
        try:
            yield context
        finally:
            context.registry.close()

    def settings(self) -> Settings:
        return get_settings()


class Alerts(ConfigurableResource):  # type: ignore[type-arg]
    """The destination of alerts: the log and, if set, a webhook that takes `{"text": ...}`."""

    webhook_url: str | None = Field(default=None, description="URL to post alerts to; default: only log them.")

    def send(self, *alerts: alerting.Alert) -> None:
        """Sends `alerts`, as `operations.supervising.alerts` does."""
        alerting.send(*alerts, webhook_url=self.webhook_url)


def alerts() -> Alerts:
    """Alerts to the webhook in the environment, if it names one. The UI shows the variable's name, never its value."""
    return Alerts(webhook_url=EnvVar(alerting.WEBHOOK) if alerting.webhook() else None)
