"""Which results of other apps an input can read, by what the registry holds of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestration.operations.planning.upstream import begins_with, columns_read, pinned
from pipelines.errors import BadUsage
from pipelines.model.entries import GenerationStarted, ResultSpec, Staged
from pipelines.model.registry import RegistryState, fold
from tests.operations.builders import POSITION, spec, switched

TRADE: dict[str, Any] = {
    "type": "record",
    "name": "trade",
    "fields": [{"name": "price", "type": "double"}, {"name": "note", "type": ["null", "string"], "default": None}],
}
AVRO = json.dumps(TRADE)
GAINS = ResultSpec(
    table=True,
    key=("ticker", "day"),
    partitions=2,
    schema_ddl="`ticker` string, `day` string, `gain` decimal(16,4), `trades` bigint",
    suite=None,
)
# JSON whose key may have a part read; Avro; without a key
TOLD = GAINS.model_copy(update={"table": False})
PRICES = TOLD.model_copy(
    update={"avro": AVRO, "schema_ddl": "`ticker` string, `day` string, `price` double, `note` string"}
)
LINES = ResultSpec(table=False, key=(), partitions=2, schema_ddl="`line` string", suite=None)


def known(**results: ResultSpec) -> RegistryState:
    """One release of app a, which is live."""
    first, *_ = results.values()
    staged = spec("a.v1", **first.model_dump(), results=results)
    return fold(
        RegistryState(),
        [
            Staged(spec=staged),
            GenerationStarted(release="a.v1", generation=1, start=POSITION),
            *switched(1, None, "a.v1"),
        ],
    )


STATE = known(gains=GAINS, told=TOLD, prices=PRICES, lines=LINES)


def reading(result: str, **changes: Any) -> dict[str, Any]:
    """What an input says that reads all of a result as it is."""
    spec = STATE.releases["a.v1"].spec.outputs[result]
    return {
        "app": "a",
        "result": result,
        "table": spec.table,
        "key_as": "JSON" if spec.key else None,
        "key": list(spec.key),
        "value_as": "Avro" if spec.avro else "JSON",
        "value": [] if spec.avro else spec.value,
        "avro": spec.avro,
        **changes,
    }


SHORTER = json.dumps({**TRADE, "name": "other", "doc": "a reader's own", "fields": TRADE["fields"][:1]})
JSON_TEXT: dict[str, Any] = {"value_as": "text", "value": []}
BYTES: dict[str, Any] = {"value_as": "bytes", "value": [], "avro": None}


@pytest.mark.parametrize(
    "of",
    [
        reading("gains"),
        reading("gains", key=["day", "ticker"], value=["gain"]),
        reading("told"),
        reading("told", key=["day"]),
        reading("told", key_as=None, key=[]),
        reading("told", **JSON_TEXT),
        reading("told", **BYTES),
        reading("prices"),
        reading("prices", avro=SHORTER),
        reading("prices", **BYTES),
        reading("lines"),
    ],
)
def test_a_result_is_read_as_it_is_or_a_part_of_it(of: dict[str, Any]) -> None:
    found = pinned(STATE, "b", {"given": of})["given"]
    assert (found.topic, found.release) == (f"a.v1.g1.{of['result']}", "a.v1")
    assert columns_read(STATE, {"given": of}, {"given": found}) == {
        "given": STATE.releases["a.v1"].spec.outputs[of["result"]].schema_ddl
    }


@pytest.mark.parametrize(
    ("of", "what", "fix"),
    [
        (
            reading("gains", key_as="text", key=[]),
            "input given of b reads the keys of a.v1 as text, but they are JSON objects",
            'read them with key=Json("ticker string NOT NULL, day string NOT NULL")',
        ),
        (
            reading("told", key_as="text", key=[]),
            "input given of b reads the keys of a.v1 as text, but they are JSON objects",
            'read them with key=Json("ticker string NOT NULL, day string NOT NULL")',
        ),
        (
            reading("gains", key=["ticker"]),
            "input given of b reads a part of the key of a.v1, without day: rows that differ only in that would overwrite "
            "each other",
            'read the whole key, key=Json("ticker string NOT NULL, day string NOT NULL")',
        ),
        (
            reading("gains", key=["ticker", "hour"]),
            "input given of b: the result of a.v1 has no column hour in its key",
            "its key has ticker, day, its value gain, trades",
        ),
        (
            reading("lines", key_as="text", key=[]),
            "input given of b reads the keys of a.v1, but its records have none",
            "leave out key",
        ),
        (
            reading("told", value=["gain", "volume"]),
            "input given of b: the result of a.v1 has no column volume in its value",
            "its key has ticker, day, its value gain, trades",
        ),
        (
            reading("prices", value_as="JSON", value=["price"], avro=None),
            "input given of b reads the values of a.v1 as JSON, but they are Avro",
            "read them with value=Avro(SCHEMA) and the schema of that result",
        ),
        (
            reading("prices", value_as="text", avro=None),
            "input given of b reads the values of a.v1 as text, but they are Avro",
            "read them with value=Avro(SCHEMA) and the schema of that result",
        ),
        (
            reading("told", value_as="Avro", value=[], avro=AVRO),
            "input given of b reads the values of a.v1 as Avro, but they are JSON",
            'read them with value=Json("gain decimal(16,4), trades bigint")',
        ),
        (
            reading("prices", avro=json.dumps({**TRADE, "fields": TRADE["fields"][::-1]})),
            "input given of b has another Avro schema than the result of a.v1: Avro's binary form has no field names, so the "
            "fields must be the first ones of that schema, in its order and with its types",
            f"use the schema of that result: {AVRO}",
        ),
    ],
)
def test_what_could_not_be_read_is_refused_with_what_to_write_instead(of: dict[str, Any], what: str, fix: str) -> None:
    with pytest.raises(BadUsage) as refused:
        pinned(STATE, "b", {"given": of})
    assert (refused.value.what, refused.value.fix) == (what, fix)


def test_a_result_of_a_release_that_was_staged_before_there_was_avro_is_json() -> None:
    old = json.loads(spec("a.v1", **GAINS.model_dump()).model_dump_json(exclude_defaults=True))
    assert "avro" not in old and "results" not in old
    state = fold(
        RegistryState(),
        [
            Staged.model_validate({"spec": old}),
            GenerationStarted(release="a.v1", generation=1, start=POSITION),
            *switched(1, None, "a.v1"),
        ],
    )
    of = {**reading("gains"), "result": ""}
    assert pinned(state, "b", {"given": of})["given"].topic == "a.v1.g1"
    with pytest.raises(BadUsage, match="as Avro, but they are JSON"):
        pinned(state, "b", {"given": {**of, "value_as": "Avro"}})


def schema(*types: Any) -> str:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


@pytest.mark.parametrize(
    ("written", "read", "same"),
    [
        (schema("int"), schema({"type": "int"}), True),
        (schema("int", "string"), schema("int"), True),
        (schema("int"), schema("int", "string"), False),
        (schema("int"), schema("long"), False),
        (schema(["null", "int"]), schema(["int", "null"]), False),
        (schema({"type": "long", "logicalType": "timestamp-millis"}), schema("long"), False),
    ],
)  # fmt: skip
def test_an_avro_record_is_read_by_the_first_fields_of_its_schema(written: str, read: str, same: bool) -> None:
    assert begins_with(written, read) is same
