"""The dead letters of a batch, and how large a record may be. What a sink does with them is in `test_set_apart.py`."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer

from pipelines.engine.metrics import DeadLetter
from pipelines.engine.records import TOO_LARGE, Unsent, as_sent, dead_letters, refusal, too_large
from pipelines.engine.writer import Headers
from pipelines.kafka.client import MAX_RECORD_BYTES, producer_config
from pipelines.model.positions import SourcePosition, Span
from pipelines.model.reset import Replays
from pipelines.settings import Settings

START, END = (SourcePosition(sources={"trades": {0: offset}}) for offset in (0, 10))
REPLAYS = Replays([Span(start=START, end=END)], {"trades": "trades"})


def test_a_dead_letter_says_where_it_comes_from() -> None:
    malformed = [DeadLetter("trades", 0, at, b"k", b"\xff", "not JSON") for at in (9, 10)]
    unsent = [Unsent("app.v1.g1", None, 2), Unsent("app.v1.g1", b"b", 2, "trades:0:3", again=True)]
    found = list(dead_letters(7, malformed, unsent, REPLAYS))
    came = [("topic", b"trades"), ("partition", b"0")]
    why = [("topic", b"app.v1.g1"), ("reason", TOO_LARGE.encode()), ("batch", b"7")]
    assert found == [
        (b"k", b"\xff", [*came, ("offset", b"9"), ("reason", b"not JSON"), ("replay", b"true")]),
        (b"k", b"\xff", [*came, ("offset", b"10"), ("reason", b"not JSON")]),
        (b"", None, [*why, ("value-bytes", b"2")]),
        (b"b", None, [*why, ("value-bytes", b"2"), ("source", b"trades:0:3"), ("replay", b"true")]),
    ]


def test_the_error_names_the_record_that_a_row_comes_from() -> None:
    named = too_large("app.v1", 7, Unsent("app.v1.g1", b"b", 2, "trades:0:3"))
    assert named.what == (
        "app.v1: batch 7 has a row for app.v1.g1 from trades:0:3, with the key b, whose value has 2 bytes: "
        "too large for a record, which may have 1,048,448 bytes at most"
    )
    unnamed = too_large("app.v1", 7, Unsent("app.v1.g1", None, 1234))
    assert "a row for app.v1.g1, with the key null, whose value has 1,234 bytes" in unnamed.what


HEADERS: list[Headers | None] = [
    None,
    [],
    [("source", b"orders:0:1")],
    # 64 and 8,192 take one more byte than 63 and 8,191
    [("n" * 63, b"v" * 8_191)],
    [("n" * 64, b"v" * 8_192)],
    [("none", None), ("empty", b""), ("größe", b"x"), ("text", "größe")],
    [("again", b"true")] * 100,
]


@pytest.mark.parametrize("headers", HEADERS, ids=lambda each: str(each)[:30])
@pytest.mark.parametrize("key", [None, "", "größe", "k" * 500_000])
def test_what_is_too_large_is_what_the_producer_refuses(key: str | None, headers: Headers | None) -> None:
    # it refuses by itself, without a broker
    producer = Producer({**producer_config(Settings()), "bootstrap.servers": ""})

    def refused(value: str) -> str | None:
        try:
            producer.produce("t", value, key, headers=headers)
        except KafkaException as error:
            return str(error.args[0].str())
        return None

    # the largest value that is not refused by the rule
    smallest, largest = 0, MAX_RECORD_BYTES
    while smallest < largest:
        middle = (smallest + largest + 1) // 2
        if refusal(key, "x" * middle, headers) is None:
            smallest = middle
        else:
            largest = middle - 1
    assert smallest > 400_000
    assert refused("x" * smallest) is None
    assert refusal(key, "x" * (smallest + 1), headers) is not None
    assert refused("x" * (smallest + 1)) == "Unable to produce message: Broker: Message size too large"
    producer.purge()
    producer.poll(0)


def test_a_letter_that_is_too_large_is_sent_without_its_value_or_its_key() -> None:
    large, why = b"x" * 1_048_576, ("reason", b"too large")
    size = str(len(large)).encode()
    assert as_sent((b"k", b"v", [why])) == (b"k", b"v", [why])
    assert as_sent((b"k", large, [why])) == (b"k", None, [why, ("value-bytes", size)])
    assert as_sent((large, b"1", [why])) == (None, None, [why, ("value-bytes", b"1"), ("key-bytes", size)])
    assert as_sent((large, None, [why])) == (None, None, [why, ("key-bytes", size)])


def test_a_letter_whose_key_is_left_out_has_the_start_of_it() -> None:
    unsent = Unsent("app.v1.g1", ("größe" * 300_000).encode(), 2)
    [letter] = dead_letters(7, [], [unsent], REPLAYS)
    assert dict(letter[2])["key-start"] == ("größe" * 40).encode()
    key, value, headers = as_sent(letter)
    assert (key, value) == (None, None) and ("key-bytes", b"2100000") in headers
