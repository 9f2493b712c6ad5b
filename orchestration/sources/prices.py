"""Daily prices: real ones for 2000-2013 from a package that ships them, and generated ones for more tickers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import numpy.typing as npt

from orchestration.sources.base import generator
from pipelines.errors import BadUsage, SwitchyardError

REAL = ("AAPL", "FB", "GOOG", "IBM", "MSFT")
# named so that, with the real ones, they spread over 4 partitions as 3, 3, 2, 2
GENERATED = ("GLOBEX", "HOOLI", "STARK", "TYRELL", "UMBRELLA")
TICKERS = REAL + GENERATED

# where in the day the price is at its open, high, low and close
PATH_AT = (0.0, 1 / 3, 2 / 3, 1.0)


@dataclass(frozen=True, slots=True)
class Daily:
    """One ticker: its days in ascending order, and for each day its open, high, low and close in dollars."""

    ticker: str
    days: tuple[date, ...]
    prices: npt.NDArray[np.float64]

    def mid(self, day: int, fraction: npt.NDArray[np.float64] | float) -> npt.NDArray[np.float64]:
        """The price in dollars at `fraction` (0 to 1) of day number `day`; after the last day, the first follows."""
        return np.asarray(np.interp(np.asarray(fraction), PATH_AT, self.prices[day % len(self.days)]))


def daily_prices(tickers: Sequence[str], seed: int) -> list[Daily]:
    """Prices of `tickers`, in that order. Raises BadUsage for one that is neither real nor generated, SwitchyardError
    without the extra `demo`, which has the real ones.
    """
    for ticker in tickers:
        if ticker not in TICKERS:
            raise BadUsage(f"there are no prices for ticker {ticker!r}", fix=f"use some of {', '.join(TICKERS)}")
    return [_real(t) if t in REAL else _generated(t, seed) for t in tickers]


def weekday_after(day: date) -> date:
    """The next day from Monday to Friday."""
    return day + timedelta(days=3 if day.weekday() == 4 else 2 if day.weekday() == 5 else 1)


def _real(ticker: str) -> Daily:
    try:
        from bokeh_sampledata import stocks
    except ModuleNotFoundError as error:
        if error.name != "bokeh_sampledata":
            raise
        raise SwitchyardError(
            "the prices of stock-stats are not installed: they are in the extra `demo`",
            fix="run `pip install bokeh-sampledata` in the environment of Switchyard; `make setup` installs it, too",
        ) from error

    data = getattr(stocks, ticker)
    days = tuple(date.fromisoformat(d) for d in data["date"])
    return Daily(ticker, days, np.array([data[name] for name in ("open", "high", "low", "close")]).T)


def _generated(ticker: str, seed: int) -> Daily:
    """A random walk over the days of the real prices."""
    days = _real(REAL[0]).days
    random = generator(seed, 1, GENERATED.index(ticker))
    close = random.uniform(20, 200) * np.exp(np.cumsum(random.normal(0, 0.01, len(days))))
    opened = close * np.exp(random.normal(0, 0.005, len(days)))
    high = np.maximum(opened, close) * (1 + random.uniform(0, 0.01, len(days)))
    low = np.minimum(opened, close) * (1 - random.uniform(0, 0.01, len(days)))
    return Daily(ticker, days, np.clip(np.array([opened, high, low, close]).T, 1.0, 9_999.0))
