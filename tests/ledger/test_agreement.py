"""The recompute and the apps agree on generated input with every kind of fault in it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from demo.ledger import recompute
from demo.ledger.reader import read
from demo.ledger.verify import Delivered, json_key, json_value, verify_stream, verify_table
from orchestration.sources import Faults, Options, produce, source_for
from pipelines.engine.frames import MALFORMED, parse, read_range
from pipelines.engine.results import result_of, serialized
from pipelines.model import App
from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FAULTS = Faults(out_of_order=0.05, late=0.01, duplicate=0.02, malformed=0.05, tombstone=0.02)
RECORDS = 20_000


@pytest.mark.parametrize("name", ["stock-stats", "word-count", "large-orders"])
def test_agreement(broker: Settings, fresh_topic: Callable[..., str], spark: SparkSession, name: str) -> None:
    topic = fresh_topic(4, retention_ms="-1")
    produce(broker, source_for(name, Options(faults=FAULTS)), topic=topic, history=RECORDS)
    module = name.replace("-", "_")
    app: App = getattr(importlib.import_module(f"pipelines.apps.{module}"), module)
    records = list(read(broker.bootstrap, topic))
    expected = getattr(recompute, module)(records)
    assert expected.records == RECORDS and expected.malformed > 0.05 * RECORDS
    assert not expected.late

    ends = {p: max((r.offset + 1 for r in records if r.partition == p), default=0) for p in range(4)}
    (input_name, source), *_ = app.sources.items()
    parsed = parse(read_range(spark, broker, topic, {}, ends), source).cache()
    assert parsed.where(f"{MALFORMED} is not null").count() == expected.malformed
    rows = serialized(
        app, result_of(app, {input_name: parsed.where(f"{MALFORMED} is null").drop(MALFORMED)}, {})
    ).collect()
    delivered = [
        Delivered(json_key(row.key), json_value(row.value), "r", 0, offset, source=row.source)
        for offset, row in enumerate(rows)
    ]
    assert json.loads(rows[0].key).keys() == set(app.results[""].key)
    if name == "large-orders":
        ledger = verify_stream(delivered, expected)
    else:
        ledger = verify_table(delivered, expected, "trades" if name == "stock-stats" else "count")
    assert ledger.clean, ledger
    assert ledger.keys > 0
