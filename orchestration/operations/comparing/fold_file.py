"""Reads the fold of evidence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import SwitchyardError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Some rows of a fold. `total`: how many; `differing`: key, live value and new value of those in which they differ."""

    total: int
    differing: Sequence[tuple[str | None, str | None, str | None]]


def differences(fold: Path) -> Iterator[Difference]:
    """The rows of a fold, some at a time."""
    import pyarrow.compute as pc

    for batch in _batches(fold):
        _, live, new = batch.columns
        # null if a side lacks the key
        rows = batch.filter(pc.fill_null(pc.not_equal(live, new), True))
        columns = (column.to_pylist() for column in rows.columns)
        yield Difference(total=batch.num_rows, differing=[*zip(*columns, strict=True)])


def differing_rows(fold: Path) -> Iterator[tuple[str, str | None, str | None]]:
    """Key, live value and new value of each row in which they differ."""
    for batch in _batches(fold):
        for key, live, new in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if live != new:
                yield key, live, new


def _batches(fold: Path) -> Iterator[pa.RecordBatch]:
    # not pyarrow.dataset, which loads pandas and takes a second
    import pyarrow.parquet as pq

    # several results have a folder each
    for path in sorted(fold.rglob("*.parquet")):
        with pq.ParquetFile(path) as file:
            # one by one: a batch would join as many groups of rows as have its number of rows, however long those are
            for group in range(file.num_row_groups):
                yield from file.iter_batches(columns=["key", "live_value", "new_value"], row_groups=[group])


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCounts:
    """Counts of some keys in the fold of evidence. `keys`: how many there are; `one_sided`: how many are in one result
    only; `differing`: how many have texts that differ.
    """

    keys: int
    one_sided: int
    differing: int


def count_keys(fold: Path, keys: Set[str], of: str) -> KeyCounts:
    """Counts `keys` in the fold of evidence. `of`: the release whose diff found it.

    Raises SwitchyardError if the fold is deleted.
    """
    known = one_sided = differing = 0
    for rows in _rows_of(fold, keys, of):
        import pyarrow.compute as pc

        _, live, new = rows.columns
        known += rows.num_rows
        one_sided += pc.sum(pc.xor(live.is_null(), new.is_null())).as_py() or 0
        # null if a side lacks the key; the sum skips nulls
        differing += pc.sum(pc.not_equal(live, new)).as_py() or 0
    return KeyCounts(keys=known, one_sided=one_sided, differing=differing)


def values_of(fold: Path, keys: Set[str], of: str) -> dict[str, tuple[str | None, str | None]]:
    """Key -> live and new value of those `keys` that the fold of evidence has. Raises as `count_keys` does."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for rows in _rows_of(fold, keys, of):
        for key, live, new in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            found[key] = live, new
    return found


def _rows_of(fold: Path, keys: Set[str], of: str) -> Iterator[pa.RecordBatch]:
    """The rows of `keys`: key, live value, new value."""
    if not keys:
        return
    if not fold.exists():
        raise SwitchyardError(f"the evidence in {fold} is deleted", fix=f"run `switchyard diff {of}` again")
    import pyarrow.compute as pc

    wanted = _strings(keys)
    for batch in _batches(fold):
        yield batch.filter(pc.is_in(batch.column("key"), value_set=wanted))


def _strings(values: Iterable[str]) -> pa.StringArray:
    # not pa.array, which loads pandas and takes a second
    import pyarrow as pa

    data = [value.encode() for value in values]
    offsets = array("i", [0, *accumulate(map(len, data))])
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(offsets), pa.py_buffer(b"".join(data)))
