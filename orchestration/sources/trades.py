"""Trades: asks and bids around each day's price path, from open through high and low to close."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from itertools import count

import numpy as np
import numpy.typing as npt

from orchestration.sources.base import Int64s, Options, Record, disorder, generator, malformed_json, spoil
from orchestration.sources.prices import REAL, TICKERS, Daily, daily_prices, weekday_after
from pipelines.errors import BadUsage

SESSION_OPENS = time(14, 30, tzinfo=UTC)
SESSION_S = 23_400
# asks are up to this share above the path, bids up to this share below it
SPREAD = 0.002


class DenseTrades:
    """`per_second` trades (2,000) per second of event time, of ten tickers.

    Sessions follow each other without nights. Each has the prices of the next day that all tickers have; after the last
    day, the first follows. One block is one second.
    """

    topic = "trades"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 2_000
        self._prices = daily_prices(options.tickers or TICKERS, options.seed)
        self._days = sorted(set.intersection(*(set(p.days) for p in self._prices)))
        self._index = [{day: i for i, day in enumerate(p.days)} for p in self._prices]
        self.start_ms = _opens_ms(self._days[0])

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            yield self._block(second)

    def _block(self, second: int) -> list[Record]:
        options, n = self._options, self._per_second
        random = generator(options.seed, 2, second)
        session, within_s = divmod(second, SESSION_S)
        day = self._days[session % len(self._days)]
        mids = np.array(
            [p.mid(index[day], within_s / SESSION_S) for p, index in zip(self._prices, self._index, strict=True)]
        )
        arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
        which = random.integers(0, len(mids), n)
        times_ms = disorder(arrives_ms, random, options.faults)
        records = _trades(self._prices, which, mids[which], times_ms, random)
        return spoil(records, random, options.faults, malformed_json)


class SparseTrades:
    """`per_day` trades (8) of each ticker on each of its real days, 2000 to 2013, without nights and weekends.

    By default the five real tickers; GOOG starts in 2004 and FB in 2012. After the last day, weekdays follow with the
    prices of the days from the first. One block is one day.
    """

    topic = "trades"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._prices = daily_prices(options.tickers or REAL, options.seed)
        self._days = sorted(set.union(*(set(p.days) for p in self._prices)))
        self._index = [{day: i for i, day in enumerate(p.days)} for p in self._prices]
        self.start_ms = _opens_ms(self._days[0])
        self.history_records = sum(len(p.days) for p in self._prices) * options.per_day

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        last = None if after_ms is None else datetime.fromtimestamp(after_ms / 1000, UTC).date()
        start = 0 if last is None else bisect_right(self._days, last)
        for number in range(start, len(self._days)):
            yield self._block(number, self._days[number])
        day = self._days[-1] if last is None else max(last, self._days[-1])
        for number in count(max(start, len(self._days))):
            day = weekday_after(day)
            yield self._block(number, day)

    def _block(self, number: int, day: date) -> list[Record]:
        options, per_day = self._options, self._options.per_day
        # seeded by the date, so that a run that starts later makes the same day
        random = generator(options.seed, 3, day.toordinal())
        known = number < len(self._days)
        trading = [i for i, index in enumerate(self._index) if not known or day in index]
        which = np.repeat(np.array(trading, dtype=np.int64), per_day)
        fractions = (np.tile(np.arange(per_day), len(trading)) + random.random(len(which))) / per_day
        mids = np.concatenate(
            [
                self._prices[i].mid(
                    self._index[i][day] if known else number, fractions[j * per_day : (j + 1) * per_day]
                )
                for j, i in enumerate(trading)
            ]
        )
        order = np.argsort(fractions, kind="stable")
        arrives_ms = _opens_ms(day) + (fractions[order] * SESSION_S * 1000).astype(np.int64)
        times_ms = disorder(arrives_ms, random, options.faults)
        records = _trades(self._prices, which[order], mids[order], times_ms, random)
        return spoil(records, random, options.faults, malformed_json)


def _trades(
    prices: list[Daily],
    which: Int64s,
    mids: npt.NDArray[np.float64],
    times_ms: Int64s,
    random: np.random.Generator,
) -> list[Record]:
    """One trade per entry of `which` (an index into `prices`), `mids` (dollars) and `times_ms`."""
    n = len(which)
    asks = random.random(n) < 0.5
    away = random.random(n) * SPREAD
    cents = np.maximum(1, np.rint(mids * np.where(asks, 1 + away, 1 - away) * 100)).astype(np.int64)
    sizes = random.integers(1, 1_000, n)
    keys = [p.ticker.encode() for p in prices]
    heads = [[b'{"side":"%b","ticker":"%b","price":' % (side, key) for key in keys] for side in (b"bid", b"ask")]
    return [
        (keys[i], b'%b%d.%02d,"size":%d}' % (heads[ask][i], dollars, rest, size), time_ms)
        for i, ask, dollars, rest, size, time_ms in zip(
            which.tolist(),
            asks.tolist(),
            (cents // 100).tolist(),
            (cents % 100).tolist(),
            sizes.tolist(),
            times_ms.tolist(),
            strict=True,
        )
    ]


def _opens_ms(day: date) -> int:
    return int(datetime.combine(day, SESSION_OPENS).timestamp()) * 1000


def trades(options: Options) -> DenseTrades | SparseTrades:
    """The trades of the density that the options ask for. Raises BadUsage for an option of the other one, and for keys."""
    if options.keys is not None:
        raise BadUsage("--keys does not apply to trades", fix="use --tickers")
    if options.density == "dense":
        return DenseTrades(options)
    if options.per_second is not None:
        raise BadUsage("--per-second does not apply to --density sparse", fix="use --per-day")
    return SparseTrades(options)


# what an app reads of another one comes from the input of that one
APPS = {"daily-gains": trades, "stock-stats": trades, "top-stocks": trades}
