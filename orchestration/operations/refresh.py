"""Keeping the last diff of an app's live release and its standby up to date, so that going back takes seconds any day."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestration.operations import journal
from orchestration.operations.context import Context, live_release, refuse_blocked
from orchestration.operations.delta import Since
from orchestration.operations.switch import before_live, evidence_for
from orchestration.operations.upkeep import Upkeep, load, save, too_old
from pipelines.engine.lease import held_by
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.client import admin, consumer
from pipelines.kafka.heartbeats import latest_heartbeats
from pipelines.kafka.registry import now_ms
from pipelines.model.registry import EvidenceRecorded, RegistryState
from pipelines.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What a refresh did. `records`: offsets that it read, of both results. `keys`: how many were touched since the diff."""

    evidence: str
    releases: tuple[str, str]
    records: int
    keys: int

    def __str__(self) -> str:
        one, other = self.releases
        return (
            f"{self.evidence} of {one} and {other} is up to date: {self.records:,} result records read, "
            f"{self.keys:,} keys touched since the diff"
        )


def refreshable(state: RegistryState, app: str) -> EvidenceRecorded:
    """The evidence by which consumers of `app` would go back. Raises Refused, saying why, where there is none to refresh."""
    live = live_release(state, app)
    if live is None:
        known = ", ".join(sorted(state.chains)) or "nothing"
        raise BadUsage(f"nothing of {app} is live", fix=f"name an app; live are: {known}")
    standby = before_live(state, app)
    if standby is None or standby.state != "standby":
        raise Refused(f"{live.name} has no standby to go back to", fix="promote another version first")
    if not live.spec.table:
        raise Refused(f"the result of {app} is a stream: going back needs no diff", fix="nothing is left to do")
    for release in (live, standby):
        refuse_blocked(state, release.name)
    evidence = evidence_for(state, standby, live, apart=True)
    if evidence is None:
        raise Refused(
            f"{standby.name} and {live.name} were never compared, as they are now", fix=f"`switchyard diff {live.name}`"
        )
    return evidence


def to_refresh(state: RegistryState) -> list[str]:
    """The apps whose consumers would go back by a diff that can be refreshed now."""
    return [app for app in sorted(state.chains) if _is_refreshable(state, app)]


def _is_refreshable(state: RegistryState, app: str) -> bool:
    try:
        refreshable(state, app)
    except (Refused, BadUsage):
        return False
    return True


def refresh(context: Context, app: str) -> Refreshed:
    """Reads what both results have written since their diff, or since the last refresh, and keeps it beside the diff.

    Neither release has a part in it, and nothing is written to Kafka. Raises Refused while an operation is under way on
    either, and where what tells of deletions may be gone.
    """
    evidence = refreshable(journal.standing(context.registry), app)
    _refuse_dead(context, evidence)
    records, keys = read_on(
        context.settings, evidence, before_saving=lambda: _refuse_if_changed(context, app, evidence)
    )
    return Refreshed(evidence=evidence.id, releases=(evidence.live, evidence.new), records=records, keys=keys)


def read_on(
    settings: Settings, evidence: EvidenceRecorded, *, before_saving: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Reads both results from where an evidence is kept up to now, and keeps what came. Returns how many offsets were
    read, and how many keys were touched since the evidence. `before_saving` raises where it must not be kept.
    """
    kept, *changes = load(settings, evidence)
    if (old := too_old(evidence, now_ms(), kept_ms=kept.at_ms)) is not None:
        raise Refused(old, fix=f"`switchyard diff {evidence.new}`")
    # before the first is read: what is deleted later is deleted behind it
    at_ms = now_ms()
    sides = [Since(*side) for side in zip((kept.live_result, kept.new_result), changes, strict=True)]
    client, records = admin(settings), 0
    reader = consumer(settings, auto_offset_reset="earliest", enable_partition_eof=True)
    try:
        for side in sides:
            end = side.now(settings, client)
            records += end.records_since(side.position)
            side.read(reader, end, settings.request_timeout_s, lambda: None)
    finally:
        reader.close()
    before_saving()
    live, new = sides
    upkeep = Upkeep(live_result=live.position, new_result=new.position, at_ms=at_ms)
    save(settings, evidence, upkeep, live.changes, new.changes)
    return records, len(live.changes.keys() | new.changes.keys())


def _refuse_if_changed(context: Context, app: str, evidence: EvidenceRecorded) -> None:
    # where a switch has begun meanwhile, its cut may lie before what was read
    if refreshable(context.registry.state(), app).id != evidence.id:
        raise Refused(f"{evidence.id} is no more the diff by which {app} would go back", fix="refresh again")
    _refuse_dead(context, evidence)


def _refuse_dead(context: Context, evidence: EvidenceRecorded) -> None:
    """Without the live one, consumers go to where the standby was when it ended, and the standby has gone on since."""
    state, beats = context.registry.known, latest_heartbeats(context.settings)
    for name in (evidence.live, evidence.new):
        if held_by(state.releases[name], beats.get(name), context.settings, at_ms=now_ms()) is None:
            raise Refused(f"{name} isn't running", fix=f"`switchyard start {name} --execute`, or go back as it is")
