"""Lost parts of releases: `status` shows them; `start`, `reset`, `promote` and `rollback` take them into account."""

from __future__ import annotations

from collections.abc import Iterable, Set

from orchestration.operations.comparing.evidence import evidence_for, evidence_path
from orchestration.operations.lifecycle import live_release
from orchestration.operations.looking.awaited import lost_to_followers
from orchestration.operations.looking.deltas import Ends, delta_ends, how_lost
from orchestration.operations.reading import Reading
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.code import code_place
from pipelines.engine.copies import has_whole_checkpoint
from pipelines.engine.table_file import table_path
from pipelines.errors import Refused, SwitchyardError, Unavailable
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.names import progress_topic
from pipelines.model.parts import Loss, Part, lost_checkpoint, lost_table, lost_topics, parts_of, vital
from pipelines.model.progress import Progress
from pipelines.model.registry import RegistryState, Release
from pipelines.objects import holds

# a release in these states may have committed a batch, so it should have a checkpoint and a group
_HAS_RUN = ("hydrating", "ready", "live", "standby", "failed")


def losses_of(context: Reading, state: RegistryState, releases: Iterable[Release]) -> dict[str, list[Loss]]:
    """Release -> its lost parts. Takes few requests to Kafka for all releases. Raises Unavailable without a broker."""
    mine = [r for r in releases if r.state != "retired" and r.under is not None]
    serving = {r.name: _serving(state, r) for r in mine}
    topics = {topic for r in mine for topic in parts_of(r)}
    deltas = {t for each in serving.values() for e in each for t in _deltas(e)}
    topics |= deltas
    if not topics:
        return {}
    now = context.cluster.topic_ids(topics)
    groups = context.cluster.group_names()
    ends = delta_ends(context, deltas & now.keys())
    return {
        r.name: [
            *lost_topics(r, parts_of(r), now),
            *_files(context, r, now.keys()),
            *_group(context, r, now.keys(), groups),
            *(loss for e in serving[r.name] for loss in _of_evidence(context, r, e, ends)),
        ]
        for r in mine
    }


def losses(context: Reading, state: RegistryState, release: Release) -> list[Loss]:
    """The lost parts of one release."""
    return losses_of(context, state, [release]).get(release.name, [])


def told_losses(context: Reading, state: RegistryState) -> dict[str, list[str]]:
    """Release -> what `status` says about its lost parts, each with its way back; without those that its failure names."""
    try:
        found, awaited = _as_far_as_allowed(context, state), lost_to_followers(context, state)
    except SwitchyardError as error:
        # whoever asks still sees the rest
        context.say(f"can't tell whether releases have lost parts: {error.in_one_line}")
        return {}
    said = dict[str, list[str]]()
    for name, lost in found.items():
        # the release failed by these; the failure is shown, with their ways back
        failure = state.releases[name].failure or ""
        if told := [loss.told for loss in lost if loss.what not in failure]:
            said[name] = told
    for name, more in awaited.items():
        said.setdefault(name, []).extend(more)
    return said


def _as_far_as_allowed(context: Reading, state: RegistryState) -> dict[str, list[Loss]]:
    """`losses_of` all releases, without those of apps that this user may not ask about. Raises Unavailable without a broker."""
    everybody, found = list(state.releases.values()), dict[str, list[Loss]]()
    try:
        return losses_of(context, state, everybody)
    except Refused:
        for app in sorted({release.spec.app for release in everybody}):
            try:
                found |= losses_of(context, state, state.of_app(app))
            except Refused as error:
                context.say(f"can't tell whether releases of {app} have lost parts: {error.in_one_line}")
    return found


def lost_parts(found: Iterable[Loss]) -> set[Part]:
    """The kinds of lost parts without which no batch can be committed."""
    return {loss.part for loss in vital(found)}


