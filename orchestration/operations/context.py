"""What an operation works with: what it reads, plus registry steps and the launcher. Clock and sleep are arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestration.launchers.local import Launcher, LocalLauncher
from orchestration.local.broker import refuse_another_s
from orchestration.operations.reading import Reading, Say, quiet
from pipelines.errors import SwitchyardError
from pipelines.kafka.cluster import Cluster
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Via
from pipelines.settings import Settings, get_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# below this, Java's optimizing compiler costs more than it saves (measured with folds of 20,000 and of 2,000,000 records)
_FEW_RECORDS = 500_000


@dataclass(frozen=True, kw_only=True)
class Context(Reading):
    """The effects an operation may have. `via`: the program that it runs in, None for a command."""

    registry: Registry
    launcher: Launcher
    via: Via | None = None
    spark: Callable[[], SparkSession] | None = None
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = field(default=time.sleep)

    @property
    def cluster(self) -> Cluster:
        """The cluster that the registry is on, for everything else."""
        return self.registry.cluster

    def until(
        self, what: str, probe: Callable[[], object], *, timeout_s: float, fix: str = "", poll_s: float = 0.05
    ) -> None:
        """Waits until `probe()` is true. Raises SwitchyardError after `timeout_s` seconds, and whatever `probe` raises.

        `what`: the start of the message, such as "sums.v1 has not stopped".
        """
        deadline = self.monotonic() + timeout_s
        while not probe():
            if self.monotonic() > deadline:
                raise SwitchyardError(f"{what} within {timeout_s:g} s", fix=fix)
            self.sleep(poll_s)

    def session(self) -> SparkSession:
        """The Spark session: Dagster's resource, or this process's own."""
        return self.session_soon()()

    def session_soon(self, records: int | None = None) -> Callable[[], SparkSession]:
        """A function that returns the session. If that is this process's own, it starts while this process does other things.

        `records`: how many records it will read; None: unknown, so it is made for many.
        """
        if self.spark is not None:
            return self.spark
        from pipelines.engine.expressions import MANY_RECORDS
        from pipelines.engine.session import build_session

        options = {} if records is None else {"brief": records < _FEW_RECORDS, "few_rows": records < MANY_RECORDS}
        starting = ThreadPoolExecutor(1, "session")
        found = starting.submit(build_session, self.settings.on_this_machine(), "switchyard", **options)
        starting.shutdown(wait=False)
        return found.result


def open_context(
    settings: Settings | None = None,
    *,
    say: Say = quiet,
    actor: str | None = None,
    via: Via | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> Context:
    """A context on the cluster of the settings. Raises Unavailable if it can't be reached, BadUsage if it is the
    embedded broker of another state folder.
    """
    settings = settings or get_settings()
    refuse_another_s(settings)
    return Context(
        settings=settings,
        registry=Registry(settings, actor=actor),
        launcher=LocalLauncher(settings),
        via=via,
        say=say,
        spark=spark,
    )
