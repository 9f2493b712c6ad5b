"""Whether a driver that an operation waits for has died: then the operation says so, instead of waiting to its end."""

from __future__ import annotations

from orchestration.local.presence import is_supervised
from orchestration.local.running import running_with
from orchestration.operations.context import Context
from pipelines.engine.lease import is_alive
from pipelines.errors import SwitchyardError
from pipelines.model.registry import Release

# whoever starts a dead driver again by hand has so long to begin with it
_GRACE_S = 4.0
_LOOK_S = 0.5


class Vigil:
    """Looks at the driver of one release while an operation waits for it.

    Only what is known for sure counts: the release has failed, its driver has ended its lease, or its process was on this
    host and is gone. One that is silent, or on another host, is waited for.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name
        self._looked = 0.0
        self._dead_since: float | None = None

    def look(self) -> None:
        """Raises SwitchyardError where nobody runs the release by the registry as known, and nobody is about to."""
        now = self._context.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        release = self._context.registry.known.releases[self._name]
        if release.state == "failed":
            raise SwitchyardError(
                f"{self._name} has failed: {release.failure}",
                fix=f"`switchyard start {self._name} --execute`, then try again",
            )
        why = self._death(release)
        if why is None or self._comes_back(release):
            self._dead_since = None
        elif self._dead_since is None:
            self._dead_since = now
        elif now - self._dead_since >= _GRACE_S:
            raise SwitchyardError(
                f"{self._name} can't take part: {why}, and nothing starts it again",
                fix=f"`switchyard start {self._name} --execute`, then try again; `switchyard supervise` starts such drivers by itself",
            )

    def _death(self, release: Release) -> str | None:
        """Why nobody runs the release; None where somebody may."""
        lease = release.lease
        if lease is None or release.lease_ended:
            return "its driver has ended"
        if is_alive(lease.holder, self._context.settings) is False:
            return f"its driver, process {lease.holder.pid} on {lease.holder.host}, has died"
        return None

    def _comes_back(self, release: Release) -> bool:
        """Whether a supervisor will start it, or a process is about to take its lease."""
        settings = self._context.settings
        if release.wanted == "running" and is_supervised(settings):
            return True
        return any(each.release == self._name for each in running_with(settings.state_dir))
