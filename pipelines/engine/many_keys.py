"""An app's own state in Python: Spark's workers, changed so that they convert the rows of many keys together.

Spark converts the rows of each key separately. That takes milliseconds per key, whatever the app's function does. Here a
function gets exactly the same values, of the same types, and so do its results. So rows are converted together only if
no column has nested values, and no column of integers or booleans has a null: pandas gives such a column another type.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
from pyspark import worker
from pyspark.sql.pandas.serializers import (
    ArrowStreamPandasUDFSerializer,
    ArrowStreamSerializer,
    TransformWithStateInPandasSerializer,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode

# so many that the cost per key is small; few enough to be held twice. Only pickled results have a known size
_ROWS, _BYTES, _RESULTS = 10_000, 4 * 2**20, 1_000
_KEEPS_TYPE = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_decimal,
    pa.types.is_floating,
    pa.types.is_timestamp,
    pa.types.is_date,
)
_KEEPS_TYPE_WITHOUT_NULLS = (pa.types.is_integer, pa.types.is_boolean)


class Rows(NamedTuple):
    """The rows `start` to `end` of a frame, which are those of one key."""

    whole: pd.DataFrame
    start: int
    end: int

    def __getitem__(self, number: Any) -> Any:
        # Spark's code asks for one column after another, and hands the list of them on to `_frames`
        return self, number

    def frame(self, numbers: Sequence[int]) -> pd.DataFrame:
        """These columns of the rows, as if no others were there."""
        found = self.whole.iloc[self.start : self.end]
        if len(numbers) != len(self.whole.columns) or any(map(int.__ne__, numbers, range(len(numbers)))):
            found = found.iloc[:, list(numbers)]
        found.index = pd.RangeIndex(len(found))
        # a function may change its frame, and pandas need not warn about that: nothing else uses these rows
        found._is_copy = None
        return found


class ManyKeys(TransformWithStateInPandasSerializer):
    """Spark's serializer for `transformWithStateInPandas`, except for what the module says."""

    def load_stream(self, stream: Any) -> Iterator[tuple[Any, Any, Any]]:
        """What to call the function for: key by key its rows, then the timers, then the end."""
        batches = ArrowStreamSerializer.load_stream(self, stream)  # type: ignore[no-untyped-call]
        rows = (each for some in portions(batches) for each in self._by_key(some))
        for key, of_key in groupby(rows, key=itemgetter(0)):
            yield TransformWithStateInPandasFuncMode.PROCESS_DATA, key, of_key
        yield TransformWithStateInPandasFuncMode.PROCESS_TIMER, None, None
        yield TransformWithStateInPandasFuncMode.COMPLETE, None, None

    def _by_key(self, batches: Sequence[pa.RecordBatch]) -> Iterator[tuple[tuple[Any, ...], Rows]]:
        """Key and rows of each batch, which Spark makes of one key."""
        table = pa.Table.from_batches(batches)
        if len(batches) > 1 and not all(map(keeps_type, table.itercolumns())):
            for batch in batches:
                yield from self._by_key([batch])
            return
        columns = [self.arrow_to_pandas(column) for column in table.itercolumns()]  # type: ignore[no-untyped-call]
        whole, keys = pd.concat(columns, axis=1), [columns[number] for number in self.key_offsets or ()]
        ends = [0]
        for batch in batches:
            ends.append(ends[-1] + batch.num_rows)
        for start, end in pairwise(ends):
            yield tuple(column[start] for column in keys), Rows(whole, start, end)

    def dump_stream(self, iterator: Iterable[Any], stream: Any) -> None:
        """Writes the frames of the results: (frames, the result's type) for each call of the function."""
        frames = ((frame, kind) for [(frames, kind)] in iterator for frame in frames)
        ArrowStreamPandasUDFSerializer.dump_stream(self, together(frames), stream)  # type: ignore[no-untyped-call]


def portions(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """The batches, some thousand rows at a time."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROWS or size >= _BYTES:
            yield some
            some, rows, size = [], 0, 0
    if some:
        yield some


def keeps_type(column: pa.ChunkedArray) -> bool:
    """Whether pandas makes the same of a part of this column, whatever is in the rest of it."""
    if any(of(column.type) for of in _KEEPS_TYPE):
        return True
    return any(of(column.type) for of in _KEEPS_TYPE_WITHOUT_NULLS) and not column.null_count


def together(frames: Iterable[tuple[pd.DataFrame, pa.DataType]]) -> Iterator[tuple[pd.DataFrame, pa.DataType]]:
    """The frames in their order, those of the same columns and types joined, some thousand rows at a time."""
    some: list[pd.DataFrame] = []
    rows = size = 0
    shape: Any = None
    for frame, kind in frames:
        now = kind, tuple(frame.columns), tuple(frame.dtypes)
        if some and (now != shape or rows >= _RESULTS or size >= _BYTES):
            yield _joined(some), shape[0]
            some, rows, size = [], 0, 0
        # a copy, because the function may later change what it has returned. A pickle also copies nested values
        if any(pa.types.is_nested(field.type) for field in kind):
            pickled = pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)
            frame, size = pickle.loads(pickled), size + len(pickled)
        else:
            frame = frame.copy()
        some.append(frame)
        rows, shape = rows + len(frame), now
    if some:
        yield _joined(some), shape[0]


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def _frames(function: Callable[..., Any], return_type: Any, conf: Any) -> Callable[..., Any]:
    """Spark's `wrap_grouped_transform_with_state_pandas_udf`, for the rows of `ManyKeys`."""
    kind = to_arrow_type(return_type, worker.use_large_var_types(conf))  # type: ignore[no-untyped-call]

    def call(client: Any, mode: Any, key: Any, found: Iterable[list[tuple[Rows, int]]]) -> list[Any]:
        values = (columns[0][0].frame([number for _, number in columns]) for columns in found)
        return [(function(client, mode, key, values), kind)]

    return call


def install() -> None:
    """Changes the workers that this process forks."""
    worker.TransformWithStateInPandasSerializer = ManyKeys  # type: ignore[attr-defined]
    worker.wrap_grouped_transform_with_state_pandas_udf = _frames
