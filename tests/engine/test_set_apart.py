"""What a batch sets apart: malformed records, and rows that are too large."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.engine.metrics import DeadLetter
from pipelines.engine.records import TOO_LARGE, RowTooLarge
from pipelines.model.positions import SourcePosition, Span
from tests.engine.sinks import DEAD, RELEASE, RESULT, START, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_malformed_records_and_large_rows_become_dead_letters_in_the_same_transaction(world: World) -> None:
    world.malformed = [DeadLetter("trades", 0, 7, b"k", b"\xff", "not JSON")]
    world.run(0, ("a", "1"), ("b", "too large"))
    assert world.writer.written == [
        (RESULT, ("a", "1", None)),
        (DEAD, (b"k", b"\xff", {"topic": b"trades", "partition": b"0", "offset": b"7", "reason": b"not JSON"})),
        (
            DEAD,
            (b"b", None, {"topic": RESULT.encode(), "reason": TOO_LARGE.encode(), "batch": b"0", "value-bytes": b"9"}),
        ),
    ]
    assert (world.writer.progress[-1].total.dead_lettered, world.writer.progress[-1].total.rows_out) == (2, 1)


def test_a_row_that_is_too_large_stops_the_release_unless_the_app_says_otherwise(tmp_path: Path) -> None:
    world = World(tmp_path, oversized="stop")
    with pytest.raises(RowTooLarge) as stopped:
        world.run(0, ("a", "1"), ("b" * 500, "too large"))
    said = f"batch 0 has a row for {RESULT}, with the key {'b' * 200}, whose value has 9 bytes: {TOO_LARGE}"
    assert said in stopped.value.what
    assert f"switchyard bisect {RELEASE}" in stopped.value.fix and "oversized='dead-letter'" in stopped.value.fix
    # nothing of the batch is written
    assert world.writer.written == [] and world.writer.progress == []


def test_what_is_set_apart_again_in_a_replay_is_marked_as_its_results_are(tmp_path: Path) -> None:
    world = World(tmp_path, processed=(Span(start=START, end=SourcePosition(sources={"trades": {0: 15}})),))
    world.malformed = [DeadLetter("trades", 0, 7, b"k", b"\xff", "not JSON")]
    world.run(0, ("a", "1"), ("b", "too large"))
    world.malformed = [DeadLetter("trades", 0, at, b"k", b"\xff", "not JSON") for at in (14, 15)]
    world.run(1, ("b", "too large"))
    marks = [record[2].get("replay") for topic, record in world.writer.written if topic == DEAD]
    # a result's record that was too large comes from many records: beside new ones, it is no replay
    assert marks == [b"true", b"true", b"true", None, None]
