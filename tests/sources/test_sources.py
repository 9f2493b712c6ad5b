"""Generated input: the same for a seed, on from where it ended, real prices, and faults in the shares asked for."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, date, datetime
from itertools import chain, islice, pairwise
from typing import Any

import pytest

from orchestration.catalog import find_apps, topics_of
from orchestration.sources import Faults, Options, Record, Source, app_names, source_for, sources_for
from orchestration.sources.base import LATE_MS, OUT_OF_ORDER_MS, PerSecond
from orchestration.sources.catalog import sources
from orchestration.sources.prices import TICKERS, daily_prices
from pipelines.errors import BadUsage

CLEAN = Faults.none()


def take(source: Source, number: int, after_ms: int | None = None) -> list[Record]:
    return list(islice(chain.from_iterable(source.blocks(after_ms)), number))


def stock_stats(faults: Faults = CLEAN, **options: Any) -> Source:
    return source_for("stock-stats", Options(faults=faults, **options))


@pytest.mark.slow
@pytest.mark.parametrize("app", app_names())
def test_a_seed_makes_the_same_records(app: str) -> None:
    def make(seed: int) -> list[list[Record]]:
        return [take(source, 3_000) for source in sources_for(app, Options(seed=seed))]

    assert make(1) == make(1)
    assert make(1) != make(2)


@pytest.mark.parametrize("app", app_names())
def test_a_second_run_goes_on_where_the_first_ended(app: str) -> None:
    for source in sources_for(app, Options(faults=CLEAN)):
        blocks = source.blocks(None)
        first, second = next(blocks), next(blocks)
        for last in (first[-1], first[len(first) // 2]):
            assert next(iter(source.blocks(last[2]))) == second
        times = [time_ms for _, _, time_ms in first + second]
        assert times == sorted(times)
        assert times[-1] - times[0] < 2_000


def test_topics_are_those_of_the_apps() -> None:
    apps = {app.name: app for app in find_apps()}
    assert {*app_names()} <= {*apps}
    for name in app_names():
        app = apps[name]
        topics = {*topics_of(app), *(topic for of in app.upstream.values() for topic in topics_of(apps[of.app]))}
        assert sorted(topics) == sorted(source.topic for source in sources_for(name, Options()))


def test_dense_trades() -> None:
    trades = take(stock_stats(), 20_000)
    values = [json.loads(value or b"") for _, value, _ in trades]
    assert {key.decode() for key, _, _ in trades if key} == set(TICKERS)
    assert all(key == value["ticker"].encode() for (key, _, _), value in zip(trades, values, strict=True))
    assert [set(v) for v in values[:1]] == [{"side", "ticker", "price", "size"}]
    assert 9_500 < sum(v["side"] == "ask" for v in values) < 10_500
    seconds = Counter(time_ms // 1000 for _, _, time_ms in trades)
    assert set(seconds.values()) == {2_000}
    # the first day that all five real tickers have is that of FB's first
    assert datetime.fromtimestamp(trades[0][2] / 1000, UTC) == datetime(2012, 5, 18, 14, 30, tzinfo=UTC)
    # FB opened at 42.05: asks from there up, bids from there down
    fb = [(v["side"], v["price"]) for v in values if v["ticker"] == "FB"]
    assert 42.05 <= min(p for side, p in fb if side == "ask") <= max(p for _, p in fb) <= 42.14
    assert 41.96 <= min(p for _, p in fb) <= max(p for side, p in fb if side == "bid") <= 42.05


def test_sparse_trades_stay_within_the_real_days() -> None:
    trades = take(stock_stats(density="sparse", per_day=40, tickers=("AAPL", "IBM")), 3 * 80)
    aapl = daily_prices(["AAPL"], 1)[0]
    days = sorted({datetime.fromtimestamp(t / 1000, UTC).date() for _, _, t in trades})
    assert days == list(aapl.days[:3]) == [date(2000, 3, 1), date(2000, 3, 2), date(2000, 3, 3)]
    for number, day in enumerate(days):
        prices = [
            json.loads(v or b"")["price"]
            for k, v, t in trades
            if k == b"AAPL" and datetime.fromtimestamp(t / 1000, UTC).date() == day
        ]
        opened, high, low, close = aapl.prices[number]
        assert len(prices) == 40
        assert low * 0.998 - 0.01 <= min(prices) <= max(prices) <= high * 1.002 + 0.01
        assert abs(prices[0] - opened) / opened < 0.03
        assert abs(prices[-1] - close) / close < 0.03


def test_sparse_trades_go_on_after_the_last_real_day() -> None:
    source = stock_stats(density="sparse", tickers=("IBM",))
    last = int(datetime(2013, 3, 1, 20, tzinfo=UTC).timestamp() * 1000)
    following = take(source, 8, last)
    assert {datetime.fromtimestamp(t / 1000, UTC).date() for _, _, t in following} == {date(2013, 3, 4)}
    assert take(source, 8, following[-1][2])[0][2] > following[-1][2]


def test_fb_is_not_traded_before_its_first_day() -> None:
    keys = {key for key, _, _ in take(stock_stats(density="sparse"), 50_000)}
    assert b"FB" not in keys
    assert b"GOOG" in keys


@pytest.mark.slow
def test_shares_of_faults() -> None:
    n = 200_000
    faults = Faults(out_of_order=0.05, late=0.01, duplicate=0.01, malformed=0.02, tombstone=0.005)
    trades = take(stock_stats(faults), n)
    bad = [value for _, value, _ in trades if value is None or not well_formed(value)]
    assert sum(value is None for value in bad) == pytest.approx(0.005 * n, rel=0.15)
    assert len(bad) == pytest.approx(0.025 * n, rel=0.1)
    assert sum(a == b for a, b in pairwise(trades)) == pytest.approx(0.01 * n, rel=0.15)
    late_by = lateness(trades)
    assert sum(OUT_OF_ORDER_MS[0] <= ms < OUT_OF_ORDER_MS[1] for ms in late_by) == pytest.approx(0.05 * n, rel=0.1)
    assert sum(LATE_MS[0] - 1 <= ms for ms in late_by) == pytest.approx(0.01 * n, rel=0.15)


def test_nothing_is_too_late_unless_asked_for() -> None:
    assert max(lateness(take(stock_stats(Faults()), 300_000))) <= LATE_MS[1]
    late = lateness(take(stock_stats(Faults(too_late=0.01)), 200_000))
    assert sum(ms > 50_000 for ms in late) == pytest.approx(2_000, rel=0.15)


def test_malformed_values_are_of_each_kind() -> None:
    values = {value for _, value, _ in take(stock_stats(Faults(malformed=1.0, tombstone=0, duplicate=0)), 200)}
    assert not any(well_formed(value) for value in values if value)
    assert any(value and value.startswith(b"\xff\xfe") for value in values)
    assert {b"not json", b"[1, 2, 3]", b'{"comment": "none of the fields"}'} < values


def test_lines_are_those_of_the_reference() -> None:
    from pydoc_data.topics import topics

    lines = [value.decode() for _, value, _ in take(source_for("word-count", Options(faults=CLEAN)), 500) if value]
    reference = [line for name in sorted(topics) for line in topics[name].splitlines() if line.strip()]
    assert lines == reference[:500]


def test_orders_are_at_and_beside_the_threshold() -> None:
    orders = [json.loads(v or b"") for _, v, _ in take(source_for("large-orders", Options(faults=CLEAN)), 20_000)]
    amounts = Counter(order["amount"] for order in orders)
    assert amounts[10_000.0] > 20 and amounts[10_000.01] > 20 and amounts[9_999.99] > 20
    assert 0.03 < sum(order["amount"] > 10_000 for order in orders) / len(orders) < 0.08
    assert len({order["order_id"] for order in orders}) == len(orders)


@pytest.mark.parametrize(
    ("app", "options", "what"),
    [
        ("nothing", {}, ", ".join(app_names())),
        ("word-count", {"density": "sparse"}, "--density"),
        ("large-orders", {"tickers": ("IBM",)}, "--tickers"),
        ("stock-stats", {"tickers": ("NONE",)}, "AAPL"),
        ("stock-stats", {"density": "sparse", "per_second": 5}, "--per-day"),
        ("stock-stats", {"per_second": 0}, "--per-second"),
        ("stock-stats", {"keys": 5}, "--tickers"),
        ("word-count", {"keys": 5}, "--keys does not apply to lines"),
        ("product-views", {"keys": 0}, "--keys"),
        ("stock-stats", {"seed": -1}, "--seed"),
    ],
)
def test_bad_usage_is_named(app: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(BadUsage, match=what):
        source_for(app, Options(**options))


def test_for_an_app_without_a_source_its_author_writes_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(sources())
    for app in ("not-viewing", "notification-counts"):
        del known[app]
    monkeypatch.setattr("orchestration.sources.catalog.sources", lambda: known)
    for app, read in (("not-viewing", "open, tick"), ("notification-counts", "result of not-viewing")):
        with pytest.raises(BadUsage) as refused:
            sources_for(app, Options())
        assert refused.value.what == f"`switchyard produce` has no input for {app!r}"
        assert refused.value.fix == (
            f"write records to what it reads with a producer of your own: {read}; "
            "or add a module to orchestration/sources that names the app in APPS"
        )


@pytest.mark.parametrize(
    "app",
    [
        "captcha",
        "count-windows",
        "maintenance",
        "product-views",
        "search-results",
        "sensor-readings",
        "store-inventory",
    ],
)
def test_with_more_keys_each_has_as_many_records_in_a_second(app: str) -> None:
    def second(**options: Any) -> list[list[Record]]:
        return [next(iter(source.blocks(None))) for source in sources_for(app, Options(faults=CLEAN, **options))]

    few, many = second(), second(keys=5_000)
    for source, some, more in zip(sources_for(app, Options()), few, many, strict=True):
        assert isinstance(source, PerSecond) and source.keys is not None
        assert len(more) == pytest.approx(len(some) * 5_000 / source.keys, rel=0.01)
        assert len(set(named(more))) > 2 * len(set(named(some)))


def named(records: list[Record]) -> list[bytes]:
    """What the records are of: the terms of a search or of a result, else their key."""
    terms = [re.search(rb"term-\d+", value or b"") for _, value, _ in records]
    return [found[0] if found else key or b"" for found, (key, _, _) in zip(terms, records, strict=True)]


@pytest.mark.parametrize("shares", [{"late": 1.5}, {"malformed": -0.1}, {"malformed": 0.6, "duplicate": 0.6}])
def test_bad_shares_are_named(shares: dict[str, float]) -> None:
    with pytest.raises(BadUsage, match="share"):
        Faults(**shares)


def well_formed(value: bytes) -> bool:
    try:
        return {"side", "price"} <= set(json.loads(value.decode()))
    except (ValueError, TypeError):
        return False


def lateness(records: list[Record]) -> list[int]:
    """How much earlier each record is than the newest before it, in ms."""
    newest, out = 0, []
    for _, _, time_ms in records:
        newest = max(newest, time_ms)
        out.append(newest - time_ms)
    return out
