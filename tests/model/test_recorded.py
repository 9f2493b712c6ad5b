"""What progress says about the batches of a generation."""

from __future__ import annotations

from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Counts, Progress
from pipelines.model.recorded import RecordedBatch, recorded_batches


def at(offset: int) -> SourcePosition:
    return SourcePosition(sources={"trades": {0: offset}})


def record(batch_id: int, offset: int, *, generation: int = 1, rows_in: int = 0) -> Progress:
    boundary = Boundary(batch_id=batch_id, position=at(offset), watermark_ms=1_000 * batch_id)
    return Progress(
        release="sums.v1",
        generation=generation,
        token=1,
        boundary=boundary,
        result=ResultPosition(topics={}),
        batch=Counts(rows_in=rows_in),
        at_ms=0,
    )


def test_a_batch_is_what_its_first_record_says() -> None:
    # a mark of an operation is a further record of the batch, which has read nothing
    found, reaches = recorded_batches([record(0, 10, rows_in=10), record(0, 10), record(1, 14, rows_in=4)], 1)
    assert not reaches and found == {
        0: RecordedBatch(batch_id=0, end=at(10), rows_in=10, watermark_ms=0),
        1: RecordedBatch(batch_id=1, end=at(14), rows_in=4, watermark_ms=1_000),
    }


def test_an_operation_may_move_the_release_after_a_batch() -> None:
    found, _ = recorded_batches([record(3, 10, rows_in=2), record(3, 15), record(3, 15), record(3, 12)], 1)
    [batch] = found.values()
    assert batch.end == at(10) and batch.left_at == at(12)
    assert [batch.knows(at(offset)) for offset in (10, 12, 15, 11)] == [True, True, True, False]


def test_other_generations_and_records_before_the_first_batch_are_left_out() -> None:
    history = [record(7, 70), record(-1, 0, generation=2), record(0, 5, generation=2)]
    found, reaches = recorded_batches(history, 2)
    assert list(found) == [0] and reaches


def test_only_the_batches_that_are_asked_for_are_kept() -> None:
    history = [record(number, 10 * number) for number in range(5)]
    found, reaches = recorded_batches(history, 1, since=3)
    assert list(found) == [3, 4] and reaches
    found, reaches = recorded_batches(history[3:], 1, since=3)
    # the first record of batch 3 may be further back
    assert list(found) == [3, 4] and not reaches
