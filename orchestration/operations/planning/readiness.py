"""The conditions that a release must meet before consumers may move to it."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.operations.comparing.evidence import Comparison, are_compared
from orchestration.operations.comparing.upkeep import too_old
from orchestration.operations.planning.meeting import far_behind
from orchestration.operations.reading import Reading
from pipelines.model.entries import EvidenceRecorded, VerdictRecorded
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import Release

# an approval takes minutes; a diff older than this says too little about the current results
MAX_EVIDENCE_AGE_S = 600.0


def not_ready(context: Reading, new: Release, beats: Mapping[str, Heartbeat]) -> list[str]:
    lacking = []
    if new.ready is None or new.ready.generation != new.generation:
        lacking.append(f"it hasn't caught up (`switchyard wait {new.name}`)")
    if new.state not in ("ready", "standby"):
        lacking.append(f"its state is {new.state}")
    if context.holder_by(new, beats) is None:
        lacking.append(f"it isn't running (`switchyard start {new.name} --execute`)")
    elif (far := far_behind(context, new, beats)) is not None:
        lacking.append(f"{far} (`switchyard wait {new.name}`)")
    return lacking


def not_checked(
    new: Release, evidence: EvidenceRecorded | None, live: Release | None, max_age_s: float, *, now_ms: int
) -> list[str]:
    verdict: VerdictRecorded | None = new.verdict
    if not new.spec.suites:
        return []
    if verdict is None or verdict.generation != new.generation:
        return [f"its result is not checked (`switchyard check {new.name}`)"]
    if verdict.failed or verdict.errored:
        return [f"the checks failed: {', '.join(verdict.failures)}"]
    if not verdict.passed:
        # as in `Verdict.ok`: a skipped check proves nothing
        return [f"none of its checks passed, because all were skipped (`switchyard check {new.name}`)"]
    if live is not None and are_compared(new, live):
        if verdict.evidence is None:
            return [f"its last check was not at the cut of a diff (`switchyard check {new.name}`)"]
        if evidence is None:
            return [
                f"its last check was at the cut of {verdict.evidence}, which compared other releases or generations "
                f"(`switchyard diff {new.name}`, then `switchyard check {new.name}`)"
            ]
        if verdict.evidence != evidence.id:
            return [f"it was checked before the last diff (`switchyard check {new.name}`)"]
    elif (age_s := (now_ms - verdict.at_ms) / 1000) > max_age_s:
        # there is no diff with an age to judge, so the age of the verdict counts
        return [
            f"it was checked {age_s:.0f} s ago, more than --max-evidence-age {max_age_s:.0f}s (`switchyard check {new.name}`)"
        ]
    return []


def not_compared(
    new: Release,
    live: Release,
    evidence: EvidenceRecorded | None,
    max_age_s: float,
    max_changed: float | None,
    *,
    now_ms: int,
    renewed: bool = False,
    kept_ms: int | None = None,
) -> list[str]:
    if not are_compared(new, live):
        return []
    if evidence is None:
        return [f"it is not compared with {live.name} (`switchyard diff {new.name}`)"]
    age_s = (now_ms - evidence.at_ms) / 1000
    lacking = []
    if age_s > max_age_s:
        lacking.append(
            f"the diff is {age_s:.0f} s old, more than --max-evidence-age {max_age_s:.0f}s (`switchyard diff {new.name}`)"
        )
    elif new.spec.tables and not renewed and (old := too_old(evidence, now_ms, kept_ms=kept_ms)) is not None:
        lacking.append(f"{old} (`switchyard diff {new.name}`)")
    found = Comparison.of(evidence)
    if max_changed is not None and found.ratio > max_changed:
        lacking.append(
            f"{found.ratio:.2%} of the keys differ, more than --max-changed {max_changed:.2%}: look at them, or allow more"
        )
    return lacking
