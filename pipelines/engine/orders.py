"""What the registry tells a driver: whether it may run on, and whether it still has the release."""

from __future__ import annotations

from pipelines.engine.watch import Watch
from pipelines.engine.writer import Superseded
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Entry
from pipelines.model.registry import RegistryState, Release
from pipelines.model.unread import not_read
from pipelines.signals import StopSignal


class StopWanted(Exception):
    """The driver must stop at a boundary."""


class Held(Exception):
    """The registry has an entry about the release that must be understood, but this version can't read it."""


class Orders:
    """The registry's orders to the driver of `name` with lease token `token`.

    `settle`: it also runs if the release is wanted stopped. `signalled`: set when its process is told to stop.
    """

    def __init__(self, registry: Registry, name: str, token: int, *, settle: bool, signalled: StopSignal) -> None:
        self.registry = registry
        # its trouble also ends the driver; None until the release is known
        self.watch: Watch | None = None
        self._name = name
        self._token = token
        self._settle = settle
        self._signalled = signalled

    def release(self) -> Release:
        """The release, from the registry as it is now."""
        return self.registry.state(snapshots=False).releases[self._name]

    def check(self) -> RegistryState:
        """The registry's state as last read.

        Raises Superseded, StopWanted or PartLost if the driver must end, Held if it must wait.
        """
        state = self.registry.known
        release = state.releases[self._name]
        self._require_own(release.token)
        if (release.wanted == "stopped" and not self._settle) or self._signalled.is_set() or release.state == "retired":
            raise StopWanted
        if self.watch is not None and self.watch.trouble is not None:
            raise self.watch.trouble
        self._check_understood()
        return state

    def check_newest(self) -> None:
        """Reads the registry's new entries, then does the same as `check`."""
        self.registry.poll(0)
        self.check()

    def check_token(self) -> None:
        """Raises Superseded if another driver has the release, Held if this one must wait. Ignores orders to stop."""
        self.registry.poll(0)
        self._check_understood()
        self._require_own(self.registry.known.releases[self._name].token)

    def admit(self) -> None:
        """Raises Superseded if another driver has the release. Spark's thread calls it, so it uses its own registry."""
        with Registry(self.registry.settings) as registry:
            newest = registry.state(snapshots=False).releases[self._name].token
        self._require_own(newest)

    def enter(self, entry: Entry, reason: str | None = None, *, by: Registry | None = None) -> None:
        """Writes an entry of this driver, unless another driver has the release by then.

        `by`: the calling thread's registry, if that is not the driver's thread.
        """
        registry = self.registry if by is None else by
        registry.step(lambda state: [entry] if state.releases[self._name].token == self._token else [], reason=reason)

    def _require_own(self, newest: int) -> None:
        """Raises Superseded unless the newest token of the release is this driver's."""
        if newest != self._token:
            raise Superseded(f"{self._name}: token {self._token} is superseded by {newest}")

    def _check_understood(self) -> None:
        unread = self.registry.known.not_understood(self._name)
        if unread is not None:
            raise Held(not_read(unread))
