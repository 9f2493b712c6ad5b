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
        facts["evidence"] = f"{evidence.id}: {Comparison.of(evidence).in_words()}"
    if backlog is not None:
        facts["since the diff"] = str(backlog)
    if new.verdict is not None:
        facts["checks"] = f"{new.verdict.passed} passed, {new.verdict.failed} failed"
    return facts
