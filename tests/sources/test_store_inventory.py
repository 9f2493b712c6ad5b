"""The events that are generated: sales and deliveries that about balance, and SKUs that run out."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for


def test_deliveries_make_up_for_sales_and_some_items_run_out() -> None:
    source = source_for("store-inventory", Options(faults=Faults.none()))
    stock: Counter[tuple[bytes | None, str]] = Counter()
    moved = 0
    for key, value, _ in chain.from_iterable(islice(source.blocks(None), 120)):
        event = json.loads(value or b"")
        stock[key, event["sku"]] += event["quantity"]
        moved += abs(event["quantity"])
    assert len({store for store, _ in stock}) == 50
    assert abs(sum(stock.values())) < 0.1 * moved
    assert min(stock.values()) < 0 < max(stock.values())
