"""Overviews: releases with their drivers, operations under way, the audit trail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestration.operations import journal
from orchestration.operations.context import Context
from orchestration.operations.looking.in_use import notes
from orchestration.operations.looking.parts import told_losses
from orchestration.operations.looking.unread import unread_progress
from pipelines.errors import Refused, Unavailable
from pipelines.model.entries import Entry, Opened
from pipelines.model.names import app_of
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import Operation, RegistryState, Release
from pipelines.model.unread import Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseStatus:
    """A release and its driver. `holder`: who runs it, in words; None: nobody, or unless `known`, nobody knows. `notes`: see
    `in_use.notes`. `lost`: whether some of them name what is gone, with the way back.
    """

    release: Release
    beat: Heartbeat | None
    holder: str | None
    live: bool
    notes: tuple[str, ...] = ()
    lost: bool = False
    known: bool = True

    @property
    def health(self) -> str:
        """`stopped`, `down` (it should run, but has no driver), the state in the driver's heartbeat, or `unknown`."""
        if not self.known:
            return "unknown"
        if self.holder is None:
            return "down" if self.release.wanted == "running" and self.release.state != "failed" else "stopped"
        return self.beat.state if self.beat else "starting"


def statuses(context: Context, *, parts: bool = True) -> list[ReleaseStatus]:
    """Every release, by name. Ends operations past their deadline first. `parts`: as for `statuses_of`."""
    return statuses_of(context, _expired(context), parts=parts)


def statuses_in_outage(context: Context) -> tuple[list[ReleaseStatus], Unavailable | None]:
    """As `statuses`. If Kafka only lets the registry be read, as with two of three brokers dead: what that says, and the error.

    Raises Unavailable if the registry can't be read either.
    """
    try:
        return statuses(context), None
    except Unavailable as outage:
        state = context.registry.state()
        found = [
            ReleaseStatus(
                release=release,
                beat=None,
                holder=None,
                live=(live := state.live(release.spec.app)) is not None and live.new == release.name,
                notes=tuple(notes(state, release)),
                known=False,
            )
            for release in sorted(state.releases.values(), key=lambda r: (r.spec.app, r.spec.version))
        ]
        return found, outage


def statuses_of(context: Context, state: RegistryState, *, parts: bool) -> list[ReleaseStatus]:
    """Every release of `state`, by name. Writes nothing.

    `parts`: its notes also name lost parts, those that a follower has yet to read, too, and say if a release can't be
    started because its newest progress record can't be read. That lists all topics and groups of the cluster, so don't
    use it every few seconds.
    """
    beats = context.beats() if state.releases else {}
    found = []
    for release in sorted(state.releases.values(), key=lambda r: (r.spec.app, r.spec.version)):
        beat = beats.get(release.name)
        current = beat if beat and beat.token == release.token else None
        live = state.live(release.spec.app)
        found.append(
            ReleaseStatus(
                release=release,
                beat=current,
                holder=context.holder_by(release, beats),
                live=live is not None and live.new == release.name,
                notes=tuple(notes(state, release)),
            )
        )
    return _with_losses(context, state, found) if parts and found else found


def _with_losses(context: Context, state: RegistryState, found: list[ReleaseStatus]) -> list[ReleaseStatus]:
    lost = told_losses(context, state)
    # those that somebody would have to start
    unread = unread_progress(context, (s.release for s in found if s.holder is None and s.release.wanted == "running"))
    for name, error in unread.items():
        lost.setdefault(name, []).append(error.in_one_line)
    return [replace(s, notes=(*s.notes, *(gone := lost.get(s.release.name, ()))), lost=bool(gone)) for s in found]


def open_operations(context: Context) -> list[Operation]:
    """Operations under way, oldest first. Ends those past their deadline first."""
    return [o for o in _expired(context).operations.values() if o.closed is None]


def audit(context: Context, name: str | None = None) -> Iterator[Entry | Unread]:
    """The registry's entries, oldest first; with `name`, only those about that release, app or operation.

    Ends operations past their deadline first, so the entries include that.
    """
    _expired(context)
    # an entry of an operation on a release is about that release, even if it does not name it
    operations: set[str] = set()
    for entry in context.registry.history():
        if name is None:
            yield entry
            continue
        mine = name in (entry.about if isinstance(entry, Unread) else _subjects(entry))
        if mine and isinstance(entry, Opened):
            operations.add(entry.id)
        if mine or entry.op in operations:
            yield entry


def _expired(context: Context) -> RegistryState:
    """The registry after `journal.expire`; as it is, if this user may only read it."""
    try:
        return journal.expire(context.registry)
    except Refused as error:
        context.say(f"an operation is past its deadline, but this user can't end it: {error.in_one_line}")
        return context.registry.known


def _subjects(entry: Entry) -> set[str]:
    data = entry.model_dump()
    spec = data.get("spec") or {}
    switch = data.get("switch") if isinstance(data.get("switch"), dict) else {}
    found = [data.get(n) for n in ("release", "other", "alias", "id", "op", "live", "new")]
    found += [spec.get("release"), spec.get("app"), (switch or {}).get("old"), (switch or {}).get("new")]
    found += list(data.get("releases") or ())
    subjects = {x for x in found if isinstance(x, str)}
    return subjects | set(map(app_of, subjects))
