"""The apps' results, computed a second time and in another way. A record that can't be parsed counts for nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import gcd
from typing import Any

from demo.ledger.reader import Record

Key = tuple[str, ...]
Value = Mapping[str, Any]
# ticker and start in ms -> lowest price in cents, number of trades, their sum in cents
Panes = dict[tuple[bytes, int], list[int]]

_WORD = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a result should be. Tables: by key. Streams: by source, `topic:partition:offset`, with the key in `keys`.

    `late`: keys that a row was so late for that a watermark may have dropped it; they can't be judged.
    """

    values: dict[Key, Value]
    records: int
    malformed: int
    keys: dict[Key, Key] = field(default_factory=dict)
    late: set[Key] = field(default_factory=set)


def stock_stats(
    records: Iterable[Record],
    *,
    window_s: int = 5,
    advance_s: int = 1,
    grace_s: float = 10.0,
    apart_s: float = 2.0,
    bids_are_asks: bool = False,
) -> Expected:
    """Sums each ticker's asks in panes that don't overlap, and joins the panes into windows.

    A row is surely in time for a window that ends less than `grace_s - apart_s` before the newest row of its own
    partition: `apart_s` is how far partitions may run apart. `bids_are_asks`: with the mistake of version 1.
    """
    window_ms, advance_ms = window_s * 1000, advance_s * 1000
    pane_ms = gcd(window_ms, advance_ms)
    sure_ms = int((grace_s - apart_s) * 1000)
    panes: Panes = {}
    late: set[tuple[bytes, int]] = set()
    clocks: dict[int, int] = {}
    count = malformed = 0
    for ticker, value, time_ms, _, partition, _, _ in records:
        count += 1
        if ticker is None or (trade := _trade(value)) is None:
            malformed += 1
            continue
        side, cents = trade
        clock = clocks.get(partition, time_ms)
        if time_ms >= clock:
            clocks[partition] = time_ms
        if side != "ask" and not bids_are_asks:
            continue
        at = (ticker, time_ms - time_ms % pane_ms)
        pane = panes.get(at)
        if pane is None:
            panes[at] = [cents, 1, cents]
        else:
            if cents < pane[0]:
                pane[0] = cents
            pane[1] += 1
            pane[2] += cents
        if time_ms < clock - sure_ms:
            late.update(
                (ticker, start)
                for start in _starts(at[1], window_ms, advance_ms)
                if start + window_ms <= clock - sure_ms
            )
    values = _windows(panes, window_ms, advance_ms)
    return Expected(values=values, records=count, malformed=malformed, late={_window_key(at) for at in late})


def _trade(value: bytes | None) -> tuple[str, int] | None:
    """Side and price in cents; None if the value is malformed."""
    try:
        trade = json.loads(value.decode())  # type: ignore[union-attr]
        side, price = trade["side"], trade["price"]
        if side is None or not -1e6 < price < 1e6:
            return None
        return side, round(price * 100)
    except (AttributeError, ValueError, KeyError, TypeError):
        return None


def _windows(panes: Panes, window_ms: int, advance_ms: int) -> dict[Key, Value]:
    windows: Panes = {}
    for (ticker, pane_start), (lowest, trades, total) in panes.items():
        for start in _starts(pane_start, window_ms, advance_ms):
            window = windows.setdefault((ticker, start), [lowest, 0, 0])
            window[0] = min(window[0], lowest)
            window[1] += trades
            window[2] += total
    return {
        _window_key(at): {"lowest_ask": lowest / 100, "trades": trades, "average_ask": total / trades / 100}
        for at, (lowest, trades, total) in windows.items()
    }


def word_count(records: Iterable[Record]) -> Expected:
    """Counts the runs of ASCII letters, digits and `_` in lower case, but for "the"."""
    words: Counter[str] = Counter()
    count = malformed = 0
    for record in records:
        count += 1
        try:
            words.update(_WORD.findall(record.value.decode().lower()))  # type: ignore[union-attr]
        except (AttributeError, UnicodeDecodeError):
            malformed += 1
    del words["the"]
    return Expected(values={(w,): {"count": n} for w, n in words.items()}, records=count, malformed=malformed)


def large_orders(records: Iterable[Record], *, over_dollars: float = 10_000) -> Expected:
    """The orders over that many dollars, by the record that each came in."""
    values: dict[Key, Value] = {}
    keys: dict[Key, Key] = {}
    count = malformed = 0
    for record in records:
        count += 1
        try:
            order = json.loads(record.value.decode())  # type: ignore[union-attr]
            order_id, sales_person, cents = order["order_id"], order["sales_person"], round(order["amount"] * 100)
            if record.key is None or order_id is None or sales_person is None:
                raise ValueError("a field is null")
        except (AttributeError, ValueError, KeyError, TypeError, OverflowError):
            malformed += 1
            continue
        if cents > over_dollars * 100:
            source = (f"{record.topic}:{record.partition}:{record.offset}",)
            keys[source] = (record.key.decode(),)
            values[source] = {
                "order_id": order_id,
                "sales_person": sales_person,
                "amount": cents / 100,
                "ordered_at": _iso(record.time_ms, "milliseconds"),
            }
    return Expected(values=values, keys=keys, records=count, malformed=malformed)


def _starts(pane_start: int, window_ms: int, advance_ms: int) -> range:
    """Starts, newest first, of the windows that hold the pane."""
    return range(pane_start - pane_start % advance_ms, pane_start - window_ms, -advance_ms)


def _window_key(at: tuple[bytes, int]) -> Key:
    return at[0].decode(), _iso(at[1], "seconds")


def _iso(time_ms: int, unit: str) -> str:
    seconds, ms = divmod(time_ms, 1000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=ms * 1000)
    return moment.isoformat(timespec=unit).replace("+00:00", "Z")
