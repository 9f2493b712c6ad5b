"""Notices that a driver died while an operation waits for it, so that the operation fails at once instead of at its
timeout.
"""

from __future__ import annotations

from orchestration.local.presence import is_supervised
from orchestration.local.running import running_with
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import after_failure
from pipelines.engine.lease import is_alive, named
from pipelines.errors import SwitchyardError
from pipelines.model.registry import Release

# an operator who starts a dead driver again by hand has this long; and after an outage of Kafka, all heartbeats are old
_GRACE_S = 5.0
_LOOK_S = 0.5


class Vigil:
    """Watches the driver of one release while an operation waits for it.

    These count: the release has failed, its driver has ended its lease, or its process has died. A driver that lives is
    waited for, even if it is silent. One that may live, as on another host, is waited for while it is heard.
    """

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name
        self._looked = 0.0
        self._dead_since: float | None = None

    def look(self) -> None:
        """Raises SwitchyardError if nobody runs the release and nobody is about to run it, according to the registry as
        last read.
        """
        now = self._context.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        release = self._context.registry.known.releases[self._name]
        if release.state == "failed":
            raise SwitchyardError(
                f"{self._name} has failed: {release.failure}",
                fix=f"{after_failure(release)}; then try again",
            )
        why = self._death(release)
        if why is None or self._comes_back(release):
            self._dead_since = None
        elif self._dead_since is None:
            self._dead_since = now
        elif now - self._dead_since >= _GRACE_S:
            raise SwitchyardError(
                f"{self._name} can't take part: {why}, and no supervisor starts it again",
                fix=f"`switchyard start {self._name} --execute`, then try again; `switchyard supervise` restarts such drivers by itself",
            )

    def _death(self, release: Release) -> str | None:
        """Why nobody runs the release; None: somebody may run it."""
        lease = release.lease
        if lease is None or release.lease_ended:
            return "its driver has stopped"
        alive = is_alive(lease.holder)
        if alive is False:
            return f"its driver, {named(lease.holder)}, has died"
        if alive is None and self._context.holder(release) is None:
            return f"its driver, {named(lease.holder)}, has sent no heartbeat for {self._context.settings.lease_timeout_s:g} s"
        return None

    def _comes_back(self, release: Release) -> bool:
        """Whether a supervisor will start it, or a process is about to take its lease."""
        settings = self._context.settings
        if release.wanted == "running" and is_supervised(settings):
            return True
        return any(each.release == self._name for each in running_with(settings.state_dir))
