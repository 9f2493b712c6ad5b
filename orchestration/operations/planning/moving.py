"""What all plans that move consumers have in common: their deadline and their facts. It decides nothing."""

from __future__ import annotations

from orchestration.operations.comparing.backlog import Backlog
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.planning.meeting import PAUSE_TIMEOUT_S
from orchestration.operations.reading import Reading
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.registry import Release


def deadline_of(context: Reading, backlog: Backlog | None) -> float:
    # twice the expected reading time, because others may use the cores
    reading_s = 2 * backlog.seconds if backlog is not None else 0.0
    return PAUSE_TIMEOUT_S + 3 * context.settings.switch_timeout_s + reading_s


def switch_facts(
    live: Release | None,
    new: Release,
    number: int,
    evidence: EvidenceRecorded | None,
    backlog: Backlog | None,
) -> dict[str, str]:
    facts = {"from": live.name if live else "nothing", "to": new.name, "switch": str(number)}
    if evidence is not None:
        facts["evidence"] = f"{evidence.id}: {_in_words(evidence, new)}"
    if backlog is not None:
        facts["since the diff"] = str(backlog)
    if new.verdict is not None:
        facts["checks"] = f"{new.verdict.passed} passed, {new.verdict.failed} failed"
    return facts


def _in_words(evidence: EvidenceRecorded, new: Release) -> str:
    """What a diff found. It names the releases, as the new one may have been the live one when they were compared."""
    found = Comparison.of(evidence)
    only = {evidence.live: found.only_live, evidence.new: found.only_new}
    # the release that consumers leave first, as in the other facts
    sides = [f"{only[name]:,} only in {name}" for name in sorted(only, key=lambda name: name == new.name)]
    return ", ".join([f"{found.changed:,} changed", *sides, f"{found.identical:,} identical"])
