"""What the effects of one plan's stages share: its steps in the registry, and the drivers' answers so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestration.operations.applying.vigil import Vigil
from orchestration.operations.comparing.since import Since
from orchestration.operations.context import Context
from orchestration.operations.journal import LISTEN_S, SURE_S
from orchestration.operations.plans.plan import Plan, join
from pipelines.engine.lease import is_alive, named, this_process
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.progress import ProgressTail
from pipelines.kafka.registry import Decide
from pipelines.model.entries import DeltaSegment, Entry
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Mark, Progress
from pipelines.model.registry import Operation, RegistryState, Release
from pipelines.model.unread import refuse_unread

_POLL_S = 0.05
# the outcome of an operation -> what has happened to it, in words
_ENDED = {"done": "was finished", "failed": "has failed", "abandoned": "was abandoned", "expired": "has expired"}


class Work:
    """The work on one plan, from its first stage to its last. `tokens`: those of an attempt that an outage has ended."""

    def __init__(self, context: Context, plan: Plan, tokens: dict[str, int] | None = None) -> None:
        self.context = context
        self._after_outage = tokens is not None
        self.plan = plan
        # the latest position at which the aligning release may have paused
        self.past: SourcePosition | None = None
        # where both sides of a switch are, if they did not meet at a boundary
        self.ends: dict[str, Mark] = {}
        # what both releases wrote since the evidence, in tables and in streams, and the part that is written for consumers
        self.since: dict[type[Since[Any]], Since[Any]] = {}
        self.segments: tuple[DeltaSegment, ...] = ()
        # release -> the token of the lease that was taken for it
        self.tokens: dict[str, int] = {} if tokens is None else tokens
        # the tombstones that clear an old result for consumers that move to a new one
        self.cleared: DeltaSegment | None = None
        self._tails: dict[str, ProgressTail] = {}
        # whether the plan's operation was seen in the registry
        self._opened = False

    def close(self) -> None:
        """Closes everything that it opened for reading."""
        for since in self.since.values():
            since.close()
        for tail in self._tails.values():
            tail.close()

    def step(self, decide: Decide) -> RegistryState:
        """A registry step for the plan's operation. Raises Refused if the operation was ended."""

        def mine(state: RegistryState) -> Sequence[Entry]:
            self.refuse_closed(state)
            for release in self.plan.releases:
                refuse_unread(state.not_understood(release), release)
            return decide(state)

        return self.context.registry.step(mine, op=self.plan.id, reason=self.plan.reason)

    def refuse_foreign(self, release: str) -> None:
        """Raises Refused if the plan would delete parts of a release that it is not about: a plan from the journal is
        not trusted.
        """
        if release not in self.plan.releases:
            raise self.foreign(f"parts of {release}")

    def foreign(self, what: str) -> Refused:
        """The error for a plan that would delete `what`."""
        return Refused(
            f"{self.plan.id} would delete {what}, which does not belong to {join(self.plan.releases)}",
            fix=f"see who wrote that plan: `switchyard log {self.plan.id}`; then end it: `switchyard abandon {self.plan.id}`",
        )

    def in_use(self, what: str, who: Sequence[str]) -> Refused:
        """The error for a plan that would delete `what`, which `who` came to use after the plan was made."""
        return Refused(
            f"{self.plan.id} would delete {what}, but that is in use by {join(who)}",
            fix=f"`switchyard log {self.plan.releases[0]}` shows what has changed; {self.plan.again}",
        )

    def now(self) -> RegistryState:
        """The registry as it is now. Call it directly before deleting or fencing anything: this process may have slept.
        Raises as `refuse_closed` does.
        """
        state = self.context.registry.state()
        self.refuse_closed(state)
        return state

    def check(self) -> None:
        """Raises as `refuse_closed` does, by the entries that have come. For work that takes long: it costs little."""
        self.context.registry.poll(0)
        self.refuse_closed(self.context.registry.known)

    def refuse_closed(self, state: RegistryState) -> None:
        """Raises Refused if this plan's operation was ended, or another process took it over: no more stages may be
        applied.
        """
        known = state.known_operations.get(self.plan.id)
        self._opened = self._opened or known is not None
        if known is None and self._opened:
            # closed so long ago that the state no longer holds it
            how = "was ended in the meantime"
        elif known is not None and known.closed is not None:
            why = f": {known.closed.detail}" if known.closed.detail else " by someone else"
            how = f"{_ENDED[known.closed.outcome]} in the meantime{why}"
        else:
            if known is not None:
                self._refuse_taken_over(known)
            return
        raise Refused(
            f"{self.plan.id} {how}",
            fix=f"`switchyard log {self.plan.id}` shows why; {self.plan.again}",
        )

    def is_carried_here(self, state: RegistryState) -> bool:
        """Whether no other process has taken this plan's operation over, open or not."""
        known = state.known_operations.get(self.plan.id)
        return known is None or known.carrier in (None, this_process(self.context.settings))

    def _refuse_taken_over(self, operation: Operation) -> None:
        carrier = operation.carrier
        if carrier is not None and carrier != this_process(self.context.settings):
            raise Refused(
                f"{named(carrier)} has taken over {self.plan.id}",
                fix="wait for it: `switchyard operations` shows when it is done",
            )

    def operation(self, state: RegistryState) -> Operation:
        """This plan's operation, from the journal. Raises Refused if it was ended, or another process took it over."""
        operation = state.known_operations.get(self.plan.id)
        if operation is None or operation.closed is not None or operation.aborted:
            how = _ENDED[operation.closed.outcome] if operation and operation.closed else "was aborted"
            raise Refused(
                f"{self.plan.id} {how} in the meantime: its deadline passed, or someone ended it",
                fix=f"consumers stay where they are; `switchyard log {self.plan.id}` shows who ended it; {self.plan.again}",
            )
        self._refuse_taken_over(operation)
        return operation

    def release(self, name: str) -> Release:
        """A release, as the registry has it now."""
        return self.context.registry.state().releases[name]

    def holder(self, name: str) -> str | None:
        """Who runs a release, in words; None: nobody. After an outage all heartbeats are old: this listens for some seconds
        to a driver that may live.
        """
        deadline = self.context.monotonic() + (SURE_S if self._after_outage else 0.0)
        while True:
            release = self.release(name)
            lease = release.lease
            if lease is None or release.lease_ended or self.was_left(release):
                return None
            found = self.context.holder(release)
            if found is not None or is_alive(lease.holder) is False or self.context.monotonic() >= deadline:
                return found
            self.context.sleep(LISTEN_S)

    def was_left(self, release: Release) -> bool:
        """Whether the release's lease is the one that an earlier operator of this operation took, or an earlier attempt of
        this one. The journal has made sure that this process took the operation over, so nobody uses that lease any more.
        """
        lease = release.lease
        if lease is None or lease.op != self.plan.id:
            return False
        return lease.holder != this_process(self.context.settings) or lease.token == self.tokens.get(release.name)

    def tail(self, release: str) -> ProgressTail:
        """The progress reader of a release. All stages share it, so it continues where the last stage stopped."""
        if release not in self._tails:
            self._tails[release] = ProgressTail(self.context.settings, release)
        return self._tails[release]

    def await_progress(
        self, release: str, timeout_s: float, what: str, done: Callable[[Progress], object], *, fix: str = ""
    ) -> Progress:
        """The first progress record of `release` that satisfies `done`.

        Raises Refused if the operation was ended. Raises SwitchyardError if `release` has no driver and none will
        start, or, with the message `what` and the advice `fix`, after `timeout_s` seconds.
        """
        context, tail = self.context, self.tail(release)
        deadline = context.monotonic() + timeout_s
        vigil = Vigil(context, release)
        while True:
            progress = tail.poll(_POLL_S)
            if progress is not None and done(progress):
                return progress
            context.registry.poll(0)
            self.operation(context.registry.known)
            vigil.look()
            if context.monotonic() > deadline:
                look = f"`switchyard status {release}` and the log of its driver say more"
                raise SwitchyardError(f"{what} within {timeout_s:g} s", fix="; ".join(filter(None, (fix, look))))

    def end(self, release: str, name: str) -> Mark:
        """Where a release is for this operation: at its mark of that name (`evidence`, `barrier`, `aligned`), or at its
        end if it could not meet the other release.
        """
        return self.ends[release] if release in self.ends else self._mark(release, name)

    def _mark(self, release: str, name: str) -> Mark:
        progress = self.tail(release).newest
        mark: Mark | None = getattr(progress, name) if progress is not None else None
        if mark is None or mark.op != self.plan.id:
            raise SwitchyardError(f"{release} has no {name} mark for {self.plan.id}", fix=self.plan.again)
        return mark
