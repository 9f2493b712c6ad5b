"""YARN as what starts the executors of a driver: what its ResourceManager says, by the client in this process's JVM."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipelines.engine.causes import cause
from pipelines.engine.in_time import Failed, Late, in_time
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.spark_conf import session_conf
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

TAGS = "spark.yarn.tags"
# By default, the client asks a ResourceManager that doesn't answer for 15 minutes
_GIVE_UP_SOON = {
    "yarn.resourcemanager.connect.max-wait.ms": "3000",
    "yarn.resourcemanager.connect.retry-interval.ms": "1000",
    "ipc.client.connect.timeout": "3000",
    "ipc.client.connect.max.retries": "1",
    "ipc.client.connect.max.retries.on.timeouts": "1",
}
# how long YARN may take to say why an application has ended, or to end one
_ASK_S = 5.0
# how a line of a Java stack begins that names a cause
_CAUSE = "Caused by: "
_ENDED = {"FINISHED", "FAILED", "KILLED"}
_QUEUED = {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one container may have at most, and what an executor asks for: MiB and cores. `nodes`: how many hosts run
    containers.
    """

    nodes: int
    most_mb: int
    most_cores: int
    asked_mb: int
    asked_cores: int

    @property
    def is_enough(self) -> bool:
        return self.asked_mb <= self.most_mb and self.asked_cores <= self.most_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application as YARN reports it. `containers`: how many run. `said`: YARN's own words about its state."""

    id: str
    state: str
    containers: int
    said: str

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    @property
    def told(self) -> str:
        """Its first words, and the cause of what the log of a container ends with, in one line."""
        lines = [line.strip() for line in self.said.splitlines()]
        causes = [line for line in lines if line.startswith(_CAUSE)]
        return cause(RuntimeError("\n".join([*lines[:2], *causes[-1:]]) or "YARN does not say why"))

    @property
    def is_queued(self) -> bool:
        """Whether YARN has not started it yet."""
        return self.state in _QUEUED


class Yarn:
    """The ResourceManager. Each method waits for its answer, and raises Py4JJavaError if there is none."""

    def __init__(self) -> None:
        configuration = java_class("org.apache.hadoop.yarn.conf.YarnConfiguration")()
        for name, value in _GIVE_UP_SOON.items():
            configuration.set(name, value)
        self._client = java_class("org.apache.hadoop.yarn.client.api.YarnClient").createYarnClient()
        self._client.init(configuration)
        self._client.start()

    def room(self, settings: Settings) -> Room:
        most = self._client.createApplication().getNewApplicationResponse().getMaximumResourceCapability()
        conf = session_conf(settings)
        return Room(
            nodes=int(self._client.getYarnClusterMetrics().getNumActiveNodeManagers()),
            most_mb=int(most.getMemorySize()),
            most_cores=int(most.getVirtualCores()),
            asked_mb=asked_mb(conf),
            asked_cores=int(conf["spark.executor.cores"]),
        )

    def tagged(self, tag: str) -> Application | None:
        """The application with this tag; None: there is none."""
        tags = java_class("java.util.HashSet")()
        tags.add(tag)
        request = java_class("org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest").newInstance()
        request.setApplicationTags(tags)
        found = self._client.getApplications(request)
        return _application(found[0]) if len(found) else None

    def application(self, name: str) -> Application:
        """The application with this id."""
        return _application(self._client.getApplicationReport(_id(name)))

    def kill(self, name: str) -> None:
        """Ends the application with this id. Does nothing if it has ended."""
        self._client.killApplication(_id(name))


@cache
def yarn() -> Yarn:
    """This process's client. Needs a JVM in this process."""
    return Yarn()


def ask(*, tag: str | None = None, name: str = "") -> Application | None:
    """The application with this tag, or else with this id. None: YARN does not know it, or does not answer in some seconds."""
    try:
        return in_time(
            lambda: yarn().application(name) if tag is None else yarn().tagged(tag), time.monotonic() + _ASK_S
        )
    except (Failed, Late) as error:
        log.info("YARN does not say what it knows of %s: %s", tag or name, str(error) or "no answer in time")
        return None


def end(application: Application | None) -> None:
    """Ends an application, so that it does not stay in the queue. If YARN does not answer in some seconds, it ends by itself
    once it does not find the driver.
    """
    if application is not None and not application.has_ended:
        with suppress(Failed, Late):
            in_time(lambda: yarn().kill(application.id), time.monotonic() + _ASK_S)


def logs_of(name: str) -> str:
    """Where to read more about the application with this id."""
    return f"`yarn logs -applicationId {name}` shows the logs of its containers"


def asked_mb(conf: Mapping[str, str]) -> int:
    """How large the container of an executor with these properties is, in MiB. Spark may add more for what is rarely set."""
    megabytes = java_class("org.apache.spark.network.util.JavaUtils").byteStringAsMb
    return sum(int(megabytes(conf[name])) for name in ("spark.executor.memory", "spark.executor.memoryOverhead"))


def _application(report: Any) -> Application:
    usage = report.getApplicationResourceUsageReport()
    return Application(
        id=str(report.getApplicationId().toString()),
        state=str(report.getYarnApplicationState().toString()),
        # YARN says -1 if it does not tell
        containers=max(0, int(usage.getNumUsedContainers())) if usage is not None else 0,
        said=str(report.getDiagnostics() or ""),
    )


def _id(name: str) -> Any:
    return java_class("org.apache.hadoop.yarn.api.records.ApplicationId").fromString(name)
