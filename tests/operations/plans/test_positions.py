"""Positions as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.plans.positions import PositionOptions, as_lines, topics_of, until_of
from pipelines.errors import BadUsage

HOUR_MS = 3_600_000


def target(**options: Any) -> Any:
    return PositionOptions(**options).target(lambda: 100 * HOUR_MS)


def test_exactly_one_position_is_given() -> None:
    with pytest.raises(BadUsage, match="needs a position"):
        target()
    with pytest.raises(BadUsage, match="--to-earliest and --shift-by can't be used together"):
        target(to_earliest=True, shift_by=0)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1970-01-01T01:00:00.000Z", HOUR_MS),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01T00:00:01Z", 1000),
    ],
)
def test_a_time_has_a_zone(text: str, at_ms: int) -> None:
    found = target(to_datetime=text)
    assert (found.kind, found.at_ms, found.text) == ("datetime", at_ms, f"--to-datetime {text}")


def test_a_time_without_a_zone_is_refused() -> None:
    text = "2026-11-01T00:00:00.000"
    with pytest.raises(BadUsage, match=f"--to-datetime {text} has no time zone") as caught:
        target(to_datetime=text)
    assert f"for UTC write {text}Z" in caught.value.fix
    with pytest.raises(BadUsage, match=f"--until {text} has no time zone"):
        until_of(text)


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00Z"])
def test_a_time_that_kafka_takes_for_an_end_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="before 1970"):
        target(to_datetime=text)
    with pytest.raises(BadUsage, match="before 1970"):
        target(by_duration="P9999999999D")


def test_another_content_of_the_same_file_is_another_reset(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    texts = []
    for lines in ("trades,0,1\n", "trades,0,2\n"):
        path.write_text(lines)
        texts.append(target(from_file=path).text)
    assert texts[0] != texts[1]


@pytest.mark.parametrize("text", ["yesterday", "2026-11-01", "2026-13-01T00:00:00", "", "1700000000"])
def test_a_date_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="is not a date and time"):
        target(to_datetime=text)


@pytest.mark.parametrize(
    ("text", "hours"), [("PT6H", 6), ("P1DT-", None), ("PT90M", 1.5), ("P1D", 24), ("PT0.5H", 0.5)]
)
def test_a_duration_is_before_now(text: str, hours: float | None) -> None:
    if hours is None:
        with pytest.raises(BadUsage, match="is not a duration"):
            target(by_duration=text)
        return
    assert target(by_duration=text).at_ms == int((100 - hours) * HOUR_MS)


@pytest.mark.parametrize("text", ["6h", "P", "PT", "-PT1H", "PT1H30", ""])
def test_another_duration_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="is not a duration"):
        target(by_duration=text)


def test_a_duration_of_zero_is_refused() -> None:
    with pytest.raises(BadUsage, match="is zero"):
        target(by_duration="PT0S")
    with pytest.raises(BadUsage, match="is zero"):
        # less than Kafka's times can tell
        target(by_duration="PT0.0001S")


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(BadUsage, match="--to-offset -1 is negative"):
        target(to_offset=-1)


def test_a_file_is_read_as_it_was_exported(tmp_path: Path) -> None:
    positions = {"trades": {0: 5, 1: 7}, "words": {0: 1}}
    path = tmp_path / "offsets.csv"
    path.write_text(as_lines(positions) + "\n")
    assert target(from_file=path).offsets == positions
    # as a spreadsheet writes it
    path.write_text(as_lines(positions) + "\r\n", "utf-8-sig")
    assert target(from_file=path).offsets == positions


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("trades,0,5\ntrades,x,7\n", "line 2: 'trades,x,7' is not topic,partition,offset"),
        ("trades,0\n", "line 1"),
        ("trades,0,-5\n", "line 1"),
        ("trades,0,5\n\ntrades,0,6\n", r"line 3: trades\[0\] is listed twice"),
        (
            "trades,x,7\ntrades,0,5\nwords\ntrades,0,6",
            r"line 1: .*; line 3 is not .*; line 4: trades\[0\] is listed",
        ),
        ("no\n" * 12, r"line 10 is not topic,partition,offset; and 2 more lines\n"),
        # another file, with a secret
        ("[kafka]\nsasl.password = planted,1\nplanted", "line 1 is not [^;]*; line 2 is not [^;]*; line 3 is not"),
        ("\n", "names no partition"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text(lines)
    with pytest.raises(BadUsage, match=said):
        target(from_file=path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="can't be read"):
        target(from_file=tmp_path / "none.csv")


def test_the_inputs_of_a_scope() -> None:
    assert topics_of(None) == {}
    assert topics_of("trades") == {"trades": None}
    assert topics_of("trades:0,1,words, lines:2") == {"trades": (0, 1), "words": None, "lines": (2,)}


@pytest.mark.parametrize("text", ["trades:", "trades,trades", "trades:0,0", ":1", "trades:x", "", " , "])
def test_a_scope_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="--input-topics"):
        topics_of(text)


def test_where_a_replay_stops() -> None:
    assert until_of(None) is None
    kinds = {t: (found.kind, found.number) for t in ("current", "latest", "70") if (found := until_of(t))}
    assert kinds == {"current": ("shift", 0), "latest": ("latest", 0), "70": ("offset", 70)}
    found = until_of("1970-01-01T01:00:00Z")
    assert found is not None and (found.at_ms, found.text) == (HOUR_MS, "1970-01-01T01:00:00Z")
    with pytest.raises(BadUsage, match="--until 1969-12-31T00:00:00Z is before 1970"):
        until_of("1969-12-31T00:00:00Z")
    with pytest.raises(BadUsage, match="--until 'soon' is not a position"):
        until_of("soon")
