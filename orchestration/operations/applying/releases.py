"""Applies the stages that make, start, stop and delete a release."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.local.running import processes_of
from orchestration.operations.applying.effects import applies
from orchestration.operations.applying.work import Work
from orchestration.operations.lifecycle import find_release, owned_topics, refuse_blocked, wanting
from orchestration.operations.looking.files import files_of, folders_of
from orchestration.operations.looking.in_use import needing_result, refuse_live, refuse_needed
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import join
from orchestration.operations.plans.stages.releases import (
    AcceptHistory,
    AwaitStopped,
    CreateTopic,
    DeleteFiles,
    DeleteGroup,
    DeleteTopic,
    Launch,
    RecordRelease,
    Repair,
    SetState,
    StoreCode,
    StoreTable,
    Want,
)
from pipelines.engine import table_file
from pipelines.engine.code import FrozenCode, store
from pipelines.engine.table_file import TableFile
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.offsets import GroupInUse
from pipelines.model.entries import Entry, HistoryAccepted, Repaired, StateSet
from pipelines.model.missing import without
from pipelines.model.names import app_of, is_delta_topic
from pipelines.model.registry import RegistryState, Release
from pipelines.objects import withdraw
from pipelines.paths import remove

# longer than the session of a driver's member (`engine/member.py`): Kafka keeps that of a killed driver so long
_MEMBERS_S = 20.0
# a driver on a free machine has started by then
_SLOW_START_S = 15.0


@applies(StoreCode)
def store_code(work: Work, stage: StoreCode) -> None:
    store(work.context.settings, FrozenCode(digest=stage.digest, data=stage.data))


@applies(StoreTable)
def store_table(work: Work, stage: StoreTable) -> None:
    table_file.store(work.context.settings, TableFile(digest=stage.digest, data=stage.data))


@applies(CreateTopic)
def create_topic(work: Work, stage: CreateTopic) -> None:
    work.context.registry.ensure()
    work.context.cluster.ensure_topic(stage.name, stage.partitions, stage.config)


@applies(RecordRelease)
def record_release(work: Work, stage: RecordRelease) -> None:
    def decide(state: RegistryState) -> Sequence[Entry]:
        if stage.release in state.releases:
            raise Refused(f"{stage.release} is already staged", fix=f"a release never changes; {work.plan.again}")
        return stage.entries

    work.step(decide)


@applies(AcceptHistory)
def accept_history(work: Work, stage: AcceptHistory) -> None:
    def decide(state: RegistryState) -> Sequence[Entry]:
        left = without(stage.missing, state.releases[stage.release].accepted)
        return [HistoryAccepted(release=stage.release, missing=left)] if left else []

    work.step(decide)


# -- its driver


@applies(Want)
def want(work: Work, stage: Want) -> None:
    def decide(state: RegistryState) -> Sequence[Entry]:
        release = find_release(state, stage.release)
        if _retires(work):
            refuse_live(state, release)
        entries = wanting(state, release, stage.wanted)
        # a release that is already wanted so is not blocked: a switch may need its dead driver to start again
        if entries:
            refuse_blocked(state, stage.release, but=work.plan.id)
        return entries

    _refuse_in_use(work, stage.release)
    work.step(decide)


@applies(SetState)
def set_state(work: Work, stage: SetState) -> None:
    def decide(state: RegistryState) -> Sequence[Entry]:
        release = find_release(state, stage.release)
        if release.state == stage.state:
            return []
        if _retires(work):
            refuse_live(state, release)
            _refuse_taken(work, release)
        return [StateSet(release=stage.release, state=stage.state)]

    _refuse_in_use(work, stage.release)
    work.step(decide)


def _refuse_taken(work: Work, release: Release) -> None:
    """Raises Refused if a driver has taken the lease since the release had stopped. One that takes it later is refused."""
    if release.lease is None or release.lease_ended:
        return
    holder = work.context.holder(release)
    if holder is not None:
        raise Refused(f"a driver has started {release.name} again ({holder}); it stops on its own", fix=work.plan.again)


def _retires(work: Work) -> bool:
    return work.plan.operation is Kind.RETIRE


def _refuse_in_use(work: Work, name: str) -> None:
    """Looks again whether the release is needed: that may have changed after the plan was made and before it blocked."""
    state = work.context.registry.state()
    # what is left of a retired release is of no use to anyone
    if _retires(work) and (release := find_release(state, name)).state != "retired":
        refuse_needed(work.context, state, release)


@applies(Launch)
def launch(work: Work, stage: Launch) -> None:
    context = work.context
    holder = None if stage.force else work.holder(stage.release)
    if holder is not None:
        context.say(f"{stage.release} already runs: {holder}")
        return
    # a start is in no journal; of any other operation, another process may have taken over
    before = work.now().releases[stage.release].token
    where = context.launcher.launch(stage.release, force=stage.force)
    context.say(f"driver of {stage.release}: {where}")
    log = context.launcher.log_path(stage.release)
    fix = f"its log is {log}" if log is not None else f"its log says why: {where}"

    slow_at = context.monotonic() + _SLOW_START_S

    def heard() -> bool:
        nonlocal slow_at
        if context.monotonic() > slow_at:
            slow_at = float("inf")
            limit_s = context.settings.boot_timeout_s
            context.say(f"the driver of {stage.release} is still starting; this waits for it {limit_s:g} s at most")
        beat = context.beats(10).get(stage.release)
        if beat is not None and beat.token > before and beat.state == "failed":
            raise SwitchyardError(f"the driver of {stage.release} failed: {beat.error}", fix=fix)
        return beat is not None and beat.token > before and beat.state != "starting"

    context.until(
        f"the driver of {stage.release} did not start",
        heard,
        timeout_s=context.settings.boot_timeout_s,
        fix=fix,
        poll_s=0.25,
    )


@applies(AwaitStopped)
def await_stopped(work: Work, stage: AwaitStopped) -> None:
    work.context.until(
        f"{stage.release} has not stopped",
        lambda: work.holder(stage.release) is None,
        timeout_s=stage.timeout_s,
        fix=f"it finishes its batch before it stops; see `switchyard status {stage.release}`",
        poll_s=0.1,
    )
    if _retires(work):
        _await_ended(work, stage)


def _await_ended(work: Work, stage: AwaitStopped) -> None:
    """Waits until no process of this host can write for the release any more, or its files would come back.

    A driver that froze is not heard, and writes on when it wakes up. The JVM of one that was killed ends a moment later.
    """
    context, name = work.context, stage.release
    left: list[str] = []

    def ended() -> bool:
        left[:] = [str(process.pid) for process in processes_of(name, context.settings.state_dir)]
        return not left

    try:
        context.until(
            f"{name} has stopped, but its processes have not ended", ended, timeout_s=stage.timeout_s, poll_s=0.25
        )
    except SwitchyardError as error:
        raise SwitchyardError(
            f"{error.what}: {join(left)}", fix=f"end them with `kill -9 {' '.join(left)}`; {work.plan.again}"
        ) from None


# -- its end


@applies(DeleteTopic)
def delete_topic(work: Work, stage: DeleteTopic) -> None:
    state, releases = work.now(), work.plan.releases
    own = {topic for name in releases if name in state.releases for topic in owned_topics(state, name)}
    # the state doesn't keep every evidence, so a delta's topic is known by its name alone
    if stage.name not in own and not any(is_delta_topic(stage.name, app_of(name)) for name in releases):
        raise work.foreign(f"topic {stage.name}")
    _refuse_used(work, state, stage.name)
    # asking followers may have taken long. While this operation is open, no other one changes the release
    work.now()
    work.context.cluster.delete_topics([stage.name])


def _refuse_used(work: Work, state: RegistryState, topic: str) -> None:
    """Raises Refused if a topic is in use. Of a release that is not retired, only archived results may be deleted, and
    those only if nobody needs them.
    """
    for name in work.plan.releases:
        release = state.releases.get(name)
        if release is None or release.state == "retired":
            continue
        archived = set(release.all_results).difference(release.result_topics.values())
        users = needing_result(work.context, state, release, [topic]) if topic in archived else [name]
        if users:
            raise work.in_use(f"topic {topic}", users)


def _refuse_unretired(work: Work, name: str, what: str) -> None:
    """Raises Refused if the release is not retired: then it uses `what`, which the plan would delete."""
    if find_release(work.now(), name).state != "retired":
        raise work.in_use(what, [name])


@applies(DeleteGroup)
def delete_group(work: Work, stage: DeleteGroup) -> None:
    work.refuse_foreign(stage.group)
    context = work.context
    deadline = context.monotonic() + _MEMBERS_S

    def deleted() -> bool:
        _refuse_unretired(work, stage.group, f"consumer group {stage.group}")
        try:
            context.cluster.delete_group(stage.group)
        except GroupInUse:
            if context.monotonic() > deadline:
                raise
            return False
        return True

    # its own end comes first, with the error that says who holds the group
    context.until(f"group {stage.group} still has members", deleted, timeout_s=2 * _MEMBERS_S, poll_s=0.5)


@applies(DeleteFiles)
def delete_files(work: Work, stage: DeleteFiles) -> None:
    work.refuse_foreign(stage.release)
    settings, state = work.context.settings, work.context.registry.state()
    # checked before anything is deleted: if one path leads out of the state folder, nothing is deleted
    files, folders = files_of(settings, stage), folders_of(settings, stage)
    _refuse_foreign_files(work, state, stage)
    for path, (root, parts) in folders.items():
        _refuse_unretired(work, stage.release, f"files of {stage.release}")
        remove(root, *parts)
        if root == settings.store_dir:
            withdraw(settings, path)
    for file, digest in files.items():
        # a release may have been staged with the same code or table after the plan was made
        others = (r for r in work.now().releases.values() if r.name != stage.release and r.state != "retired")
        if not any(digest in _digests(each) for each in others):
            file.unlink(missing_ok=True)
            withdraw(settings, file)


def _refuse_foreign_files(work: Work, state: RegistryState, stage: DeleteFiles) -> None:
    """Raises Refused if the plan would delete the code, a table or evidence of other releases."""
    own = _digests(find_release(state, stage.release))
    for digest in (stage.code_digest, *stage.tables):
        if digest is not None and digest not in own:
            raise work.foreign(f"the file of digest {digest}")
    # older evidence is no longer in the state; nobody uses it any more
    others = {e.id for e in state.evidence if stage.release not in (e.live, e.new)}
    for evidence in stage.evidence:
        if evidence in others:
            raise work.foreign(f"the evidence {evidence}")


def _digests(release: Release) -> set[str]:
    return {release.spec.code_digest, *(table.digest for table in release.spec.static_tables.values())}


@applies(Repair)
def repair(work: Work, stage: Repair) -> None:
    def decide(state: RegistryState) -> Sequence[Entry]:
        left = not {u.offset for u in state.unread}.isdisjoint(stage.offsets)
        return [Repaired(offsets=stage.offsets)] if left else []

    work.step(decide)
