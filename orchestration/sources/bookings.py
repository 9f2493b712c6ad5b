"""Reservations of hotel rooms, generated."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np

from orchestration.sources.base import PerSecond, Record, without_trades

FIRST_DAY = date(2013, 3, 1)
GUESTS = 2_000
HOTELS = ("Alpenblick", "Bellevue", "Central", "Dorint", "Excelsior", "Fjord", "Grand", "Harbour")


class Bookings(PerSecond):
    """`per_second` reservations (20) per second of event time, for arrivals in the next 200 days."""

    topic = "bookings"
    per_second = 20
    stream = 14

    def records(self, second: int, random: np.random.Generator, times_ms: list[int]) -> list[Record]:
        n = len(times_ms)
        guests, hotels = random.integers(0, GUESTS, n).tolist(), random.integers(0, len(HOTELS), n).tolist()
        days, nights = random.integers(1, 200, n).tolist(), random.integers(1, 15, n).tolist()
        rates = random.integers(4_000, 40_000, n).tolist()
        return [
            _record(second * n + i, *booked)
            for i, booked in enumerate(zip(guests, hotels, days, nights, rates, times_ms, strict=True))
        ]


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
