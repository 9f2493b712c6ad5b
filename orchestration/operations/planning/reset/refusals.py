"""What a reset is refused for."""

from __future__ import annotations

from orchestration.operations.looking.costs import Cost, as_size, free_bytes
from orchestration.operations.looking.in_use import needing_result, readers_of, refuse_unfinished
from orchestration.operations.looking.parts import lost_parts, refuse_lost
from orchestration.operations.planning.reset.consumers import read_by_consumers
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.plans.plan import Plan, join, request_of
from orchestration.operations.plans.requests import PlanRequest
from orchestration.operations.reading import Reading
from pipelines.engine.checkpoint import newest_folder, release_folder
from pipelines.errors import Refused
from pipelines.model.parts import Loss, Part
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import Choice, Objection


def under_way(state: RegistryState, release: Release, asked: PlanRequest) -> Plan | None:
    """The plan of the operation under way on `release`, if it was asked for the same."""
    blocking = state.blocking(release.name)
    if blocking is None or request_of(blocking.opened) != asked:
        return None
    return Plan.from_journal(blocking.opened)


def refuse_behind(state: RegistryState, release: Release) -> None:
    """Raises Refused with both ways out: the one that loses nothing, and the one that is always there."""
    try:
        refuse_unfinished(state, release)
    except Refused as error:
        raise Refused(
            error.what,
            fix=f"{error.fix}; where that can't be, a reset with --output truncate deletes the old result once consumers have gone on",
        ) from None


def must_stand(context: Reading, release: Release, request: Request) -> bool:
    """Whether it runs, and is to be stopped first. Raises Refused where it runs and isn't."""
    holder = context.holder(release)
    if holder is not None and not request.stop:
        raise Refused(
            f"{release.name} is run by {holder}",
            fix=f"`switchyard stop {release.name} --execute` first, or add --stop",
        )
    return holder is not None


def refuse_without_checkpoint(context: Reading, release: Release) -> None:
    if newest_folder(context.settings, release.name, release.generation) is None:
        folder = release_folder(context.settings, release.name)
        raise Refused(
            f"the checkpoint of {release.name} is not in {folder}: there is no state to keep",
            fix="bring it back, from a backup say; or --state clear with --to-earliest reads history again",
        )


def refuse_readers(context: Reading, state: RegistryState, release: Release, choice: Choice) -> None:
    """Raises Refused where a result would be deleted that a release reads, or a follower that nothing leads on."""
    if choice.output != "truncate":
        return
    topics = {release.topic_of(g) for g in (release.generation, read_by_consumers(state, release))}
    left = [
        who
        for topic in sorted(topics)
        # the followers of the live one are led on, and waited for
        for who in (
            [r.name for r in readers_of(state, topic)]
            if choice.live
            else needing_result(context, state, release, topic)
        )
    ]
    if left:
        raise Refused(
            f"{join(sorted(topics))} can't be deleted: still needed by {join(left)}",
            fix="--output new keeps it; or let them pass, or `switchyard forget-follower` one that is gone",
        )


def refuse_objections(found: list[Objection], *, force: bool) -> None:
    standing = [o for o in found if not (force and o.forced)]
    if standing:
        forced = " (--force goes over it)" if all(o.forced for o in standing) else ""
        raise Refused("; ".join(o.reason for o in standing), fix="; ".join(o.way_out for o in standing) + forced)


def must_fit(context: Reading, release: Release, choice: Choice, cost: Cost) -> None:
    """The archive stays, so the replay needs as much again, of what this disk holds: a result elsewhere is not reckoned."""
    needed = (cost.state_bytes if choice.state == "clear" else 0) + (cost.result_bytes or 0)
    if (free := free_bytes(context.settings)) < needed:
        raise Refused(
            f"the replay of {release.name} needs about {as_size(needed)} beside the archive, {as_size(free)} are free",
            fix="make room, or retire a release that nobody needs",
        )


def refuse_not_made_anew(lost: list[Loss], request: Request) -> set[Part]:
    """The vital parts that are lost. Raises Refused where the reset wouldn't make them anew, with the way back."""
    gone = lost_parts(lost)
    anew = request.chosen_state == "clear" and request.chosen_output == "new"
    no_input = any(loss.part == "input" and loss.how == "gone" for loss in lost)
    if gone - {"checkpoint"} and (no_input or not anew or "registry" in gone):
        refuse_lost(lost)
    return gone


def refuse_over(release: Release) -> None:
    """Raises Refused for a release that has nothing left to go on with."""
    if release.state in ("retired", "aborted"):
        raise Refused(f"{release.name} is {release.state}", fix="stage a new version")
