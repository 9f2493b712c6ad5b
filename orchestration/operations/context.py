"""What every operation works with: settings, registry, launcher; clock and sleep as arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestration.launchers.local import Launcher, LocalLauncher
from orchestration.local.broker import refuse_another_s
from pipelines.engine.lease import held_by
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.kafka.cluster import Cluster
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import Registry, now_ms
from pipelines.model.names import release_name, split_release
from pipelines.model.progress import Heartbeat, Progress
from pipelines.model.registry import RegistryState, Release
from pipelines.model.unread import refuse_unread
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


def find_release(state: RegistryState, name: str) -> Release:
    """The release of that name; for an app's name its only release that is not retired or aborted.

    Raises BadUsage if the name means none or several.
    """
    if name in state.releases:
        return state.releases[name]
    if split_release(name) is not None:
        raise BadUsage(f"there is no release {name}", fix=f"there are: {', '.join(sorted(state.releases)) or 'none'}")
    releases = [r for r in state.of_app(name) if r.state not in ("retired", "aborted")]
    if len(releases) == 1:
        return releases[0]
    if not releases:
        apps = sorted({r.spec.app for r in state.releases.values()})
        raise BadUsage(
            f"there is no release of an app {name}", fix=f"there are apps: {', '.join(apps) or 'none'}; stage one"
        )
    raise BadUsage(
        f"{name} has {len(releases)} releases: {', '.join(r.name for r in releases)}",
        fix=f"say which, as in {releases[-1].name}",
    )


def version_of(state: RegistryState, app: str, version: int | None) -> Release:
    """Release `version` of an app; None: the newest that is neither live, standby, retired nor aborted."""
    if version is not None:
        return find_release(state, release_name(app, version))
    free = [r for r in state.of_app(app) if r.state in ("staged", "hydrating", "ready", "failed")]
    if not free:
        standby = [r.name for r in state.of_app(app) if r.state == "standby"]
        fix = f"`switchyard stage {app}` one" + (f", or name the standby: {standby[-1]}" if standby else "")
        raise BadUsage(f"{app} has no release that waits to be live", fix=fix)
    return free[-1]


def live_release(state: RegistryState, app: str) -> Release | None:
    """The release that the app's alias names; None before the first promotion."""
    switch = state.live(app)
    return state.releases[switch.new] if switch else None


def refuse_blocked(state: RegistryState, release: str, *, but: str | None = None) -> None:
    """Raises Refused while another operation than `but` is under way on `release`, or the registry says something of it that
    this version can't read and must understand.
    """
    refuse_unread(state.not_understood(release), release)
    other = state.blocking(release)
    if other is not None and other.id != but:
        raise Refused(
            f"{other.opened.name} {other.id} of {other.opened.actor} is under way on {release}",
            fix=f"wait for it, or `switchyard resume {other.id}` or `switchyard abandon {other.id}`",
        )
