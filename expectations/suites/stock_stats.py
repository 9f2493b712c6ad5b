"""What holds for every result of stock-stats, whatever the trades."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "ticker": "string",
    "window_start": "string",
    "lowest_ask": "decimal(8,2)",
    "trades": "bigint",
    "average_ask": "decimal(12,6)",
}
_START = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"
_START_S = "unix_seconds(try_to_timestamp(window_start))"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    window_s = int(inputs.app_settings.get("window_s", 5))
    advance_s = int(inputs.app_settings.get("advance_s", 1))
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("ticker", "window_start"),
        base.pattern(
            "window_start", _START, name="window_start readable", detail="window_start is UTC like 2013-03-01T14:30:00Z"
        ),
        base.over("lowest_ask", 0),
        base.over("average_ask", 0),
        base.at_least("trades", 1),
        base.rows(
            "lowest ask not over average ask",
            "lowest_ask <= average_ask + 0.000001",
            detail="lowest_ask is not over average_ask (rounded to 6 decimals)",
        ),
        base.rows(
            "windows aligned",
            f"{_START_S} % {advance_s} = 0",
            detail=f"each window starts at a whole multiple of {advance_s} s",
        ),
        windows_complete(window_s, advance_s, inputs.late_dropped),
        base.volume(inputs),
    ]


def windows_complete(window_s: int, advance_s: int, late_dropped: int) -> Check:
    """No window is missing, and none lacks a trade that its neighbors have. Also correct for sparse trades.

    A trade lies in n = window / advance windows, one of each tiling (windows that start at the same remainder of
    `window_s` cover time without overlap). So in a run, which is consecutive windows of a ticker without a gap, all n
    tilings hold the same number of trades. A gap in trading splits the windows into two runs, and this still holds for
    both. A lost window also splits them into two, but then it doesn't hold. A trade that was late only for its first
    windows leaves at most one tiling of a run short per row that the release dropped as late.
    """
    name = "windows complete"
    tilings = window_s // advance_s
    if window_s % advance_s:
        return base.skipped(name, f"windows of {window_s} s that advance by {advance_s} s do not tile time")
    query = f"""
        WITH steps AS (
          SELECT *, lag(start_s) OVER (PARTITION BY ticker ORDER BY start_s) AS before_s
          FROM (SELECT ticker, {_START_S} AS start_s, trades FROM {{batch}}) WHERE start_s % {advance_s} = 0),
        runs AS (
          SELECT *, count_if(start_s > before_s + {advance_s}) OVER (PARTITION BY ticker ORDER BY start_s) AS run
          FROM steps WHERE before_s IS NULL OR before_s < start_s),
        tilings AS (
          SELECT ticker, run, min(start_s) AS first_s, max(start_s) AS last_s, sum(trades) AS trades
          FROM runs GROUP BY ticker, run, start_s % {window_s}),
        uneven AS (
          SELECT ticker, min(first_s) AS first_s, max(last_s) AS last_s, min(trades) AS fewest_trades,
                 max(trades) AS most_trades, count_if(trades <=> most) AS whole_tilings
          FROM (SELECT *, max(trades) OVER (PARTITION BY ticker, run) AS most FROM tilings)
          GROUP BY ticker, run HAVING whole_tilings < {tilings})
        SELECT ticker, timestamp_seconds(first_s) AS first_window, timestamp_seconds(last_s) AS last_window,
               whole_tilings, fewest_trades, most_trades
        FROM (SELECT *, sum({tilings} - whole_tilings) OVER () AS short_tilings FROM uneven)
        WHERE short_tilings > {late_dropped}"""
    allowed = f", except for {late_dropped} rows dropped as late" if late_dropped else ""
    return base.no_rows(
        name, query, detail=f"each trade is in all {tilings} windows of {window_s} s that cover it{allowed}"
    )
