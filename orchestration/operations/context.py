"""What every operation works with: settings, registry, launcher; clock and sleep as arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestration.launchers.local import Launcher, LocalLauncher
from orchestration.local.broker import refuse_another_s
from pipelines.engine.lease import held_by
from pipelines.errors import SwitchyardError
from pipelines.kafka.cluster import Cluster
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import Registry, now_ms
from pipelines.model.progress import Heartbeat, Progress
from pipelines.model.registry import Release
from pipelines.settings import Settings, get_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]
# Below it Java's optimising compiler costs more than it earns, beside two drivers on two cores: a diff of 2 x 10,000 keys took
# 33 s without it and 75 s with it, one of 2 x 1,000,000 keys 243 s and 191 s
_FEW_RECORDS = 500_000


def quiet(_: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The effects an operation may have. `say` is told what happens, a line at a time."""

    settings: Settings
    registry: Registry
    launcher: Launcher
    say: Say = quiet
    spark: Callable[[], SparkSession] | None = None
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = field(default=time.sleep)

    @property
    def cluster(self) -> Cluster:
        """What else can be asked of the cluster that the registry is on."""
        return self.registry.cluster

    def until(
        self, what: str, probe: Callable[[], object], *, timeout_s: float, fix: str = "", poll_s: float = 0.05
    ) -> None:
        """Waits until `probe()` is true. Raises SwitchyardError naming `what` after `timeout_s`; what `probe` raises, too."""
        deadline = self.monotonic() + timeout_s
        while not probe():
            if self.monotonic() > deadline:
                raise SwitchyardError(f"{what}: not within {timeout_s:g} s", fix=fix)
            self.sleep(poll_s)

    def session(self, records: int | None = None) -> SparkSession:
        """The Spark session for comparisons and checks: Dagster's resource, or one of this process.

        `records`: how many it is to read; None: any number.
        """
        if self.spark is not None:
            return self.spark()
        from pipelines.engine.session import build_session

        return build_session(self.settings, "switchyard", brief=records is not None and records < _FEW_RECORDS)

    def holder(self, release: Release) -> str | None:
        """Who runs a release, in words; None if nobody does."""
        beat = self.beats().get(release.name)
        return held_by(release, beat, self.settings, at_ms=now_ms())

    def progress(self, release: str) -> Progress | None:
        """The newest progress record of a release."""
        return newest_progress(self.settings, release, kept=self.registry.kept)

    def beats(self, window_s: float = 60.0) -> dict[str, Heartbeat]:
        """Release -> the newest heartbeat of its newest driver, of the last `window_s` seconds."""
        return latest_heartbeats(self.settings, window_s=window_s, kept=self.registry.kept)


def open_context(
    settings: Settings | None = None,
    *,
    say: Say = quiet,
    actor: str | None = None,
    spark: Callable[[], SparkSession] | None = None,
) -> Context:
    """A context on the cluster of the settings. Raises Unavailable where it can't be reached, BadUsage where it is the
    embedded broker of another state directory.
    """
    settings = settings or get_settings()
    refuse_another_s(settings)
    return Context(
        settings=settings,
        registry=Registry(settings, actor=actor),
        launcher=LocalLauncher(settings),
        say=say,
        spark=spark,
    )
