"""How two releases meet at one boundary: the conditions and the stages."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.operations.comparing.backlog import Backlog
from orchestration.operations.looking.parts import refuse_lost
from orchestration.operations.looking.progress import end_by_group
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.switching import (
    Align,
    Compare,
    Fence,
    FlagBoundary,
    Meet,
    PrepareDelta,
    TakeNewest,
    VerifyStream,
    WriteDelta,
)
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.parts import lost_topics, parts_of
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import Release

# a driver that pauses finishes its batch first
PAUSE_TIMEOUT_S = 120.0
# long enough to compare results of any size
COMPARE_TIMEOUT_S = 1800.0


def meeting_stages(
    context: Reading, new: Release, live: Release, *, switch: int | None, alias: str | None
) -> tuple[Stage, ...]:
    """The stages by which `new` meets `live` at one boundary."""
    timeout_s = context.settings.switch_timeout_s
    return (
        Align(release=new.name, other=live.name, switch=switch, timeout_s=PAUSE_TIMEOUT_S),
        FlagBoundary(release=new.name, other=live.name, switch=switch, alias=alias, deadline_s=timeout_s),
        # without a switch no consumer waits at the boundary, and the batch under way may be long
        Meet(
            release=new.name,
            other=live.name,
            switch=switch,
            timeout_s=timeout_s if switch is not None else timeout_s + PAUSE_TIMEOUT_S,
        ),
    )


def require_running(context: Reading, release: Release, beats: Mapping[str, Heartbeat]) -> None:
    if context.holder_by(release, beats) is None:
        raise Refused(
            f"{release.name} isn't running",
            fix=f"`switchyard start {release.name} --execute`, then `switchyard wait {release.name}`",
        )


def far_behind(context: Reading, release: Release, beats: Mapping[str, Heartbeat]) -> str | None:
    """Why a release can't meet the other in one batch: it lags by more than a batch may hold. None: it can."""
    beat = beats.get(release.name)
    lag = beat.lag_records or 0 if beat else 0
    limit = (beat.batch_records if beat else None) or context.settings.max_records_per_batch
    if lag <= limit:
        return None
    return f"{release.name} is {lag:,} records behind; to meet another release, it may be at most one batch behind: {limit:,}"


def require_near(context: Reading, release: Release, beats: Mapping[str, Heartbeat]) -> None:
    far = far_behind(context, release, beats)
    if far is not None:
        raise Refused(far, fix=f"`switchyard wait {release.name}`, then try again")


def refuse_unknown_end(context: Reading, release: Release) -> None:
    """Raises Refused if a lost part keeps consumers from leaving a release exactly at its end.

    Without its result, they can't read up to the end. Without its progress, its consumer group may tell the end.
    """
    parts = {topic: part for topic, part in parts_of(release).items() if part in ("result", "progress")}
    lost = lost_topics(release, parts, context.cluster.topic_ids(parts))
    refuse_lost(loss for loss in lost if loss.part == "result")
    if lost:
        end_by_group(context, release)


def stages_apart(old: Release, new: Release, *, compare: bool) -> tuple[Stage, ...]:
    """The stages that lead consumers from the tables of `old` to those of `new`, although the two read different
    topics. `old` ends with its last batch, and `new` is taken at its newest boundary. `compare`: makes the evidence.
    """
    whole = (Compare(live=old.name, new=new.name, tolerance=0.0, samples=10),) if compare else ()
    return (Fence(release=old.name), TakeNewest(release=new.name), *whole)


def stages_ahead(backlog: Backlog | None, delta: WriteDelta | VerifyStream | None) -> tuple[Stage, ...]:
    """The stage that reads ahead before the drivers meet, if the backlog is too long to read while they meet."""
    if backlog is None or delta is None or not backlog.long:
        return ()
    return (PrepareDelta(evidence=delta.evidence, old=delta.old, new=delta.new),)
