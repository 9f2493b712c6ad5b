"""Resources: the platform's operations, a Spark session for checks and diffs, and where alerts go."""

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
from pipelines.engine.session import build_session, session_conf
from pipelines.settings import Settings, get_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ends the actor of every entry of Dagster's: the registry keeps it and others read it, so that it never changes
_BY_DAGSTER = " (dagster)"


def by_dagster(actor: str) -> bool:
    """Whether a run of Dagster made an entry of the registry: that run tells of it itself."""
    return actor.endswith(_BY_DAGSTER)


class SparkResource(PySparkResource):
    """Dagster's PySpark resource with the platform's own session: jars, memory bound, UTC.

    It begins when a check or a diff first asks for it: most runs need no JVM. Streams never run in it.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict, description="Spark properties over the platform's own.")
    heap_mb: int | None = Field(default=None, description="Java heap; default: the setting driver_heap_mb.")
    cores: int | None = Field(default=None, description="Cores; default: the setting driver_cores.")
    _session: Any = PrivateAttr(default=None)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Nothing yet."""

    @property
    def spark_session(self) -> SparkSession:
        if self._session is None:
            with _own_interrupts():
                self._session = build_session(self._settings(), "dagster", heap_mb=self.heap_mb, cores=self.cores)
        session: SparkSession = self._session
        return session

    def properties(self) -> dict[str, str]:
        """The properties that its session has."""
        settings = self._settings()
        return session_conf(
            settings,
            heap_mb=self.heap_mb or settings.driver_heap_mb,
            cores=self.cores or settings.driver_cores,
        )

    def _settings(self) -> Settings:
        settings = get_settings()
        extra = {name: str(value) for name, value in self.spark_config.items()}
        # no web UI: its port is the drivers'
        return settings.model_copy(update={"spark": {**settings.spark, **extra}, "spark_ui_port": 0})


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keeps SIGINT as it is: PySpark takes it for itself, and Dagster could not end the run any more."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class Platform(ConfigurableResource):  # type: ignore[type-arg]
    """The same operations as on the terminal, on the cluster of the settings. Nothing is opened before it is asked."""

    @contextmanager
    def open(self, say: Say, spark: SparkResource | None = None) -> Iterator[Context]:
        """A context for operations, closed afterwards. Raises Unavailable if the cluster can't be reached."""
        session: Callable[[], SparkSession] | None = None if spark is None else lambda: spark.spark_session
        context = open_context(self.settings(), say=say, actor=getpass.getuser() + _BY_DAGSTER, spark=session)
        try:
            yield context
        finally:
            context.registry.close()

    def settings(self) -> Settings:
        return get_settings()


class Alerts(ConfigurableResource):  # type: ignore[type-arg]
    """Where failures are told: the log and, if there is one, a webhook that takes `{"text": ...}`."""

    webhook_url: str | None = Field(default=None, description="Posted to; default: only the log.")

    def send(self, alert: alerting.Alert) -> None:
        """Tells `alert`, as `operations.supervising.alerts` does."""
        alerting.send(alert, self.webhook_url)


def alerts() -> Alerts:
    """Alerts to the webhook of the environment, if it names one; the UI shows the variable's name, never its value."""
    return Alerts(webhook_url=EnvVar(alerting.WEBHOOK) if alerting.webhook() else None)
