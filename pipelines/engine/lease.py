"""The lease of a release: only the holder of its newest token runs it. Who lives, and who carries out an operation."""

from __future__ import annotations

import logging
import os

from pipelines.errors import Refused
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Entry, Holder, LeaseTaken
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import Operation, RegistryState, Release
from pipelines.model.unread import refuse_unread
from pipelines.processes import boot_id, namespaces, start_ticks
from pipelines.settings import Settings

log = logging.getLogger(__name__)


def this_process(settings: Settings) -> Holder:
    """This process as the holder of a lease."""
    pid = os.getpid()
    started = start_ticks(pid) or 0
    return Holder(host=settings.host, boot_id=boot_id(), pid=pid, started=started, namespaces=namespaces())


def is_alive(holder: Holder) -> bool | None:
    """Whether the holder's process runs; None: this process can't know.

    Only a process of the same boot and the same namespaces can know it. The name of the host proves nothing: clones and
    containers may share it. Another boot proves nothing either, as the host may be another one.
    """
    try:
        if holder.boot_id != boot_id():
            return None
        if holder.namespaces and holder.namespaces == namespaces():
            return start_ticks(holder.pid) == holder.started
        # an entry of an earlier build: that it lives can be seen; if not, it may live where this process can't look
        return True if not holder.namespaces and start_ticks(holder.pid) == holder.started else None
    except OSError as error:
        # such as too many open files: unknown is not dead
        log.warning("whether process %d runs is unknown: %s", holder.pid, error)
        return None


def named(holder: Holder) -> str:
    """A process in words."""
    return f"process {holder.pid} on {holder.host}"


def held_by(release: Release, beat: Heartbeat | None, settings: Settings, *, at_ms: int) -> str | None:
    """Who runs `release`, in words; None if nobody does.

    A process that is proven dead holds nothing. Otherwise a heartbeat younger than `lease_timeout_s` counts or, before the
    first heartbeat of this token, a lease younger than `boot_timeout_s`: unknown is not dead. A time that is as far in the
    future comes from a wrong clock or is forged. It doesn't count either; else it would block the release until then.
    `at_ms`: now, by the broker's clock, which also stamped the heartbeat and the lease.
    """
    lease = release.lease
    if lease is None or release.lease_ended or is_alive(lease.holder) is False:
        return None
    who = f"{named(lease.holder)} (token {lease.token})"
    if beat is not None and beat.token == lease.token:
        age_s = (at_ms - beat.at_ms) / 1000
        return f"{who}, last heartbeat {max(0.0, age_s):.1f} s ago" if abs(age_s) < settings.lease_timeout_s else None
    age_s = (at_ms - lease.at_ms) / 1000
    return f"{who}, starting for {max(0.0, age_s):.0f} s" if abs(age_s) < settings.boot_timeout_s else None


def carried_by(operation: Operation, sign_ms: int | None, settings: Settings, *, at_ms: int) -> str | None:
    """Who carries out an operation, in words; None: nobody, or nobody any more.

    A process that is proven alive or dead needs no sign. Of any other, one younger than `lease_timeout_s` counts, and so
    does the entry by which it started. `sign_ms`: when it last gave a sign of life, None: not lately. `at_ms`: now. All by
    the broker's clock; a time that is as far in the future doesn't count, as for `held_by`.
    """
    carrier = operation.carrier
    alive = is_alive(carrier) if carrier is not None else False
    if carrier is None or alive is False:
        return None
    if alive:
        return named(carrier)
    ages_s = [(at_ms - each_ms) / 1000 for each_ms in (operation.carried_ms, sign_ms) if each_ms is not None]
    young_s = [age_s for age_s in ages_s if abs(age_s) < settings.lease_timeout_s]
    return f"{named(carrier)} (last sign of life {max(0.0, min(young_s)):.1f} s ago)" if young_s else None


def take_lease(registry: Registry, name: str, *, force: bool = False) -> LeaseTaken:
    """Takes the next token of release `name` for this process.

    `force`: an operator's order to take it from a holder that still runs. Raises Refused if the release is unknown, retired
    or held, or if an entry about it that must be understood can't be read.
    """
    settings = registry.settings
    taken: list[LeaseTaken] = []

    def decide(state: RegistryState) -> list[Entry]:
        release = state.releases.get(name)
        if release is None:
            raise Refused(f"there is no release {name}", fix="`switchyard status` lists the releases")
        if release.state == "retired":
            raise Refused(
                f"{name} is retired", fix=f"stage a new version: `switchyard stage {release.spec.app} --execute`"
            )
        refuse_unread(state.not_understood(name), name)
        beat = registry.heartbeats.latest().get(name)
        holder = held_by(release, beat, settings, at_ms=registry.now_ms())
        if holder is not None and not force:
            raise Refused(
                f"{name} is run by {holder}", fix=f"leave it running, or `switchyard stop {name} --execute` first"
            )
        taken[:] = [LeaseTaken(release=name, token=release.next_token, holder=this_process(settings))]
        return list(taken)

    registry.step(decide)
    return taken[0]
