"""Reservations of hotel rooms, generated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from itertools import count

import numpy as np

from orchestration.sources.base import Options, Record, disorder, generator, malformed_json, spoil, without_trades

START_MS = 1_362_148_200_000  # 2013-03-01T14:30:00Z
FIRST_DAY = date(2013, 3, 1)
GUESTS = 2_000
HOTELS = ("Alpenblick", "Bellevue", "Central", "Dorint", "Excelsior", "Fjord", "Grand", "Harbour")


class Bookings:
    """`per_second` reservations (20) per second of event time, for arrivals in the next 200 days."""

    topic = "bookings"
    partitions = 4

    def __init__(self, options: Options) -> None:
        self._options = options
        self._per_second = options.per_second or 20
        self.start_ms = START_MS

    def blocks(self, after_ms: int | None) -> Iterator[list[Record]]:
        first = 0 if after_ms is None else max(0, (after_ms - self.start_ms) // 1000 + 1)
        for second in count(first):
            yield self._block(second)

    def _block(self, second: int) -> list[Record]:
        options, n = self._options, self._per_second
        random = generator(options.seed, 14, second)
        arrives_ms = self.start_ms + second * 1000 + np.arange(n, dtype=np.int64) * 1000 // n
        times_ms = disorder(arrives_ms, random, options.faults).tolist()
        guests, hotels = random.integers(0, GUESTS, n).tolist(), random.integers(0, len(HOTELS), n).tolist()
        days, nights = random.integers(1, 200, n).tolist(), random.integers(1, 15, n).tolist()
        rates = random.integers(4_000, 40_000, n).tolist()
        records = [
            _record(second * n + i, *booked)
            for i, booked in enumerate(zip(guests, hotels, days, nights, rates, times_ms, strict=True))
        ]
        return spoil(records, random, options.faults, malformed_json)


def _record(number: int, guest: int, hotel: int, day: int, nights: int, rate_cents: int, time_ms: int) -> Record:
    booking, who, cents = b"b-%08d" % number, b"guest-%04d" % guest, rate_cents * nights
    value = (
        b'{"booking":"%b","guest":"%b","email":"%b@example.com","hotel":"%b","arrives":"%b","nights":%d,"price":%d.%02d}'
        % (
            booking,
            who,
            who,
            HOTELS[hotel].encode(),
            (FIRST_DAY + timedelta(days=day)).isoformat().encode(),
            nights,
            cents // 100,
            cents % 100,
        )
    )
    return booking, value, time_ms


APPS = {"bookings": without_trades(Bookings)}
