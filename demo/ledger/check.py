"""The two questions: is a result topic right, and is what a follower recorded?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from demo.ledger import recompute
from demo.ledger.reader import Record, read
from demo.ledger.recompute import Expected
from demo.ledger.verify import Delivered, Ledger, count_gaps, json_key, json_value, verify_stream, verify_table

INPUTS = {"large-orders": "orders", "stock-stats": "trades", "word-count": "lines"}
_RECOMPUTE: dict[str, Callable[..., Expected]] = {
    "large-orders": recompute.large_orders,
    "stock-stats": recompute.stock_stats,
    "word-count": recompute.word_count,
}


def check_result(
    app: str,
    bootstrap: str,
    result: str,
    *,
    input_topic: str | None = None,
    until: Mapping[int, int] | None = None,
    properties: Mapping[str, str] | None = None,
    **settings: Any,
) -> Ledger:
    """Judges the topic `result`, as it is now, by the app's input up to the offsets `until` (None: its end).

    `properties`: more of librdkafka's properties; `settings`: as in `recompute`.
    """
    expected = _expected(app, bootstrap, input_topic, until, properties, settings)
    return _verify(app, (_delivered(record) for record in read(bootstrap, result, None, properties)), expected)


def check_log(
    app: str,
    bootstrap: str,
    log: Path,
    *,
    input_topic: str | None = None,
    until: Mapping[int, int] | None = None,
    properties: Mapping[str, str] | None = None,
    gaps: bool = True,
    **settings: Any,
) -> Ledger:
    """Judges a follower's log by the app's input up to `until`, and with `gaps` by the result topics that it names.

    One JSON object a line, as `switchyard follow --json` prints it: `key` and `value` (JSON text or objects), `topic`,
    `partition`, `offset`, `switch`, `phase` ("result" or "delta") and, of streams, `headers` with `source`.
    """
    delivered = read_log(log)
    ledger = _verify(app, delivered, _expected(app, bootstrap, input_topic, until, properties, settings))
    if gaps:
        offsets: dict[tuple[str, int], list[int]] = {}
        for topic in sorted({each.topic for each in delivered if not each.delta}):
            for record in read(bootstrap, topic, None, properties):
                offsets.setdefault((topic, record.partition), []).append(record.offset)
        count_gaps(ledger, delivered, offsets)
    return ledger


def read_log(log: Path) -> list[Delivered]:
    """The records of a follower's log. A last line that was cut off by a kill was not delivered: it is left out."""
    lines = log.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    out = []
    for line in lines:
        each = json.loads(line)
        out.append(
            Delivered(
                json_key(each["key"]),
                json_value(each["value"]),
                each["topic"],
                each["partition"],
                each["offset"],
                each.get("switch", 0),
                each.get("phase") == "delta",
                (each.get("headers") or {}).get("source"),
            )
        )
    return out


def _expected(
    app: str,
    bootstrap: str,
    input_topic: str | None,
    until: Mapping[int, int] | None,
    properties: Mapping[str, str] | None,
    settings: Mapping[str, Any],
) -> Expected:
    if app not in _RECOMPUTE:
        raise LookupError(f"there is no recompute of {app!r}; there is of: {', '.join(sorted(_RECOMPUTE))}")
    return _RECOMPUTE[app](read(bootstrap, input_topic or INPUTS[app], until, properties), **settings)


def _verify(app: str, delivered: Iterable[Delivered], expected: Expected) -> Ledger:
    if app == "large-orders":
        return verify_stream(delivered, expected)
    if app == "stock-stats":
        return verify_table(delivered, expected, grows="trades", falls="lowest_ask")
    return verify_table(delivered, expected, grows="count")


def _delivered(record: Record) -> Delivered:
    return Delivered(
        json_key(record.key or b"{}"),
        json_value(record.value),
        record.topic,
        record.partition,
        record.offset,
        source=record.source,
    )
