"""The gate of a release: runs its suite over a fixed range of its result, and records the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from expectations.names import may_be_own
from expectations.verdict import VOLUME_TOLERANCE, GateRequest, Verdict
from orchestration.local.data_docs import folder_of, in_store
from orchestration.operations import journal
from orchestration.operations.comparing.evidence import Comparison, are_compared, evidence_for
from orchestration.operations.context import Context
from orchestration.operations.lifecycle import find_release, live_release
from orchestration.operations.looking.history import history_of
from orchestration.operations.looking.in_use import refuse_unfinished
from orchestration.operations.plans.kind import RESETS
from orchestration.operations.procedures.accept import accept_now
from pipelines.engine.code import code_path
from pipelines.engine.guard import admit
from pipelines.errors import BadUsage, Refused
from pipelines.model.entries import EvidenceRecorded, VerdictRecorded, Via
from pipelines.model.positions import ResultPosition
from pipelines.model.registry import RegistryState, Release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BeingReset(Refused):
    """The release is in the middle of a reset: its result is neither complete nor the one that consumers read."""


def docs_dir(context: Context) -> Path:
    """The folder of the Data Docs. Raises SwitchyardError if a link leads out of the store."""
    return folder_of(context.settings)


def check(
    context: Context, name: str, *, volume_tolerance: float = VOLUME_TOLERANCE, accept_missing: bool = False
) -> Verdict:
    """Runs the suite of each of a release's results over it, up to the evidence cut, and records the verdict.

    `volume_tolerance`: the ratio by which the number of its rows may differ from the live release's. Without a live
    release to compare with, the suite runs up to the newest committed result.

    Raises BadUsage if the app has no suite; Refused if there is nothing to check, if an unfinished reset has not moved
    consumers yet, or if another release is live and there is no evidence yet; BeingReset; MissingHistory if the release
    lacks input that the live release has read, unless `accept_missing`.
    """
    state = journal.expire(context.registry)
    release = find_release(state, name)
    spec = release.spec
    if not spec.suites:
        raise BadUsage(
            f"{spec.app} has no suite", fix="add suite=... to the app, and write the suite in expectations/suites"
        )
    _refuse_half(state, release)
    live = live_release(state, spec.app)
    if live is not None and live is not release:
        accept_now(context, history_of(context, state, release, live), accept=accept_missing)
    evidence = _evidence(context, release, live)
    progress = context.progress(release.name)
    if progress is None or progress.generation != release.generation:
        raise Refused(
            f"{release.name} has no result yet",
            fix=f"`switchyard start {release.name} --execute`, then `switchyard wait {release.name}`",
        )
    upto = _upto(release, evidence) or progress.result
    verdict = _verdict(context, release, evidence, upto, progress.total.late_dropped, volume_tolerance)
    record = _record_of(verdict, release, evidence, upto, volume_tolerance, context.via)
    context.registry.step(lambda _: [record])
    return verdict


def _verdict(
    context: Context,
    release: Release,
    evidence: EvidenceRecorded | None,
    upto: ResultPosition,
    late_dropped: int,
    volume_tolerance: float,
) -> Verdict:
    """Runs the suite of each result that has one."""
    spec = release.spec
    # needed only for a suite that comes with the app
    own = any(map(may_be_own, spec.suites.values()))
    code = admit(code_path(context.settings, spec.code_digest), spec.code_digest, release.name) if own else None
    requests = {
        name: GateRequest(
            suite=suite,
            release=release.name,
            generation=release.generation,
            result=name,
            topic=release.result_topics[name],
            start={},
            end=upto.of(release.result_topics[name]),
            key=spec.outputs[name].key,
            schema_ddl=spec.outputs[name].schema_ddl,
            table=spec.outputs[name].table,
            avro=spec.outputs[name].avro,
            live_rows=_rows_of_the_other(release, evidence, name),
            late_dropped=late_dropped,
            volume_tolerance=volume_tolerance,
            app_settings=spec.settings,
            docs_dir=docs_dir(context),
            settings=context.settings,
            code=code,
        )
        for name, suite in spec.suites.items()
    }
    with in_store(context.settings):
        return _run(context.session_soon(upto.records), requests)


def _run(session: Callable[[], SparkSession], requests: Mapping[str, GateRequest]) -> Verdict:
    """The verdict on all results. Great Expectations takes as long to import as Spark to start and to read the results."""
    from expectations.later import DISTRIBUTIONS, imported_later
    from expectations.reading import read_rows

    pool = ThreadPoolExecutor(1, "reading")
    try:
        started = pool.submit(session)
        reading = {
            name: pool.submit(lambda of: read_rows(started.result(), of), each) for name, each in requests.items()
        }
        with imported_later(*DISTRIBUTIONS):
            from expectations.gate import run_gate

        # until it runs, its start holds the secrets of this process back, as a gate does
        spark = started.result()
        return Verdict.together({name: run_gate(spark, each, reading[name].result) for name, each in requests.items()})
    finally:
        # after an error or Ctrl-C, the other results are not read
        pool.shutdown(cancel_futures=True)


def _refuse_half(state: RegistryState, release: Release) -> None:
    """Raises BeingReset if a reset is under way, Refused if an unfinished reset has not moved consumers yet."""
    under = state.blocking(release.name)
    if under is not None and under.opened.name in RESETS:
        raise BeingReset(f"{release.name} is in the middle of {under.id}, so its result is not complete",
                         fix=f"check it when that operation has ended: `switchyard log {under.id}` shows that")  # fmt: skip
    refuse_unfinished(state, release)


def _record_of(
    verdict: Verdict,
    release: Release,
    evidence: EvidenceRecorded | None,
    upto: ResultPosition,
    volume_tolerance: float,
    via: Via | None,
) -> VerdictRecorded:
    return VerdictRecorded(
        release=release.name,
        generation=release.generation,
        evidence=evidence.id if evidence else None,
        upto=upto,
        passed=verdict.passed,
        failed=verdict.failed,
        errored=verdict.errored,
        failures=tuple(r.name for r in verdict.results if r.outcome in ("failed", "errored")),
        outcomes={r.name: r.outcome for r in verdict.results if r.outcome != "passed"},
        docs=str(verdict.docs) if verdict.docs else None,
        volume_tolerance=volume_tolerance,
        via=via,
    )


def _evidence(context: Context, release: Release, live: Release | None) -> EvidenceRecorded | None:
    if live is None or live is release or not are_compared(release, live):
        return None
    found = evidence_for(context.registry.known, release, live)
    if found is None:
        raise Refused(f"{release.name} is not compared with {live.name} yet, so there is no cut to check at",
                      fix=f"run `switchyard diff {release.name}` first")  # fmt: skip
    return found


def _upto(release: Release, evidence: EvidenceRecorded | None) -> ResultPosition | None:
    if evidence is None:
        return None
    return evidence.new_result if evidence.new == release.name else evidence.live_result


def _rows_of_the_other(release: Release, evidence: EvidenceRecorded | None, result: str) -> int | None:
    """The number of rows of the result that it was compared with, at the same cut; None without evidence."""
    if evidence is None:
        return None
    found = Comparison.of(evidence).only(frozenset({result}))
    one_sided = found.only_live if evidence.new == release.name else found.only_new
    return found.identical + found.changed + one_sided
