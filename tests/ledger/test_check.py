"""The ledger through a real broker: committed records only, up to a position."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.ledger import check_log, check_result
from demo.ledger.reader import read
from pipelines.kafka.client import producer
from pipelines.settings import Settings
from tests.shared.transactions import await_ends, transactional

pytestmark = pytest.mark.broker

KEY = {"ticker": "IBM", "window_start": "2013-03-01T12:00:00Z"}
NOON_MS = 1_362_139_200_000
SETTINGS: dict[str, Any] = {"window_s": 5, "advance_s": 5}


def trade(price: float) -> bytes:
    return json.dumps({"side": "ask", "price": price}).encode()


@pytest.fixture
def topics(broker: Settings, fresh_topic: Callable[..., str]) -> tuple[str, str]:
    """Two asks of one window, and a result that is right for both; an aborted record lies between its two."""
    trades, result = fresh_topic(retention_ms="-1"), fresh_topic()
    plain = producer(broker)
    for price in (10.0, 12.0):
        plain.produce(trades, trade(price), b"IBM", timestamp=NOON_MS)
    plain.flush(10)
    writer = transactional(broker, f"{result}-writer", result)
    for value, commits in (((10.0, 1, 10.0), True), ((1.0, 9, 1.0), False), ((10.0, 2, 11.0), True)):
        writer.begin_transaction()
        fields = dict(zip(("lowest_ask", "trades", "average_ask"), value, strict=True))
        writer.produce(result, json.dumps(fields).encode(), json.dumps(KEY).encode())
        writer.flush(10)
        writer.commit_transaction(10) if commits else writer.abort_transaction(10)
    await_ends(broker, result, 1)
    return trades, result


def test_a_result_is_judged(broker: Settings, topics: tuple[str, str]) -> None:
    trades, result = topics
    ledger = check_result("stock-stats", broker.bootstrap, result, input_topic=trades, **SETTINGS)
    assert ledger.clean
    assert (ledger.records, ledger.keys, ledger.input_records) == (2, 1, 2)
    ledger = check_result("stock-stats", broker.bootstrap, result, input_topic=trades, until={0: 1}, **SETTINGS)
    assert (ledger.wrong, ledger.input_records) == (1, 1)


def test_only_committed_records_are_read(broker: Settings, topics: tuple[str, str]) -> None:
    assert [json.loads(each.value or b"")["trades"] for each in read(broker.bootstrap, topics[1])] == [1, 2]


def test_a_log_is_judged_by_the_topics_that_it_names(broker: Settings, topics: tuple[str, str], tmp_path: Path) -> None:
    trades, result = topics
    lines = [
        {"key": each.key, "value": each.value, "topic": result, "partition": 0, "offset": each.offset, "switch": 1}
        for each in read(broker.bootstrap, result)
    ]
    log = tmp_path / "log.jsonl"
    texts = [json.dumps({k: v.decode() if isinstance(v, bytes) else v for k, v in line.items()}) for line in lines]
    log.write_text("\n".join(texts) + "\n")
    assert check_log("stock-stats", broker.bootstrap, log, input_topic=trades, **SETTINGS).clean
    log.write_text("\n".join([*texts, texts[-1]]) + "\n")
    assert check_log("stock-stats", broker.bootstrap, log, input_topic=trades, **SETTINGS).duplicates == 1


def test_the_program(broker: Settings, topics: tuple[str, str]) -> None:
    trades, result = topics
    command = [sys.executable, "-m", "demo.ledger", "stock-stats", "--bootstrap", broker.bootstrap]
    done = subprocess.run(
        [*command, "--result", result, "--input", trades], capture_output=True, text=True, timeout=60, check=False
    )
    # windows that advance by 1 s are asked for: four keys are not there
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["missing"] == 4


def test_an_unknown_topic(broker: Settings) -> None:
    with pytest.raises(LookupError, match="no-such-topic"):
        list(read(broker.bootstrap, "no-such-topic"))
