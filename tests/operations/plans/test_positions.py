"""Positions as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.looking.costs import Cost, Rate, as_size, time_of
from orchestration.operations.planning.reset.export import by_topic
from orchestration.operations.planning.reset.positions import scope_of
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.planning.reset.show import cost_facts
from orchestration.operations.plans.positions import PositionOptions, as_lines, topics_of, until_of
from pipelines.errors import BadUsage, Refused
from pipelines.model.positions import SourcePosition
from pipelines.model.reset import Choice, Seen, Target
from tests.operations.builders import release

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
            r"line 1: .*; line 3: 'words' is not .*; line 4: trades\[0\] is listed",
        ),
        ("no\n" * 12, r"line 10: 'no' is not topic,partition,offset; and 2 more lines\n"),
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


SEEN = {("trades", p): Seen(topic="trades", first=0, end=9, position=5) for p in (0, 1)}


def scoped(offsets: dict[str, dict[int, int]], inputs: dict[str, tuple[int, ...] | None]) -> set[tuple[str, int]]:
    request = Request(target=Target(kind="file", text="--from-file f.csv", offsets=offsets), inputs=inputs)
    return scope_of(release(), SEEN, request)


def test_a_file_moves_what_it_names() -> None:
    assert scoped({"trades": {1: 3}}, {}) == {("trades", 1)}
    assert scoped({"trades": {1: 3}}, {"trades": (1,)}) == {("trades", 1)}


@pytest.mark.parametrize(
    ("offsets", "inputs", "said"),
    [
        ({"orders": {0: 3}}, {}, "does not read orders"),
        ({"orders": {0: 3}}, {"trades": None}, "does not read orders"),
        ({"trades": {7: 3}}, {}, r"trades has no partition 7"),
        ({"trades": {7: 3}}, {"trades": None}, r"trades has no partition 7"),
        (
            {"trades": {0: 3, 1: 3}},
            {"trades": (0,)},
            r"has a position for trades\[1\], which --input-topics does not name",
        ),
    ],
)
def test_a_line_of_a_file_that_would_move_nothing_is_refused(
    offsets: dict[str, dict[int, int]], inputs: dict[str, tuple[int, ...] | None], said: str
) -> None:
    with pytest.raises(BadUsage, match=said):
        scoped(offsets, inputs)


def test_one_file_can_not_say_two_offsets_of_a_partition() -> None:
    topics = {"left": "trades", "right": "trades", "orders": "orders"}
    level = {"left": {0: 5, 1: 6}, "right": {0: 5, 1: 6}, "orders": {0: 9}}
    assert by_topic(topics, SourcePosition(sources=level)) == {"trades": {0: 5, 1: 6}, "orders": {0: 9}}
    with pytest.raises(Refused, match=r"trades\[1\]: 6 for one source and 7 for right"):
        by_topic(topics, SourcePosition(sources={**level, "right": {0: 5, 1: 7}}))


def test_a_plan_says_whose_rate_it_goes_by() -> None:
    def said(of: str, *, throttled: bool = False) -> str:
        return time_of(Rate(records_per_s=50.0, of=of, throttled=throttled), release().name, 100)

    assert said(release().name) == "about 2 s at 50 records/s"
    assert said("a.v9") == "about 2 s at 50 records/s, measured on a.v9"
    assert said("a.v9", throttled=True) == "about 2 s at 50 records/s, limited by --max-records-per-batch"
    assert time_of(None, "a.v9", 5) == "duration unknown, because its rate was never measured"
    assert [as_size(n) for n in (5, 2048, 3 << 20, 5 << 30)] == ["5 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]


@pytest.mark.parametrize(("output", "state"), [("new", "archived"), ("tombstone", "archived"), ("truncate", "deleted")])
def test_a_plan_says_what_becomes_of_the_state(output: Any, state: str) -> None:
    choice = Choice(state="clear", output=output, move="back", table=True, stateful=True)
    assert state in cost_facts(Cost(state_bytes=5, result_records=1, result_bytes=1), choice)["app state"]
