"""What a reset has archived goes when its time is over and nobody needs it, no sooner."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestration.commands.options import seconds
from orchestration.operations.context import Context
from orchestration.operations.looking import archives
from orchestration.operations.planning import clean
from orchestration.operations.planning.clean import plan_clean
from orchestration.operations.plans.stages.generations import DeleteCheckpoint
from orchestration.operations.plans.stages.releases import DeleteTopic
from pipelines.errors import Refused
from pipelines.model.entries import Entry, InputSpec, Staged
from tests.operations.builders import ENDED, Kafka, Log, context_of, generation, spec, staged

RESET_MS, KEEP_S = 1_000_000, 10
OVER_MS = RESET_MS + KEEP_S * 1000
READER = Staged(spec=spec("b.v1", inputs={"counts": InputSpec(topic="a.v1.g1", partitions=1)}))


@pytest.fixture(autouse=True)
def _archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of each generation is there."""
    monkeypatch.setattr(archives, "has_checkpoint", lambda *_: True)
    monkeypatch.setattr(archives, "checkpoint_bytes", lambda *_: 0)


def after_a_reset(*also: Entry) -> Context:
    log = Log(*staged("a.v1"), generation("a.v1", 2, ended=ENDED, at_ms=RESET_MS), *also)
    return context_of(log, Kafka(names={"a.v1.g1", "a.v1.g2"}))


def to_clean(context: Context, now_ms: int) -> list[str]:
    kept = replace(context, settings=context.settings.model_copy(update={"archive_keep_s": KEEP_S}))
    return clean.to_clean(kept, context.registry.state(), lambda: now_ms)


def test_an_archive_goes_with_its_state_when_its_time_is_over() -> None:
    context = after_a_reset()
    plan = plan_clean(context, "a.v1", after_s=KEEP_S, clock_ms=lambda: OVER_MS)
    assert plan.stages == (DeleteTopic(name="a.v1.g1"), DeleteCheckpoint(release="a.v1", generation=1))
    assert to_clean(context, OVER_MS) == ["a.v1"]
    with pytest.raises(Refused, match=r"\(1\) are younger than 10 s") as refused:
        plan_clean(context, "a.v1", after_s=KEEP_S, clock_ms=lambda: OVER_MS - 1)
    assert "switchyard clean a.v1 --after 0s --execute" in refused.value.fix
    # an hour would help only if they were older than that
    assert plan_clean(context, "a.v1", after_s=seconds("0s"), clock_ms=lambda: RESET_MS).stages == plan.stages
    with pytest.raises(Refused, match=r"\(1\) are younger than 7 days"):
        plan_clean(context, "a.v1", clock_ms=lambda: OVER_MS)
    assert to_clean(context, OVER_MS - 1) == []


def test_one_that_someone_reads_stays_with_its_state_however_old_it_is() -> None:
    context = after_a_reset(READER)
    with pytest.raises(Refused, match=r"generation 1 is still needed by b\.v1") as refused:
        plan_clean(context, "a.v1", after_s=KEEP_S, clock_ms=lambda: 2 * OVER_MS)
    assert "--after" not in refused.value.fix
    assert to_clean(context, 2 * OVER_MS) == []


def test_a_release_that_was_never_reset_has_no_archive() -> None:
    with pytest.raises(Refused, match=r"a\.v1 has no archives"):
        plan_clean(context_of(Log(*staged("a.v1"))), "a.v1")
