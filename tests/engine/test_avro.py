"""Avro values: what is read and written, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from pipelines.engine.avro import as_json, avro_columns, encoded, readable_by, require_columns
from pipelines.engine.frames import ddl_columns
from pipelines.errors import BadUsage
from pipelines.model import App, AppendStream, Avro, Stream
from pipelines.testing import AppTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def schema(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Reading", "fields": list(fields)})


DEVICE = {"name": "device", "type": "string"}
VALUE = {"name": "value", "type": ["null", "double"], "default": None}
READING = schema(DEVICE, VALUE)


def test_a_record_is_written_and_read_back(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 1.5), ("b", None)], "device string, value double")
    assert avro_columns(READING).simpleString() == "struct<device:string,value:double>"
    text = rows.select(as_json(encoded(F.struct("device", "value"), READING), READING)).collect()
    assert [row[0] for row in text] == ['{"device":"a","value":1.5}', '{"device":"b","value":null}']


def test_an_avro_input_is_read_and_what_is_none_is_a_dead_letter(spark: SparkSession) -> None:
    app = App(
        name="odd",
        inputs={"readings": Stream(topic="readings", value=Avro(READING))},
        results={"": AppendStream(key=("device",))},
        function=lambda readings, settings: readings.select("device", "value", "offset"),
    )
    rows = spark.createDataFrame([("a", 1.5), ("b", None)], "device string, value double")
    good = [bytes(row[0]) for row in rows.select(encoded(F.struct("device", "value"), READING)).collect()]
    with AppTest(spark, app) as test:
        for value in (good[0], b"", None, b"\x80\xff\xff\xff", good[1]):
            test.send("readings", value)
        batch = test.run()
        assert batch.rows == [{"device": "a", "value": 1.5, "offset": 0}, {"device": "b", "value": None, "offset": 4}]
        assert [letter.reason for letter in batch.dead_letters] == [
            "the value is not Avro of its schema", "the value is null", "the value is not Avro of its schema",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "fits"),
    [
        ("value double, device string", True),
        ("device string, value float", False),
        ("device string", False),
        ("device string, value double, more int", False),
    ],
)
def test_the_columns_are_those_of_the_schema(spark: SparkSession, columns: str, fits: bool) -> None:
    if fits:
        require_columns("the result", READING, ddl_columns(columns))
        return
    with pytest.raises(
        BadUsage, match="the result does not fit its Avro schema: the schema has device string, value double"
    ):
        require_columns("the result", READING, ddl_columns(columns))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"this is not an Avro schema: Unexpected end-of-input.*\ncorrect the schema"),
        ('"string"', "is not the schema of a record"),
        ('{"type": "nothing"}', "not an Avro schema"),
    ],
)
def test_what_is_no_schema_of_a_record_is_refused(spark: SparkSession, text: str, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        avro_columns(text)


def test_avro_s_rules_say_who_can_read_what(spark: SparkSession) -> None:
    more = schema(DEVICE, VALUE, {"name": "unit", "type": "string", "default": "C"})
    assert readable_by(READING, READING) is None
    # who has the earlier schema passes over a new field
    assert readable_by(READING, more) is None
    # a field that is gone has a default there, or not
    assert readable_by(READING, schema(DEVICE)) is None
    assert "device" in (readable_by(READING, schema(VALUE)) or "")
    assert "/fields/0/type" in (readable_by(READING, schema({"name": "device", "type": "long"}, VALUE)) or "")
