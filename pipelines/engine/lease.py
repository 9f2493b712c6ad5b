"""The lease of a release: only the holder of its newest token runs it."""

from __future__ import annotations

import logging
import os

from pipelines.errors import Refused
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.registry import Registry, now_ms
from pipelines.model.entries import Entry, Holder, LeaseTaken
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import RegistryState, Release
from pipelines.model.unread import refuse_unread
from pipelines.processes import boot_id, start_ticks
from pipelines.settings import Settings

log = logging.getLogger(__name__)


def this_process(settings: Settings) -> Holder:
    """This process as the holder of a lease."""
    pid = os.getpid()
    return Holder(host=settings.host, boot_id=boot_id(), pid=pid, started=start_ticks(pid) or 0)


def is_alive(holder: Holder, settings: Settings) -> bool | None:
    """Whether the holder's process runs; None: it is on another host, or this one can't look."""
    if holder.host != settings.host:
        return None
    try:
        return holder.boot_id == boot_id() and start_ticks(holder.pid) == holder.started
    except OSError as error:
        # such as too many open files: unknown is not dead
        log.warning("whether process %d runs is unknown: %s", holder.pid, error)
        return None


def held_by(release: Release, beat: Heartbeat | None, settings: Settings, *, at_ms: int) -> str | None:
    """Who runs `release`, in words; None if nobody does.

    A process that is proven dead holds nothing. Otherwise a heartbeat younger than `lease_timeout_s` counts or, before the
    first heartbeat of this token, a lease younger than `boot_timeout_s`: unknown is not dead. A time that is as far in the
    future comes from a wrong clock or is forged. It doesn't count either; else it would block the release until then.
    """
    lease = release.lease
    if lease is None or release.lease_ended or is_alive(lease.holder, settings) is False:
        return None
    who = f"process {lease.holder.pid} on {lease.holder.host} (token {lease.token})"
    if beat is not None and beat.token == lease.token:
        age_s = (at_ms - beat.at_ms) / 1000
        return f"{who}, last heartbeat {max(0.0, age_s):.1f} s ago" if abs(age_s) < settings.lease_timeout_s else None
    age_s = (at_ms - lease.at_ms) / 1000
    return f"{who}, starting for {max(0.0, age_s):.0f} s" if abs(age_s) < settings.boot_timeout_s else None


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
        holder = held_by(release, latest_heartbeats(settings).get(name), settings, at_ms=now_ms())
        if holder is not None and not force:
            raise Refused(
                f"{name} is run by {holder}", fix=f"leave it running, or `switchyard stop {name} --execute` first"
            )
        taken[:] = [LeaseTaken(release=name, token=release.next_token, holder=this_process(settings))]
        return list(taken)

    registry.step(decide)
    return taken[0]
