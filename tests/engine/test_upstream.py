"""As which types the columns of another app's result can be declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from pipelines.engine.frames import ddl_columns
from pipelines.engine.plain_json import from_json
from pipelines.engine.upstream import reads, refuse_other_types, upstream_of
from pipelines.errors import BadUsage
from pipelines.model import App, AppendStream, Avro, Changelog, Json, Raw, ResultOf, Stream, Text
from pipelines.model.app import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# type of a column -> values of it, as Spark SQL: the largest, and those that other types read otherwise
WRITTEN = {
    "string": ["'x'"],
    "tinyint": ["127"],
    "smallint": ["-32768"],
    "int": ["2147483647"],
    "bigint": ["9223372036854775807"],
    "float": ["1.5", "3.4e38"],
    "double": ["1.5", "1e300"],
    "decimal(10,2)": ["12345678.12"],
    "decimal(9,0)": ["-999999999"],
    "decimal(18,0)": ["999999999999999999"],
    "decimal(19,0)": ["9999999999999999999"],
    "boolean": ["true"],
    "date": ["'2026-01-02'"],
    "timestamp": ["'2026-01-02T03:04:05.123Z'"],
    "timestamp_ntz": ["'2026-01-02T03:04:05.123'"],
    "binary": ["'abcd'"],
    "struct<a:int>": ["named_struct('a', 1)"],
    "array<int>": ["array(1)"],
    "map<string,int>": ["map('a', 1)"],
}
DECLARED = [*WRITTEN, "decimal(12,2)", "decimal(10,3)", "decimal(10,0)", "decimal(22,2)", "struct<a:bigint>",
            "array<string>", "map<string,bigint>"]  # fmt: skip
# a text may be one of these
IN_TEXT = {"date", "timestamp", "timestamp_ntz", "binary", *(kind for kind in DECLARED if kind.startswith("decimal"))}
# Spark reads these, and the value is another: rounded, too large, or of no value
OTHER_VALUE = {("double", "float"), *(("decimal(10,2)", f"decimal({digits},0)") for digits in (9, 10, 18, 19))}


@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.parametrize("written", WRITTEN)
def test_a_type_is_refused_exactly_if_spark_can_not_read_each_value(spark: SparkSession, written: str) -> None:
    values = [f"SELECT to_json(struct(CAST({value} AS {written}) AS c)) AS j" for value in WRITTEN[written]]
    schemas = {declared: ddl_columns(f"c {declared}") for declared in DECLARED}
    frame = spark.sql(" UNION ALL ".join(values)).select(
        *(from_json(F.col("j"), schema, "_corrupt").alias(declared) for declared, schema in schemas.items())
    )
    # in one query: each would take half a second
    [found] = frame.agg(
        *(F.count_if(F.expr(f"`{each}`._corrupt IS NULL AND `{each}`.c IS NOT NULL")).alias(each) for each in schemas)
    ).collect()
    kind = ddl_columns(f"c {written}")["c"].dataType
    for declared, schema in schemas.items():
        is_read = found[declared] == len(values)
        if written == "string" and declared in IN_TEXT:
            is_read = True
        elif (written, declared) in OTHER_VALUE:
            is_read = False
        assert reads(kind, schema["c"].dataType) is is_read, declared


@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("written", "declared", "is_read"),
    [
        ("struct<a:int,b:int>", "struct<b:int>", True),
        ("struct<a:int>", "struct<b:int>", False),
        ("struct<a:struct<b:string>>", "struct<a:struct<b:int>>", False),
        ("array<struct<a:double>>", "array<struct<a:int>>", False),
        ("map<string,bigint>", "map<string,int>", False),
        ("map<string,int>", "struct<a:int>", True),
        ("struct<a:string>", "map<string,int>", False),
        ("variant", "int", True),
        ("struct<a:int>", "variant", True),
        ("array<int>", "string", True),
        ("int", "array<int>", False),
    ],
)
def test_a_type_within_another_is_looked_at(spark: SparkSession, written: str, declared: str, is_read: bool) -> None:
    kinds = (ddl_columns(f"c {each}")["c"].dataType for each in (written, declared))
    assert reads(*kinds) is is_read


def app_of(source: Source) -> App:
    return App(
        name="odd", inputs={"gains": source}, results={"": AppendStream()}, function=lambda gains, settings: gains
    )


GAINS = "`ticker` string, `day` string, `gain` decimal(16,4), `trades` bigint"


@pytest.mark.spark
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("key", "value", "what", "fix"),
    [
        (
            "ticker int NOT NULL",
            "gain double",
            "input gains of odd declares ticker as int, but in the result of daily-gains it is string",
            "declare it so, as in Json('ticker string')",
        ),
        (
            "ticker string",
            "offset int, trades int",
            "input gains of odd declares trades as int, but in the result of daily-gains it is bigint",
            "declare it so, as in Json('trades bigint')",
        ),
    ],
)
def test_a_column_that_is_declared_as_what_it_is_not_is_refused(
    spark: SparkSession, key: str, value: str, what: str, fix: str
) -> None:
    source = Stream(topic=ResultOf("daily-gains"), key=Json(key), value=Json(value, rename={"offset": "at"}))
    with pytest.raises(BadUsage) as refused:
        refuse_other_types(app_of(source), {"gains": GAINS})
    assert (refused.value.what, refused.value.fix) == (what, fix)
    refuse_other_types(app_of(source), {})


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_columns_that_are_declared_as_they_are_pass_and_so_do_types_that_can_not_be_known(spark: SparkSession) -> None:
    source = Changelog(
        topic=ResultOf("daily-gains"),
        key=Json("ticker string NOT NULL, day string NOT NULL"),
        value=Json("gain decimal(16,4), trades bigint"),
    )
    refuse_other_types(app_of(source), {"gains": GAINS})
    # Spark's name of a struct does not quote the fields within
    refuse_other_types(app_of(source), {"gains": "`ticker` int, `s` struct<a b:int>"})


@pytest.mark.spark
@pytest.mark.timeout(120)
def test_what_a_definition_says_of_an_input_that_is_a_result(spark: SparkSession) -> None:
    def said(source: Source) -> dict[str, object]:
        [found] = upstream_of(app_of(source)).values()
        return {name: found[name] for name in ("table", "key_as", "key", "value_as", "value", "avro")}

    of = ResultOf("daily-gains")
    json = Json("offset int", rename={"offset": "at"})
    assert said(Changelog(topic=of, key=json, value=json)) == {
        "table": True, "key_as": "JSON", "key": ["offset"], "value_as": "JSON", "value": ["offset"], "avro": None,
    }  # fmt: skip
    assert said(Stream(topic=of, key="k string", value=Text())) == {
        "table": False, "key_as": "text", "key": [], "value_as": "text", "value": [], "avro": None,
    }  # fmt: skip
    assert said(Stream(topic=of, value=Raw()))["value_as"] == "bytes"
    avro = said(Stream(topic=of, value=Avro("{}")))
    assert (avro["value_as"], avro["avro"], avro["key_as"]) == ("Avro", "{}", None)
