"""The reasons to refuse a reset."""

from __future__ import annotations

from orchestration.operations.looking.costs import Cost, as_size, free_bytes
from orchestration.operations.looking.in_use import needing_result, readers_of, refuse_unfinished
from orchestration.operations.looking.parts import lost_parts, refuse_lost
from orchestration.operations.planning.reset.consumers import read_by_consumers
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.plans.plan import Plan, join, request_of
from orchestration.operations.plans.requests import PlanRequest
from orchestration.operations.reading import Reading
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.copies import has_whole_checkpoint
from pipelines.errors import Refused
from pipelines.model.parts import Loss, Part
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import Choice, Objection


def under_way(state: RegistryState, release: Release, asked: PlanRequest) -> Plan | None:
    """The plan of the operation under way on `release`, if its request is the same."""
    blocking = state.blocking(release.name)
    if blocking is None or request_of(blocking.opened) != asked:
        return None
    return Plan.from_journal(blocking.opened)


def refuse_unmoved_consumers(state: RegistryState, release: Release) -> None:
    """Raises Refused if consumers still read an old result. Names both ways out: one loses nothing, one always works."""
    try:
        refuse_unfinished(state, release)
    except Refused as error:
        raise Refused(
            error.what,
            fix=f"{error.fix}; if that fails, a reset with --output truncate deletes the old result once consumers have left it",
        ) from None


def must_be_stopped(context: Reading, release: Release, request: Request) -> bool:
    """Whether the release runs and must be stopped first. Raises Refused if it runs and `stop` is not given."""
    holder = context.holder(release)
    if holder is not None and not request.stop:
        raise Refused(
            f"{release.name} is run by {holder}",
            fix=f"`switchyard stop {release.name} --execute` first, or add --stop",
        )
    return holder is not None


def refuse_without_checkpoint(context: Reading, release: Release) -> None:
    if not has_whole_checkpoint(context.settings, release.name, release.generation):
        folder = release_folder(context.settings, release.name)
        raise Refused(
            f"{folder} holds no complete checkpoint of {release.name}, so there is no state to keep",
            fix=f"restore the checkpoint, for example from a backup; or read history again: `switchyard reset {release.name} --to-earliest`",
        )


def refuse_readers(context: Reading, state: RegistryState, release: Release, choice: Choice) -> None:
    """Raises Refused if the reset would delete a result that a release reads, or one with a follower that no switch
    moves away.
    """
    if choice.output != "truncate":
        return
    generations = release.generation, read_by_consumers(state, release)
    topics = {topic for g in generations for topic in release.topics_of(g).values()}
    left = [
        who
        for topic in sorted(topics)
        # followers of the live release are moved on and waited for
        for who in (
            [r.name for r in readers_of(state, topic)]
            if choice.live
            else needing_result(context, state, release, [topic])
        )
    ]
    if left:
        raise Refused(
            f"{join(sorted(topics))} can't be deleted: still needed by {join(left)}",
            fix=f"keep it with --output new; or wait until followers have passed; or `switchyard forget-follower {release.spec.app} GROUP` for one that will not come back",
        )


def refuse_objections(found: list[Objection], *, force: bool) -> None:
    standing = [o for o in found if not (force and o.forced)]
    if standing:
        forced = " (--force overrides this)" if all(o.forced for o in standing) else ""
        raise Refused("; ".join(o.reason for o in standing), fix="; ".join(o.way_out for o in standing) + forced)


def must_fit(context: Reading, release: Release, choice: Choice, cost: Cost) -> None:
    """Raises Refused if the disk is too small. The archive stays, so the replay needs as much space again. A result on
    another machine's disk does not count.
    """
    needed = (cost.state_bytes if choice.state == "clear" else 0) + (cost.result_bytes or 0)
    if (free := free_bytes(context.settings)) < needed:
        raise Refused(
            f"the replay of {release.name} needs about {as_size(needed)} beside the archive, but only {as_size(free)} are free",
            fix="free some disk space, or delete a release that nobody needs: `switchyard retire RELEASE --execute`",
        )


def refuse_lost_parts(lost: list[Loss], request: Request) -> set[Part]:
    """The lost parts without which no batch can be committed. Raises Refused, with the way back, if the reset would not
    create them again.
    """
    gone = lost_parts(lost)
    written_again = request.chosen_state == "clear" and request.chosen_output == "new"
    no_input = any(loss.part == "input" and loss.how == "gone" for loss in lost)
    if gone - {"checkpoint"} and (no_input or not written_again or "registry" in gone):
        refuse_lost(lost)
    return gone


def refuse_over(release: Release) -> None:
    """Raises Refused for a release that is retired."""
    if release.state == "retired":
        raise Refused(
            f"{release.name} is {release.state}",
            fix=f"`switchyard stage {release.spec.app} [--from FOLDER] --execute` makes a new version",
        )
