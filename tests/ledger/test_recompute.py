"""The recompute itself, by results written by hand."""

from __future__ import annotations

import json

import pytest

from demo.ledger.reader import Record
from demo.ledger.recompute import large_orders, stock_stats, word_count

NOON_MS = 1_362_139_200_000  # 2013-03-01T12:00:00Z


def record(key: str | None, value: object, seconds: float = 0, partition: int = 0, offset: int = 0) -> Record:
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return Record(key.encode() if key else None, raw, NOON_MS + round(seconds * 1000), "in", partition, offset, None)


def trade(ticker: str, side: str, price: float, seconds: float, partition: int = 0) -> Record:
    return record(ticker, {"side": side, "ticker": ticker, "price": price, "size": 1}, seconds, partition)


def test_stock_stats() -> None:
    expected = stock_stats(
        [
            trade("IBM", "ask", 10.00, 7.5),
            trade("IBM", "ask", 12.00, 8.0),
            trade("IBM", "bid", 1.00, 7.6),
            trade("IBM", "ask", 11.00, 7.9),
            record("IBM", b"not json", 7.5),
            record("IBM", None, 7.5),
            record(None, {"side": "ask", "price": 1.0}, 7.5),
            record("IBM", {"side": "ask"}, 7.5),
            record("IBM", {"side": "ask", "price": "much"}, 7.5),
            record("IBM", {"side": "ask", "price": 1e9}, 7.5),
            record("IBM", b'{"side": "ask", "price": NaN}', 7.5),
        ]
    )
    first = {"lowest_ask": 10.0, "trades": 2, "average_ask": 10.5}
    middle = {"lowest_ask": 10.0, "trades": 3, "average_ask": 11.0}
    last = {"lowest_ask": 12.0, "trades": 1, "average_ask": 12.0}
    starts = [f"2013-03-01T12:00:{second:02}Z" for second in range(3, 9)]
    assert expected.values == {
        ("IBM", start): value
        for start, value in zip(starts, [first, middle, middle, middle, middle, last], strict=True)
    }
    assert (expected.records, expected.malformed, expected.late) == (11, 7, set())


def test_stock_stats_with_the_mistake_of_version_1() -> None:
    trades = [trade("IBM", "ask", 10.0, 0), trade("IBM", "bid", 4.0, 1)]
    expected = stock_stats(trades, window_s=5, advance_s=5, bids_are_asks=True)
    value = {"lowest_ask": 4.0, "trades": 2, "average_ask": 7.0}
    assert expected.values == {("IBM", "2013-03-01T12:00:00Z"): value}


@pytest.mark.parametrize(("window_s", "advance_s", "starts"), [(4, 6, [0, 6]), (5, 2, [2, 4, 6]), (3, 1, [4, 5, 6])])
def test_windows_that_do_not_tile(window_s: int, advance_s: int, starts: list[int]) -> None:
    expected = stock_stats([trade("IBM", "ask", 1.0, 6.5)], window_s=window_s, advance_s=advance_s)
    wanted = [s for s in starts if s <= 6.5 < s + window_s]
    assert sorted(expected.values) == [("IBM", f"2013-03-01T12:00:0{s}Z") for s in wanted]


def test_rows_that_a_watermark_may_drop_are_named() -> None:
    expected = stock_stats([trade("IBM", "ask", 1.0, 30), trade("IBM", "ask", 2.0, 24), trade("IBM", "ask", 2.0, 20.5)])
    # at 30 s, 8 s of grace: windows that end by 22 s may be closed, those of 24 s and later are not
    assert expected.late == {("IBM", "2013-03-01T12:00:16Z"), ("IBM", "2013-03-01T12:00:17Z")}


def test_another_partition_closes_no_window() -> None:
    assert not stock_stats([trade("IBM", "ask", 1.0, 60, 1), trade("FB", "ask", 2.0, 0, 0)]).late


def test_word_count() -> None:
    lines = [b"The quick brown fox, the QUICK one.", "the_the naïve 2nd".encode(), b"\xff\xfe x"]
    expected = word_count(record(None, line) for line in [*lines, None])
    assert expected.values == {
        (word,): {"count": count}
        for word, count in {
            "quick": 2, "brown": 1, "fox": 1, "one": 1, "the_the": 1, "na": 1, "ve": 1, "2nd": 1,
        }.items()
    }  # fmt: skip
    assert (expected.records, expected.malformed) == (4, 2)


def test_large_orders() -> None:
    def order(order_id: str, amount: float, offset: int) -> Record:
        return record("c1", {"order_id": order_id, "sales_person": "ada", "amount": amount}, 1.5, 2, offset)

    expected = large_orders(
        [order("o1", 10_000.00, 0), order("o2", 10_000.01, 1), order("o3", 9_999.99, 2), record("c1", b"{}", 0, 2, 3)]
    )
    assert expected.values == {
        ("in:2:1",): {
            "order_id": "o2",
            "sales_person": "ada",
            "amount": 10_000.01,
            "ordered_at": "2013-03-01T12:00:01.500Z",
        }
    }
    assert expected.keys == {("in:2:1",): ("c1",)}
    assert expected.malformed == 1
