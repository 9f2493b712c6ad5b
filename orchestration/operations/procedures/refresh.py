"""Keeps the last diff of an app's live release and standby up to date, so that a rollback always takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from orchestration.operations.comparing.changes import Changes
from orchestration.operations.comparing.evidence import evidence_for, narrowed
from orchestration.operations.comparing.saving import save
from orchestration.operations.comparing.upkeep import Upkeep, load, too_old, upkeep_of
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import another_version, before_live, live_release, refuse_blocked
from orchestration.operations.looking.progress import progress_of
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.client import consumer
from pipelines.kafka.progress import progress_history
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import RegistryState
from pipelines.model.switch import of_generation
from pipelines.settings import Settings

# offsets per partition, about half a minute of reading; after each portion, what was read is saved
_PORTION = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What a refresh did. `records`: how many offsets it read from both results. `keys`: how many were touched since
    the diff.
    """

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
    """The evidence that a rollback of `app` would use. Raises BadUsage if nothing is live, Refused if there is none to
    refresh.
    """
    live = live_release(state, app)
    if live is None:
        known = ", ".join(sorted(state.chains)) or "none"
        raise BadUsage(
            f"no release of {app} is live",
            fix=f"the apps with a live release are: {known}; `switchyard promote {app} --execute` makes one live",
        )
    standby = before_live(state, app)
    if standby is None or standby.state != "standby":
        raise Refused(
            f"{live.name} has no standby to go back to",
            fix=another_version(app),
        )
    if not live.spec.tables:
        raise Refused(
            f"no result of {app} is a table, so a rollback needs no diff",
            fix=f"nothing is left to do; `switchyard rollback {app}` shows its plan",
        )
    for release in (live, standby):
        refuse_blocked(state, release.name)
    evidence = evidence_for(state, standby, live, apart=True)
    if evidence is None:
        raise Refused(
            f"{standby.name} and {live.name} were never compared in their current generations",
            fix=f"run `switchyard diff {live.name}` first",
        )
    return narrowed(evidence, live.spec.tables)


def to_refresh(state: RegistryState) -> list[str]:
    """The apps whose rollback would use a diff that can be refreshed now."""
    return [app for app in sorted(state.chains) if _is_refreshable(state, app)]


def _is_refreshable(state: RegistryState, app: str) -> bool:
    try:
        refreshable(state, app)
    except (Refused, BadUsage):
        return False
    return True


def refresh(context: Context, app: str) -> Refreshed:
    """Reads what both results have written since their diff or the last refresh, and saves it beside the diff.

    Neither release takes part, and nothing is written to Kafka. Raises Refused while an operation is under way on
    either, if one of them is not running, and if compaction may have removed tombstones since (`too_old`).
    """
    evidence = refreshable(context.state_for_planning(), app)
    _refuse_dead(context, evidence)
    kept_ms = upkeep_of(context.settings, evidence).at_ms
    if (old := too_old(evidence, context.now_ms(), kept_ms=kept_ms)) is not None:
        raise Refused(old, fix=f"run `switchyard diff {evidence.new}` again")
    records, keys = read_on(
        context.settings,
        evidence,
        _goal(context, app, evidence),
        before_saving=lambda: _refuse_if_changed(context, app, evidence),
    )
    return Refreshed(evidence=evidence.id, releases=(evidence.live, evidence.new), records=records, keys=keys)


def _goal(context: Context, app: str, evidence: EvidenceRecorded) -> Upkeep:
    """How far to bring evidence up to date: to the live release's newest boundary, and to the standby's last boundary
    that is not after it, where consumers would go if the live release ended now. Later records would be past that
    switch.
    """
    now, state = context.now_ms(), context.registry.known
    ends = {evidence.live: evidence.live_result, evidence.new: evidence.new_result}
    live, standby = live_release(state, app), before_live(state, app)
    newest = progress_of(context, live) if live is not None else None
    if live is not None and standby is not None and newest is not None:
        ends[live.name] = newest.result
        history = of_generation(progress_history(context.settings, standby.name), standby.generation)
        level = [n for n, p in enumerate(history) if newest.boundary.position.dominates(p.boundary.position)]
        if level:
            ends[standby.name] = history[level[-1]].result
        # the time of the first record that is not read
        now = next((p.at_ms for p in history[level[-1] + 1 if level else 0 :]), now)
    tables = state.releases[evidence.new].spec.tables
    return Upkeep(live_result=ends[evidence.live].only(tables), new_result=ends[evidence.new].only(tables), at_ms=now)


def read_on(
    settings: Settings, evidence: EvidenceRecorded, goal: Upkeep, *, before_saving: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Reads both results from where the last refresh stopped up to `goal`, and saves what it read after each portion,
    so that an interrupted refresh does not start again. `before_saving` raises if it must not be saved.

    Returns how many offsets were read, and how many keys were touched since the evidence.
    """
    kept, *changes = load(settings, evidence)
    live, new = (Changes(*side) for side in zip((kept.live_result, kept.new_result), changes, strict=True))
    before = live.position, new.position
    reader = consumer(settings, auto_offset_reset="earliest", enable_partition_eof=True)
    try:
        for portion in _portions(kept, goal):
            live.read(reader, portion.live_result, settings.request_timeout_s, lambda: None)
            new.read(reader, portion.new_result, settings.request_timeout_s, lambda: None)
            before_saving()
            reached = replace(portion, live_result=live.position, new_result=new.position)
            save(settings, evidence, reached, live.changes, new.changes)
    finally:
        reader.close()
    records = live.position.records_since(before[0]) + new.position.records_since(before[1])
    return records, len(live.changes.keys() | new.changes.keys())


def _portions(kept: Upkeep, goal: Upkeep) -> Iterator[Upkeep]:
    """The way from `kept` to `goal`, in steps of `_PORTION` offsets per partition. `at_ms` stays `kept`'s until the
    last.
    """
    at = kept
    while True:
        at = replace(
            at,
            live_result=_toward(at.live_result, goal.live_result),
            new_result=_toward(at.new_result, goal.new_result),
        )
        if (at.live_result, at.new_result) == (goal.live_result, goal.new_result):
            yield goal
            return
        yield at


def _toward(at: ResultPosition, goal: ResultPosition) -> ResultPosition:
    # if more was already read, stay there: nothing is read
    return ResultPosition(
        topics={
            topic: {p: min(end, at.of(topic).get(p, 0) + _PORTION) for p, end in offsets.items()}
            for topic, offsets in goal.topics.items()
        }
    )


def _refuse_if_changed(context: Context, app: str, evidence: EvidenceRecorded) -> None:
    # if a switch has started in the meantime, its cut may be before what was read
    if refreshable(context.state_for_planning(), app).id != evidence.id:
        raise Refused(
            f"{evidence.id} is no longer the diff that a rollback of {app} uses",
            fix=f"run `switchyard refresh {app}` again",
        )


def _refuse_dead(context: Context, evidence: EvidenceRecorded) -> None:
    state, beats = context.registry.known, context.beats()
    for name in (evidence.live, evidence.new):
        if context.holder_by(state.releases[name], beats) is None:
            raise Refused(f"{name} isn't running", fix=f"`switchyard start {name} --execute`")
