"""What the registry tells a driver: whether it may go on, and whether the release is still its own."""

from __future__ import annotations

import threading

from pipelines.engine.watch import Watch
from pipelines.engine.writer import Superseded
from pipelines.kafka.registry import Registry
from pipelines.model.registry import Entry, RegistryState, Release
from pipelines.model.unread import not_read


class StopWanted(Exception):
    """The driver is to stop at a boundary."""


class Held(Exception):
    """The registry has an entry about the release that must be understood, and this version can't read it."""


class Orders:
    """The registry as the driver of `name` with lease token `token` obeys it.

    `settle`: it runs whether it is wanted to or not. `signalled`: its process is told to stop.
    """

    def __init__(self, registry: Registry, name: str, token: int, *, settle: bool, signalled: threading.Event) -> None:
        self.registry = registry
        # whose trouble ends the driver, too; there is none before the release is known
        self.watch: Watch | None = None
        self._name = name
        self._token = token
        self._settle = settle
        self._signalled = signalled

    def release(self) -> Release:
        """The release as the registry has it now."""
        return self.registry.state().releases[self._name]

    def check(self) -> RegistryState:
        """The state as known. Raises Superseded, StopWanted or PartLost where the driver must end, Held where it must not
        go on.
        """
        state = self.registry.known
        release = state.releases[self._name]
        if release.token != self._token:
            raise Superseded(f"{self._name}: token {self._token} is superseded by {release.token}")
        if (
            (release.wanted == "stopped" and not self._settle)
            or self._signalled.is_set()
            or release.state in ("retired", "aborted")
        ):
            raise StopWanted
        if self.watch is not None and self.watch.trouble is not None:
            raise self.watch.trouble
        self._check_understood()
        return state

    def check_anew(self) -> None:
        """As `check`, after reading what is new."""
        self.registry.poll(0)
        self.check()

    def check_token(self) -> None:
        """Raises Superseded if another driver has the release, Held where it must not go on. A driver that is told to stop
        goes on.
        """
        self.registry.poll(0)
        self._check_understood()
        if self.registry.known.releases[self._name].token != self._token:
            raise Superseded(f"{self._name}: token {self._token} is superseded")

    def admit(self) -> None:
        """Raises Superseded if another driver has the release. Called on Spark's thread: a registry of its own."""
        with Registry(self.registry.settings) as registry:
            token = registry.state().releases[self._name].token
        if token != self._token:
            raise Superseded(f"{self._name}: token {self._token} is superseded by {token}")

    def enter(self, entry: Entry, reason: str | None = None, *, by: Registry | None = None) -> None:
        """Enters what the driver has found, unless another driver has the release by then.

        `by`: the registry of the calling thread, where that is not the driver's.
        """
        registry = self.registry if by is None else by
        registry.step(lambda state: [entry] if state.releases[self._name].token == self._token else [], reason=reason)

    def _check_understood(self) -> None:
        unread = self.registry.known.not_understood(self._name)
        if unread is not None:
            raise Held(not_read(unread))
