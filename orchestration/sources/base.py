"""What all sources share: records, options, and the faults that are mixed into the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.errors import BadUsage

# key, value, event time in ms; a plain tuple, because millions are made
Record = tuple[bytes | None, bytes | None, int]
Int64s = npt.NDArray[np.int64]
Density = Literal["dense", "sparse"]

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z

# a late record stays within the 10 s watermark delay, minus the 3 s by which partitions may drift apart
OUT_OF_ORDER_MS = (1, 3_000)
LATE_MS = (4_000, 7_000)
# later than any watermark delay: a stream that drops late rows drops these
TOO_LATE_MS = (60_000, 120_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Shares of faulty records, from 0 to 1. By default, none is too late.

    out_of_order: up to 3 s late; late: 4 to 7 s late; too_late: 1 to 2 min late;
    duplicate: sent twice; malformed: the value can't be parsed; tombstone: no value.
    """

    out_of_order: float = 0.02
    late: float = 0.001
    too_late: float = 0.0
    duplicate: float = 0.0005
    malformed: float = 0.0001
    tombstone: float = 0.00005

    def __post_init__(self) -> None:
        for each in fields(self):
            share = getattr(self, each.name)
            if not 0 <= share <= 1:
                raise BadUsage(
                    f"--{each.name.replace('_', '-')} {share} is not a share", fix="use a number from 0 to 1"
                )
        if self.malformed + self.tombstone + self.duplicate > 1 or self.out_of_order + self.late + self.too_late > 1:
            raise BadUsage("the shares of faulty records add up to more than 1", fix="lower some of them")

    @classmethod
    def none(cls) -> Faults:
        """Clean input, in order."""
        return cls(out_of_order=0, late=0, too_late=0, duplicate=0, malformed=0, tombstone=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a source makes its records. None: the source's own default.

    per_second: records per second of event time; per_day: trades per ticker and day, with density `sparse`; keys: how
    many users, devices, products or the like the records are of.
    """

    seed: int = 1
    faults: Faults = field(default_factory=Faults)
    density: Density = "dense"
    per_second: int | None = None
    per_day: int = 8
    tickers: tuple[str, ...] = ()
    keys: int | None = None

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise BadUsage(f"--seed {self.seed} is negative", fix="use 0 or more")
        for name, number in (("per-second", self.per_second), ("per-day", self.per_day), ("keys", self.keys)):
            if number is not None and number < 1:
                raise BadUsage(f"--{name} {number} is less than 1", fix="use at least 1")


class Source(Protocol):
    """Makes the input of one app. The same options make the same records, wherever a run starts."""

    @property
    def topic(self) -> str: ...

    @property
    def partitions(self) -> int: ...

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        """Endless blocks of records in order of arrival, starting after event time `after_ms` (None: at the first)."""
        ...


def without_trades(make: Callable[[Options], Source]) -> Callable[[Options], Source]:
    """`make`, but it raises BadUsage for the options that only sources of trades have."""

    def made(options: Options) -> Source:
        source = make(options)
        if options.density != "dense" or options.tickers:
            raise BadUsage(
                f"--density and --tickers do not apply to {source.topic}", fix="leave them out; they are for trades"
            )
        return source

    return made


class PerSecond:
    """A source of generated records, the same number in each second of event time. What comes in a second depends on
    the second, the seed and the options alone.

    `per_second`: how many, unless the options say it; `stream`: the number of the source's random numbers; `keys`: how
    many keys there are, unless the options say it; None: that can't be chosen. With more keys there are more records in a
    second, so that a key has as many as before.
    """

    topic: str
    partitions = 4
    start_ms = START_MS
    per_second: int
    stream: int
    keys: int | None = None

    def __init__(self, options: Options) -> None:
        if options.keys is not None and self.keys is None:
            raise BadUsage(f"--keys does not apply to {self.topic}", fix="leave it out")
        self.options = options
        self.number_of_keys = options.keys or self.keys or 1
        self.rate = options.per_second or max(1, self.per_second * self.number_of_keys // (self.keys or 1))

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        """A block for each second that has records."""
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            random = generator(self.options.seed, self.stream, second)
            times_ms = disorder(self.arrivals_ms(second), random, self.options.faults).tolist()
            records = self.records(second, random, times_ms)
            if records:
                yield spoil(records, random, self.options.faults, self.malform)

    def arrivals_ms(self, second: int) -> Int64s:
        """When the records of a second arrive: at even intervals."""
        return self.start_ms + second * 1000 + np.arange(self.rate, dtype=np.int64) * 1000 // self.rate

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        """The records of a second, without faults. `times_ms`: their event times, some of them late."""
        raise NotImplementedError

    def malform(self, value: bytes, number: int) -> bytes:
        """A malformed value, see `spoil`."""
        return malformed_json(value, number)


def generator(seed: int, *path: int) -> np.random.Generator:
    """The random numbers of one block. They do not depend on earlier blocks."""
    return np.random.default_rng([seed, *path])


def disorder(times_ms: Int64s, random: np.random.Generator, faults: Faults) -> Int64s:
    """Event times of records that arrive at `times_ms`, some of them late, as `faults` says."""
    dice = random.random(len(times_ms))
    late_by = np.zeros(len(times_ms), dtype=np.int64)
    floor = 0.0
    for share, (low, high) in (
        (faults.out_of_order, OUT_OF_ORDER_MS),
        (faults.late, LATE_MS),
        (faults.too_late, TOO_LATE_MS),
    ):
        hit = (dice >= floor) & (dice < floor + share)
        late_by[hit] = random.integers(low, high, int(hit.sum()))
        floor += share
    return times_ms - late_by


def spoil(
    records: list[Record], random: np.random.Generator, faults: Faults, malform: Callable[[bytes, int], bytes]
) -> list[Record]:
    """The same records, some of them malformed, without a value, or twice. `malform` gets a value and a random number."""
    dice = random.random(len(records))
    threshold = faults.malformed + faults.tombstone + faults.duplicate
    # from the end, so that an insertion does not move the remaining indexes
    for index in np.flatnonzero(dice < threshold)[::-1].tolist():
        key, value, time_ms = records[index]
        if dice[index] < faults.malformed:
            records[index] = (key, malform(value or b"", int(random.integers(1 << 30))), time_ms)
        elif dice[index] < faults.malformed + faults.tombstone:
            records[index] = (key, None, time_ms)
        else:
            records.insert(index, records[index])
    return records


def malformed_json(value: bytes, number: int) -> bytes:
    """Not what the JSON value was: cut off early, not JSON, not UTF-8, another type, or without its fields."""
    kinds = (
        value[: len(value) // 4],
        b"not json",
        b"\xff\xfe" + value,
        b"[1, 2, 3]",
        b'{"comment": "none of the fields"}',
    )
    return kinds[number % len(kinds)]


def not_utf8(value: bytes, number: int) -> bytes:
    """Not what the text was: not UTF-8."""
    return b"\xff\xfe" + value
