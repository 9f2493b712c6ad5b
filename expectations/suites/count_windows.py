"""What holds for every result of count-windows, whatever the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {
    "key": "string",
    "kind": "string",
    "numbers": "array<bigint>",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
}
# the numbers of one partition that have the same key
_SERIES = "key, topic, `partition`"


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    size = int(inputs.app_settings.get("size", 3))
    advance = int(inputs.app_settings.get("advance", 2))
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.rows(
            "kind known",
            "kind IN ('sliding', 'tumbling', 'hopping')",
            detail="kind is sliding, tumbling or hopping",
        ),
        base.rows(
            "windows full",
            f"size(numbers) = {size} AND NOT exists(numbers, n -> n IS NULL)",
            detail=f"each window has {size} numbers",
        ),
        base.unique("kind", "topic", "partition", "offset", name="one window of a kind per record"),
        sliding_windows_follow_on(),
        kinds_agree(size, advance),
        base.volume(inputs),
    ]


def sliding_windows_follow_on() -> Check:
    """A sliding window begins with all but the first number of the one before it."""
    query = f"""
        WITH followed AS (
          SELECT *, lag(numbers) OVER (PARTITION BY {_SERIES} ORDER BY offset) AS before
          FROM {{batch}} WHERE kind = 'sliding')
        SELECT {_SERIES}, offset, before, numbers FROM followed
        WHERE before IS NOT NULL AND slice(before, 2, size(before) - 1) != slice(numbers, 1, size(before) - 1)"""
    return base.no_rows(
        "sliding windows follow on", query, detail="a sliding window continues the one before it by one number"
    )


def kinds_agree(size: int, advance: int) -> Check:
    """Every `size`-th sliding window is a tumbling one, too, every `advance`-th is a hopping one; there are no others."""
    query = f"""
        WITH ends AS (
          SELECT {_SERIES}, offset, max(numbers) FILTER (WHERE kind = 'sliding') AS sliding,
                 max(numbers) FILTER (WHERE kind = 'tumbling') AS tumbling,
                 max(numbers) FILTER (WHERE kind = 'hopping') AS hopping
          FROM {{batch}} GROUP BY {_SERIES}, offset),
        placed AS (
          SELECT *, count(sliding) OVER (PARTITION BY {_SERIES} ORDER BY offset) - 1 AS before FROM ends)
        SELECT {_SERIES}, offset, sliding, tumbling, hopping FROM placed
        WHERE NOT (tumbling <=> if(before % {size} = 0, sliding, NULL))
           OR NOT (hopping <=> if(before % {advance} = 0, sliding, NULL))"""
    return base.no_rows(
        "kinds agree",
        query,
        detail=f"the sliding windows 1, {1 + size}, {1 + 2 * size} ... of a key are tumbling windows, too, "
        f"the windows 1, {1 + advance}, {1 + 2 * advance} ... are hopping ones, and there are no others",
    )
