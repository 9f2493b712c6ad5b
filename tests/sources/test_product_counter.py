"""The views that are generated: some products are viewed all the time, and there are seconds without a view."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for


def test_some_products_are_viewed_all_the_time_and_some_seconds_have_no_view() -> None:
    source = source_for("product-counter", Options(faults=Faults.none()))
    views = list(chain.from_iterable(islice(source.blocks(None), 57)))
    seconds = {time_ms // 1000 - views[0][2] // 1000 for _, _, time_ms in views}
    assert set(range(60)) - seconds == {40, 41, 42}
    products = Counter(key for key, _, _ in views)
    assert len(views) == 5_700 and len(products) > 150
    assert products.most_common(1)[0][1] > 1_000 and min(products.values()) < 5