def refuse_lost(found: Iterable[Loss]) -> None:
    """Raises Refused if a part is lost without which the release can't run. It ignores a lost checkpoint: the driver
    knows more about that.
    """
    standing = [loss for loss in vital(found) if loss.part != "checkpoint"]
    if standing:
        raise Refused(
            "; ".join(loss.what for loss in standing),
            fix="; ".join(dict.fromkeys(loss.way for loss in standing)),
        )


def _serving(state: RegistryState, release: Release) -> list[EvidenceRecorded]:
    """The evidence that a promotion or a rollback to this release would use: the newest one with the live release."""
    live = live_release(state, release.spec.app)
    if live is None or live is release:
        return []
    evidence = evidence_for(state, live, release, apart=True)
    return [evidence] if evidence is not None else []


def _deltas(evidence: EvidenceRecorded) -> dict[str, int]:
    """Delta topic -> the end offset that it must have."""
    segments = [segment for segment in (evidence.forward, evidence.backward) if segment is not None]
    return {s.topic: max(o.end for o in segments if o.topic == s.topic) for s in segments}


def _of_evidence(context: Reading, release: Release, evidence: EvidenceRecorded, ends: Ends) -> Iterable[Loss]:
    """The lost parts of evidence. `ends`: end offsets of the delta topics that exist."""
    for topic, needed in sorted(_deltas(evidence).items()):
        if (how := how_lost(topic, needed, ends)) is not None:
            yield Loss(release=release.name, part="delta", name=topic, how=how)
    path = evidence_path(context.settings, evidence.id)
    if _is_here(context, release) and not holds(context.settings, path):
        yield Loss(release=release.name, part="evidence", name=evidence.id)


def _files(context: Reading, release: Release, topics: Set[str]) -> Iterable[Loss]:
    if not _is_here(context, release):
        return
    settings, name = context.settings, release.name
    code = code_place(settings, release.spec.code_digest)
    if not holds(settings, code):
        yield Loss(release=name, part="frozen code", name=str(code))
    for table, given in release.spec.static_tables.items():
        path = table_path(settings, given.digest)
        if not holds(settings, path):
            yield lost_table(name, table, path)
    if release.state in _HAS_RUN and not has_whole_checkpoint(settings, name, release.generation):
        last = _last(context, name) if progress_topic(name) in topics else None
        if last is not None and last.generation == release.generation and last.boundary.batch_id >= 0:
            yield lost_checkpoint(name, release_folder(settings, name))


def _group(context: Reading, release: Release, topics: Set[str], groups: Set[str]) -> Iterable[Loss]:
    name = release.name
    if release.state not in _HAS_RUN or name in groups or progress_topic(name) not in topics:
        return
    # a generation that has committed nothing has a group only while its driver runs
    last = _last(context, name)
    if last is not None and last.generation == release.generation and last.boundary.batch_id >= 0:
        yield Loss(release=name, part="group", name=name)


def _last(context: Reading, name: str) -> Progress | None:
    """The newest progress record of a release; None if it can't be read, which must not hide what others have lost."""
    try:
        return context.progress(name)
    except Refused as error:
        context.say(f"can't tell whether {name} has lost its checkpoint or its group: {error.in_one_line}")
        return None


def _is_here(context: Reading, release: Release) -> bool:
    """Whether the files of a release should be on this host: they are where its driver ran last."""
    return release.lease is not None and release.lease.holder.host == context.settings.host


def belongs_elsewhere(context: Reading, release: Release) -> bool:
    """Whether another host should run a release: its frozen code isn't in this store, and no driver of this host
    ran it last. With a bucket, also if its state may be on that host alone.
    """
    settings = context.settings
    if _is_here(context, release):
        return False
    try:
        if not holds(settings, code_place(settings, release.spec.code_digest)):
            return True
        # hosts share the code, but not each checkpoint: a driver without it would fail
        has_run = settings.bucket is not None and release.lease is not None
        return has_run and not has_whole_checkpoint(settings, release.name, release.generation)
    except Unavailable:
        # no driver of this host could fetch it now
        return True
    except SwitchyardError:
        # a link that leads out of the store: whoever starts the release says so
        return False
