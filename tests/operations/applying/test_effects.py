"""Each kind of stage has one function that applies it."""

from __future__ import annotations

import pytest

from orchestration.operations.applying.effects import EFFECTS, applies
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.releases import Launch


def test_each_kind_of_stage_can_be_applied() -> None:
    stages = {kind for kind in Stage.kinds.values() if kind.__module__.startswith("orchestration.")}
    assert len(stages) > 30
    assert set(EFFECTS) == stages


def test_a_kind_has_no_second_function() -> None:
    with pytest.raises(TypeError, match="launch already applies Launch"):
        applies(Launch)(lambda work, stage: None)
