from __future__ import annotations

from typing import Any

import pytest

from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.comparing.fold import SAMPLES_BYTES, fitting
from pipelines.model.entries import encode
from tests.operations.builders import evidence

# what Kafka's producer takes by default
ENTRY_BYTES = 1_000_000


def sample(key: str, size: int, letter: str = "x") -> dict[str, Any]:
    return {"key": {"ticker": key}, "live": {"note": letter * size}, "new": None}


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", '"', "\n"])
def test_an_entry_with_as_many_samples_as_fit_is_one_that_kafka_takes(letter: str) -> None:
    samples = fitting(sample(str(n), 5_000, letter) for n in range(1000))
    assert 0 < len(samples) < 1000
    found = Comparison(only_live=1, only_new=0, changed=0, identical=0, samples=samples)
    entry = evidence("stock-stats.v1", "stock-stats.v2", summary=found.as_json())
    assert len(encode(entry)) < min(ENTRY_BYTES, SAMPLES_BYTES + 10_000)


def test_samples_that_fit_are_all_kept_in_order() -> None:
    samples = [sample(str(n), 10) for n in range(1000)]
    assert fitting(samples) == tuple(samples)


def test_one_that_is_too_large_does_not_keep_the_others_out() -> None:
    large, small = sample("a", SAMPLES_BYTES), sample("b", 10)
    assert fitting([large, small]) == (small,)
