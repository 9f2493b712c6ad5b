"""The ledger finds each planted defect, and finds none where there is none. Logs are written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demo.ledger.check import read_log
from demo.ledger.recompute import Expected
from demo.ledger.verify import Delivered, Ledger, count_gaps, json_key, verify_stream, verify_table


def value(lowest: float, trades: int, average: float | None = None) -> dict[str, Any]:
    return {"lowest_ask": lowest, "trades": trades, "average_ask": lowest if average is None else average}


def row(key: str, got: dict[str, Any] | None, offset: int, switch: int = 1, topic: str = "v1") -> Delivered:
    return Delivered((key, "0"), got, topic, 0, offset, switch)


def delta(key: str, got: dict[str, Any] | None, offset: int, switch: int = 2) -> Delivered:
    return Delivered((key, "0"), got, "delta", 0, offset, switch, True)


EXPECTED = Expected(
    values={("a", "0"): value(10.0, 3, 11.333333333), ("b", "0"): value(5.0, 1)}, records=9, malformed=0
)

# version 1 counts bids, too; the switch corrects a, takes c away, and version 2 goes on
CLEAN = [
    row("a", value(4.0, 2), 0),
    row("c", value(4.0, 1), 1),
    row("a", value(3.0, 4), 2),
    delta("a", value(10.0, 2), 7),
    delta("c", None, 3),
    row("b", value(5.0, 1), 50, 2, "v2"),
    row("a", value(10.0, 3, 11.333333), 51, 2, "v2"),
]


def verify(delivered: list[Delivered], expected: Expected = EXPECTED) -> Ledger:
    return verify_table(delivered, expected, grows="trades", falls="lowest_ask")


def defects(ledger: Ledger) -> dict[str, int]:
    found = {name: getattr(ledger, name) for name in ("duplicates", "missing", "wrong", "steps_back")}
    return {name: number for name, number in found.items() if number}


def test_a_clean_log_of_a_table() -> None:
    ledger = verify(CLEAN)
    assert defects(ledger) == {} and ledger.clean
    assert (ledger.records, ledger.keys, ledger.input_records) == (7, 2, 9)


@pytest.mark.parametrize(
    ("delivered", "found"),
    [
        pytest.param([*CLEAN, CLEAN[-1]], {"duplicates": 1}, id="the same record again"),
        pytest.param([*CLEAN, row("a", value(3.0, 4), 2, 3)], {"duplicates": 1}, id="an old one after going back"),
        pytest.param([*CLEAN, row("b", value(5.0, 1), 52, 2, "v2")], {"duplicates": 1}, id="a batch written twice"),
        pytest.param([*CLEAN[:4], CLEAN[3], *CLEAN[4:]], {"duplicates": 1}, id="a key twice in a delta"),
        pytest.param(CLEAN[:-1], {"wrong": 1}, id="the last update lost"),
        pytest.param([*CLEAN[:5], CLEAN[-1]], {"missing": 1}, id="a key lost"),
        pytest.param([*CLEAN[:4], *CLEAN[5:]], {"wrong": 1}, id="a tombstone of the delta lost"),
        pytest.param([*CLEAN[:3], *CLEAN[4:]], {"steps_back": 1}, id="a delta's change lost: fewer trades than before"),
        pytest.param(
            [*CLEAN[:-1], row("a", value(10.0, 1), 51, 2, "v2"), row("a", value(10.0, 3, 11.333333), 52, 2, "v2")],
            {"steps_back": 1},
            id="fewer trades",
        ),
        pytest.param(
            [*CLEAN[:-1], row("a", value(10.5, 3, 11.333333), 51, 2, "v2")],
            {"steps_back": 1, "wrong": 1},
            id="a lowest ask that rose",
        ),
        pytest.param([*CLEAN, row("b", None, 52, 2, "v2")], {"steps_back": 1, "missing": 1}, id="a tombstone"),
        pytest.param([*CLEAN, row("d", value(1.0, 1), 52, 2, "v2")], {"wrong": 1}, id="a key that should not be"),
        pytest.param([*CLEAN[:-1], row("a", value(10.0, 3, 11.34), 51, 2, "v2")], {"wrong": 1}, id="another average"),
        pytest.param([], {"missing": 2}, id="nothing"),
    ],
)
def test_a_defect_of_a_table_is_found(delivered: list[Delivered], found: dict[str, int]) -> None:
    ledger = verify(delivered)
    assert defects(ledger) == found
    assert not ledger.clean
    assert set(ledger.samples) == set(found)


def test_keys_with_late_rows_are_not_judged() -> None:
    late = Expected(values=EXPECTED.values, records=9, malformed=0, late={("a", "0")})
    ledger = verify(CLEAN[:-1], late)
    assert ledger.clean and ledger.late == 1


def test_a_gap_in_a_visit_is_missing() -> None:
    offsets = {("v1", 0): [0, 1, 2, 3, 4], ("v2", 0): [10, 50, 51, 53, 60]}
    delivered = [*CLEAN, row("a", value(9.0, 4), 53, 2, "v2")]
    ledger = Ledger()
    count_gaps(ledger, delivered, offsets)
    assert ledger.missing == 0  # the end of v1's and the start of v2's belong to no visit
    ledger = Ledger()
    count_gaps(ledger, [each for each in delivered if each.offset != 51], offsets)
    assert ledger.missing == 1
    assert ledger.samples["missing"] == ["v2:0:51 of switch 2"]


def order(order_id: str, source: str | None, offset: int, key: str = "c1", switch: int = 1) -> Delivered:
    return Delivered((key,), {"order_id": order_id, "amount": 20_000.0}, "r", 0, offset, switch, False, source)


STREAM = Expected(
    values={
        ("orders:0:1",): {"order_id": "o1", "amount": 20_000.0},
        ("orders:0:5",): {"order_id": "o2", "amount": 20_000.0},
        ("orders:1:0",): {"order_id": "o3", "amount": 20_000.0},
    },
    keys={("orders:0:1",): ("c1",), ("orders:0:5",): ("c1",), ("orders:1:0",): ("c2",)},
    records=7,
    malformed=0,
)
ORDERS = [order("o3", "orders:1:0", 0, "c2"), order("o1", "orders:0:1", 1), order("o2", "orders:0:5", 90, switch=2)]


def test_a_clean_log_of_a_stream() -> None:
    ledger = verify_stream(ORDERS, STREAM)
    assert ledger.clean
    assert (ledger.records, ledger.keys) == (3, 2)


@pytest.mark.parametrize(
    ("delivered", "found"),
    [
        pytest.param([*ORDERS, order("o1", "orders:0:1", 91, switch=2)], {"duplicates": 1}, id="again, elsewhere"),
        pytest.param(ORDERS[:2], {"missing": 1}, id="lost"),
        pytest.param([ORDERS[0], ORDERS[2], ORDERS[1]], {"steps_back": 1}, id="out of order"),
        pytest.param([*ORDERS, order("o4", "orders:0:7", 91)], {"wrong": 1}, id="not a large order"),
        pytest.param([*ORDERS[:2], order("o9", "orders:0:5", 90)], {"wrong": 1}, id="another value"),
        pytest.param([*ORDERS[:2], order("o2", "orders:0:5", 90, "c9")], {"wrong": 1}, id="another key"),
        pytest.param([*ORDERS[:2], order("o2", None, 90)], {"wrong": 1, "missing": 1}, id="no source"),
    ],
)
def test_a_defect_of_a_stream_is_found(delivered: list[Delivered], found: dict[str, int]) -> None:
    assert defects(verify_stream(delivered, STREAM)) == found


def test_a_follower_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    common = {"topic": "v1", "partition": 0, "switch": 1}
    lines = [
        {**common, "key": '{"ticker":"a","window_start":"0"}', "value": '{"trades":1}', "offset": 3, "phase": "result"},
        {**common, "key": {"ticker": "a", "window_start": "0"}, "value": None, "offset": 4, "phase": "delta"},
        {
            **common,
            "key": {"customer": "c"},
            "value": {"x": 1},
            "offset": 5,
            "phase": "result",
            "headers": {"source": "o:0:1"},
        },
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"key": "cut o')
    assert read_log(log) == [
        Delivered(("a", "0"), {"trades": 1}, "v1", 0, 3, 1),
        Delivered(("a", "0"), None, "v1", 0, 4, 1, True),
        Delivered(("c",), {"x": 1}, "v1", 0, 5, 1, False, "o:0:1"),
    ]


def test_a_key_of_any_form() -> None:
    assert json_key(b'{"word": "x"}') == json_key('{"word": "x"}') == json_key({"word": "x"}) == ("x",)
