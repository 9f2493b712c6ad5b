"""What a switch has to read first: all that both results have written since they were compared."""

from __future__ import annotations

from orchestration.operations.comparing.backlog import Backlog
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.switching import PrepareDelta, VerifyStream, WriteDelta


def ahead(backlog: Backlog | None, delta: WriteDelta | VerifyStream | None) -> tuple[Stage, ...]:
    """What is done before the drivers are asked to meet, where there is too much of it to be done while they do."""
    if backlog is None or delta is None or not backlog.long:
        return ()
    return (PrepareDelta(evidence=delta.evidence, old=delta.old, new=delta.new),)
