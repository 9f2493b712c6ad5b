"""The records of a batch, from its rows. What a sink does with them is in `test_sink.py` and `test_set_apart.py`."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipelines.engine.metrics import DeadLetter
from pipelines.engine.records import Unsent, by_topic, dead_letters, records, too_large
from pipelines.engine.writer import Record
from pipelines.model.positions import SourcePosition, Span
from pipelines.model.reset import Replays

START, END = (SourcePosition(sources={"trades": {0: offset}}) for offset in (0, 10))
REPLAYS = Replays([Span(start=START, end=END)], {"trades": "trades"})
TEXT = pa.string()


def rows(*given: tuple[str, str | None, str | None]) -> pa.Table:
    """Key, value and source of each row."""
    columns = zip(*given, strict=True)
    return pa.table([pa.array(each, TEXT) for each in columns], names=["key", "value", "source"])


# the second names a source record that had been processed, the third one that had not
GIVEN = rows(("a", "1", None), ("b", None, "trades:0:9"), ("c", "3", "trades:0:10"))


@pytest.mark.parametrize(
    ("replayed", "expected"),
    [
        (
            "none",
            [
                ("a", "1", None),
                ("b", None, [("source", b"trades:0:9")]),
                ("c", "3", [("source", b"trades:0:10")]),
            ],
        ),
        (
            "some",
            [
                ("a", "1", None),
                ("b", None, [("source", b"trades:0:9"), ("replay", b"true")]),
                ("c", "3", [("source", b"trades:0:10")]),
            ],
        ),
        (
            "all",
            [
                ("a", "1", [("replay", b"true")]),
                ("b", None, [("source", b"trades:0:9"), ("replay", b"true")]),
                ("c", "3", [("source", b"trades:0:10"), ("replay", b"true")]),
            ],
        ),
    ],
)
def test_a_record_names_its_source_and_says_if_it_is_a_replay(replayed: str, expected: list[Record]) -> None:
    assert list(records(GIVEN, REPLAYS, replayed)) == expected  # type: ignore[arg-type]


def test_each_of_several_results_gets_its_own_rows() -> None:
    several = GIVEN.append_column("result", pa.array(["alerts", "counts", "alerts"], TEXT))
    topics = {"counts": "app.v1.g1.counts", "alerts": "app.v1.g1.alerts", "idle": "app.v1.g1.idle"}
    found = [(topic, part["key"].to_pylist()) for topic, part in by_topic(several, topics)]
    assert found == [("app.v1.g1.counts", ["b"]), ("app.v1.g1.alerts", ["a", "c"]), ("app.v1.g1.idle", [])]
    # the only result has no name, and its rows no column of results
    assert [(topic, part.num_rows) for topic, part in by_topic(GIVEN, {"": "app.v1.g1"})] == [("app.v1.g1", 3)]


def test_a_dead_letter_says_where_it_comes_from() -> None:
    malformed = [DeadLetter("trades", 0, at, b"k", b"\xff", "not JSON") for at in (9, 10)]
    # the record of the second row was marked as a replay
    headers: list[tuple[str, str | bytes | None]] = [("source", b"trades:0:3"), ("replay", b"true")]
    unsent = [
        Unsent("app.v1.g1", (None, "é", None), "too large"),
        Unsent("app.v1.g1", ("b", "22", headers), "too large"),
    ]
    found = list(dead_letters(7, malformed, unsent, REPLAYS))
    came = [("topic", b"trades"), ("partition", b"0")]
    why = [("topic", b"app.v1.g1"), ("reason", b"too large"), ("batch", b"7")]
    assert found == [
        (b"k", b"\xff", [*came, ("offset", b"9"), ("reason", b"not JSON"), ("replay", b"true")]),
        (b"k", b"\xff", [*came, ("offset", b"10"), ("reason", b"not JSON")]),
        # the size in bytes, not in letters
        (b"", None, [*why, ("value-bytes", b"2")]),
        (b"b", None, [*why, ("value-bytes", b"2"), ("source", b"trades:0:3"), ("replay", b"true")]),
    ]


def test_the_error_names_the_record_that_a_row_comes_from() -> None:
    named = too_large("app.v1", 7, Unsent("app.v1.g1", ("b", "22", [("source", b"trades:0:3")]), "too large"))
    assert named.what == (
        "app.v1: batch 7 has a row for app.v1.g1 from trades:0:3, with the key b, whose value has 2 bytes: too large"
    )
    unnamed = too_large("app.v1", 7, Unsent("app.v1.g1", (None, "x" * 1234, None), "too large"))
    assert "a row for app.v1.g1, with the key null, whose value has 1,234 bytes" in unnamed.what
