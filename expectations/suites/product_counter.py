"""What holds for every result of product-counter, whatever the views."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"product": "string", "at": "string", "views": "bigint"}
_AT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    every_s = int(inputs.app_settings.get("every_s", 1))
    stores = int(inputs.app_settings.get("stores", 1))
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("product", "at", name="each counter once at a time"),
        base.pattern("at", _AT, name="at readable", detail="at is UTC like 2013-03-01T14:30:01Z"),
        base.rows(
            "times aligned",
            f"unix_seconds(try_to_timestamp(at)) % {every_s} = 0",
            detail=f"counters are written at whole multiples of {every_s} s",
        ),
        base.at_least("views", 1),
        counters_never_fall(),
        every_counter_told(stores),
        something_new(stores),
        base.volume(inputs),
    ]


def counters_never_fall() -> Check:
    query = """
        WITH told AS (SELECT *, lag(views) OVER (PARTITION BY product ORDER BY at) AS before FROM {batch})
        SELECT product, at, before, views FROM told WHERE views < before"""
    return base.no_rows("counters never fall", query, detail="a product never has fewer views than before")


def every_counter_told(stores: int) -> Check:
    """A product has a row at each time of its store, from its first one on: it has as many rows as there are such times."""
    query = f"""
        WITH told AS (
          SELECT product, at, dense_rank() OVER (PARTITION BY {_store(stores)} ORDER BY at) AS tick,
                 {_store(stores)} AS store
          FROM {{batch}} WHERE product IS NOT NULL AND at IS NOT NULL),
        lasting AS (SELECT *, max(tick) OVER (PARTITION BY store) AS last_tick FROM told)
        SELECT product, min(at) AS first_at, count(DISTINCT at) AS rows, max(last_tick) - min(tick) + 1 AS times
        FROM lasting GROUP BY product HAVING rows < times"""
    return base.no_rows(
        "every counter told", query, detail="after its first row, a counter is written each time that others are"
    )


def something_new(stores: int) -> Check:
    """A timer is set by a view, so each time has more views in all than the one before."""
    query = f"""
        WITH sums AS (
          SELECT {_store(stores)} AS store, at, sum(views) AS views FROM {{batch}} WHERE at IS NOT NULL GROUP BY ALL),
        followed AS (SELECT *, lag(views) OVER (PARTITION BY store ORDER BY at) AS before FROM sums)
        SELECT store, at, before, views FROM followed WHERE views <= before"""
    return base.no_rows("each time has a new view", query, detail="counters are written only if one has changed")


def _store(stores: int) -> str:
    return f"pmod(xxhash64(product), {stores})"
