"""What a function with state of its own gets and returns is what it is with Spark's own workers, value by value."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import worker
from pyspark.serializers import SpecialLengths, read_int
from pyspark.sql.pandas.serializers import TransformWithStateInPandasSerializer
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode

from pipelines.engine import many_keys
from pipelines.engine.many_keys import ManyKeys

DATA = TransformWithStateInPandasFuncMode.PROCESS_DATA
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "number": pa.int64(),
        "flag": pa.bool_(),
        "share": pa.float64(),
        "price": pa.decimal128(8, 2),
        "at": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "code": pa.binary(),
    }
)
# of each column, values without a null and with one
VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "number": ([1, 2**60 + 1, 3], [None, 2**60 + 1, 3]),
    "flag": ([True, False, True], [True, None, True]),
    "share": ([0.5, 1.5, -1.0], [0.5, None, float("nan")]),
    "price": ([Decimal("1.50"), Decimal("2.00"), Decimal("3.25")], [None, Decimal("2.00"), Decimal("3.25")]),
    "at": ([NOON, NOON, NOON], [NOON, None, NOON]),
    "day": ([date(2026, 1, 1)] * 3, [date(2026, 1, 1), None, date(2026, 1, 2)]),
    "code": ([b"a", b"\xff", b""], [b"a", None, b""]),
}

Function = Callable[[Any, Any, Any, Iterator[pd.DataFrame]], Iterable[pd.DataFrame]]


def only(*names: str) -> pa.Schema:
    return pa.schema([SCHEMA.field(name) for name in names])


NUMBER = only("number")


def rows_of(key: str | None, *, nulls: Iterable[str] = ()) -> pa.RecordBatch:
    """Three rows of a key, as Spark sends them. `nulls`: the columns that have one."""
    columns = {name: VALUES[name][name in nulls] for name in SCHEMA.names[1:]}
    return pa.record_batch({"key": [key] * 3, **columns}, schema=SCHEMA)


def run(
    batches: list[pa.RecordBatch], function: Function, returns: pa.Schema, *, ours: bool, key: tuple[int, ...] = (0,)
) -> pa.Table | None:
    """What workers write when `function` gets the batches: Spark's, or ours."""
    sent = io.BytesIO()
    with pa.ipc.new_stream(sent, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    sent.seek(0)
    made: Any = ManyKeys if ours else TransformWithStateInPandasSerializer
    wrap = many_keys._frames if ours else worker.wrap_grouped_transform_with_state_pandas_udf
    serializer = made("UTC", True, True, 50_000)
    serializer.key_offsets = list(key)
    call = wrap(function, from_arrow_schema(returns), {})
    numbers = range(len(batches[0].schema))

    def results() -> Iterator[Any]:
        for mode, of, found in serializer.load_stream(sent):
            # as `read_udfs` of Spark's worker does
            yield call(None, mode, of, ([each[1][n] for n in numbers] for each in found or ()))

    written = io.BytesIO()
    serializer.dump_stream(results(), written)
    if not written.getvalue():
        return None
    written.seek(0)
    start: Any = read_int
    assert start(written) == SpecialLengths.START_ARROW_STREAM
    return pa.ipc.open_stream(written).read_all()


def seen(batches: list[pa.RecordBatch], *, ours: bool, key: tuple[int, ...] = (0,)) -> list[Any]:
    """The keys and frames that a function gets."""
    found: list[Any] = []

    def keep(_: Any, mode: Any, key: Any, frames: Iterator[pd.DataFrame]) -> list[pd.DataFrame]:
        if mode is DATA:
            found.append((key, [*map(type, key)], [frame.copy() for frame in frames]))
        else:
            found.append((mode, key, [*frames]))
        return []

    run(batches, keep, NUMBER, ours=ours, key=key)
    return found


def require_same(batches: list[pa.RecordBatch], key: tuple[int, ...] = (0,)) -> None:
    mine, sparks = seen(batches, ours=True, key=key), seen(batches, ours=False, key=key)
    assert [each[:2] for each in mine] == [each[:2] for each in sparks]
    for (*_, frames), (*_, expected) in zip(mine, sparks, strict=True):
        for frame, other in zip(frames, expected, strict=True):
            pd.testing.assert_frame_equal(frame, other)
            assert [*map(type, frame.loc[0])] == [*map(type, other.loc[0])]


def test_a_function_gets_the_keys_and_frames_that_spark_would_give_it() -> None:
    require_same([rows_of("a"), rows_of("b"), rows_of("b"), rows_of(None), rows_of("c")])
    # of each key many frames, and keys of any type
    require_same([rows_of(f"k{number // 2}") for number in range(40)])
    for number in range(1, len(SCHEMA)):
        require_same([rows_of("a"), rows_of("b")], key=(0, number))


@pytest.mark.parametrize("column", VALUES)
def test_a_null_changes_nothing_for_the_rows_of_other_keys(column: str) -> None:
    require_same([rows_of("a"), rows_of("b", nulls=[column]), rows_of("c")])
    require_same([rows_of("a", nulls=VALUES), rows_of("b"), rows_of("c", nulls=[column])])


def test_neither_do_values_with_parts() -> None:
    of = pa.schema({"key": pa.string(), "list": pa.list_(pa.int64()), "map": pa.map_(pa.string(), pa.int64())})
    require_same(
        [
            pa.record_batch({"key": [key], "list": [numbers], "map": [[("x", 1)]]}, schema=of)
            for key, numbers in (("a", [1, 2]), ("b", [None, 2]), ("c", [3]))
        ]
    )


def test_a_function_may_change_its_frame() -> None:
    def change(_: Any, mode: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            frame["number"] = 7
            frame.loc[0, "key"] = "changed"
            frame["new"] = 1
            yield frame[["key", "number"]]

    batches = [rows_of("a"), rows_of("b")]
    mine, sparks = (run(batches, change, only("key", "number"), ours=ours) for ours in (True, False))
    assert mine == sparks
    assert mine is not None and mine["_0"].to_pylist()[3:] == [
        {"key": "changed", "number": 7}, {"key": "b", "number": 7}, {"key": "b", "number": 7}
    ]  # fmt: skip


NAMES = ["key", "number", "flag", "share", "price", "at", "day"]


def results(_: Any, mode: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Frames of several types and orders of columns, one of which is changed after it was returned."""
    for frame in frames:
        yield frame[NAMES]
        yield frame[NAMES[::-1]]
        again = frame[NAMES].astype({"number": "Int64", "share": "float32"})
        yield again
        again["number"] = 0
        yield frame.iloc[:0][NAMES]
        with_none = frame[NAMES].astype(object)
        with_none.loc[1] = None
        yield with_none


def test_what_is_written_is_what_spark_would_write() -> None:
    batches = [rows_of("a"), rows_of("b", nulls=VALUES), rows_of("c")]
    mine, sparks = (run(batches, results, only(*NAMES), ours=ours) for ours in (True, False))
    assert mine is not None and mine == sparks


def test_results_with_parts_that_grow_are_written_as_spark_does() -> None:
    def told(_: Any, mode: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        numbers: list[int] = []
        for frame in frames:
            numbers += frame["number"].tolist()
            # the list that goes on to grow
            yield pd.DataFrame({"key": [key[0]], "numbers": [numbers]})
            numbers.append(0)

    lists = pa.schema({"key": pa.string(), "numbers": pa.list_(pa.int64())})
    batches = [rows_of("a"), rows_of("a"), rows_of("b")]
    mine, sparks = (run(batches, told, lists, ours=ours) for ours in (True, False))
    assert mine is not None and mine == sparks
    assert len(mine.to_batches()) == 1


def test_an_error_of_a_value_is_the_one_that_spark_raises() -> None:
    def wrong(_: Any, mode: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for _frame in frames:
            yield pd.DataFrame({"number": ["no number"]})

    errors = []
    for ours in (True, False):
        with pytest.raises(Exception, match="number") as caught:
            run([rows_of("a"), rows_of("b")], wrong, NUMBER, ours=ours)
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_the_rows_of_many_keys_are_converted_together() -> None:
    def one(_: Any, mode: Any, key: Any, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[["key"]]

    written = run([rows_of(f"k{number}") for number in range(400)], one, only("key"), ours=True)
    assert written is not None and written.num_rows == 1_200
    assert [len(batch) for batch in written.to_batches()] == [1_002, 198]


def test_rows_are_held_some_thousand_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_keys, "_ROWS", 7)
    batches = [rows_of(f"k{number}") for number in range(8)]
    assert [len(some) for some in many_keys.portions(batches)] == [3, 3, 2]
    require_same(batches)
    monkeypatch.setattr(many_keys, "_BYTES", batches[0].nbytes)
    assert [len(some) for some in many_keys.portions(batches)] == [1] * 8
