from __future__ import annotations

import pytest

from orchestration.commands.options import seconds, settings_of
from pipelines.errors import BadUsage


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("10s", 10), ("1.5m", 90), ("24h", 86_400), ("2d", 172_800), ("250ms", 0.25), (" 5m ", 300), ("0", 0)],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 s", "5w", "s", "1h30m", "1e3", "٣s", "nan", "inf"])
def test_what_is_no_duration_is_said_with_an_example(text: str) -> None:
    with pytest.raises(BadUsage) as error:
        seconds(text)
    assert repr(text) in error.value.what
    assert "5m" in error.value.fix


def test_a_duration_in_which_nothing_can_be_done_is_refused() -> None:
    assert seconds("1s", least_s=1) == 1
    with pytest.raises(BadUsage, match="0s is too short"):
        seconds("0s", least_s=1)


def test_settings_are_pairs_and_an_equals_sign_in_the_value_stays() -> None:
    assert settings_of(None) == {}
    assert settings_of(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("pairs", [["window_s"], ["=5"], [""], ["a=1", "a=2"]])
def test_what_is_no_pair_or_stands_twice_is_bad_usage(pairs: list[str]) -> None:
    with pytest.raises(BadUsage):
        settings_of(pairs)
