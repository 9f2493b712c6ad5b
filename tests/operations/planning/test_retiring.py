"""What a retirement deletes: all that is the release's own, and nothing that another one needs."""

from __future__ import annotations

import pytest

from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.plans.stages.releases import DeleteFiles, DeleteGroup, DeleteTopic
from pipelines.errors import Refused
from pipelines.model.entries import DeltaSegment, Entry, Staged, StateSet
from tests.operations.builders import Log, context_of, evidence, generation, spec, staged, switched

DIGEST = spec("a.v1").code_digest


def files(*entries: Entry) -> DeleteFiles:
    """Of the plan to retire a.v1, the stage that deletes files."""
    [found] = [s for s in plan_retire(context_of(Log(*entries)), "a.v1").stages if isinstance(s, DeleteFiles)]
    return found


@pytest.mark.parametrize("other", ["a.v2", "b.v1"])
def test_code_that_another_release_runs_stays(other: str) -> None:
    assert files(*staged("a.v1", other)).code_digest is None


def test_code_that_no_other_release_runs_goes() -> None:
    assert files(*staged("a.v1"), Staged(spec=spec("a.v2", code_digest="1" * 64))).code_digest == DIGEST
    assert files(*staged("a.v1", "a.v2"), StateSet(release="a.v2", state="retired")).code_digest == DIGEST


def test_a_live_release_stays() -> None:
    log = Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"))
    with pytest.raises(Refused, match=r"a\.v1 is live") as refused:
        plan_retire(context_of(log), "a.v1")
    assert "move its consumers first" in refused.value.fix


def test_what_goes_is_the_release_s_own() -> None:
    segment = DeltaSegment(topic="a.delta.diff-1", start=0, end=1)
    foreign = DeltaSegment(topic="a.delta.diff-2", start=0, end=1)
    log = Log(*staged("a.v1", "a.v2", "a.v11"), generation("a.v1", 2), evidence("a.v1", "a.v2", forward=segment),
              evidence("a.v2", "a.v11", id="diff-2", forward=foreign))  # fmt: skip
    plan = plan_retire(context_of(log), "a.v1")
    topics = {s.name for s in plan.stages if isinstance(s, DeleteTopic)}
    assert topics == {"a.v1.g1", "a.v1.g2", "a.v1.progress", "a.v1.dead-letters", "a.delta.diff-1"}
    forged = evidence("a.v1", "a.v2", id="diff-3", forward=DeltaSegment(topic="switchyard.registry", start=0, end=1))
    log.entries.append(forged)
    assert {s.name for s in plan_retire(context_of(log), "a.v1").stages if isinstance(s, DeleteTopic)} == topics
    assert [s.group for s in plan.stages if isinstance(s, DeleteGroup)] == ["a.v1"]
    assert files(*log.entries).evidence == ("diff-1", "diff-3")
