"""Two values are compared as Spark compares the columns that it reads of them."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.operations.comparing.values import columns_of, differing
from pipelines.errors import SwitchyardError
from pipelines.model.entries import ResultSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def result(columns: str, key: str = "k") -> ResultSpec:
    """A table by `key`, `columns` as in `price double, n bigint`."""
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in (each.split(" ", 1) for each in columns.split("; ")))
    return ResultSpec(table=True, key=(key,), partitions=1, schema_ddl=f"`{key}` string, {ddl}", suite=None)


def differ(kind: str, live: str, new: str, tolerance: float = 0.0) -> bool:
    """Whether the values `live` and `new`, JSON texts, of a column of type `kind` differ."""
    columns = columns_of(result(f"v {kind}"), result(f"v {kind}"), tolerance)
    return bool(differing(f'{{"v":{live}}}', f'{{"v":{new}}}', columns))


@pytest.mark.parametrize(
    ("kind", "live", "new"),
    [
        ("decimal(12,6)", "0E-6", "0.000000"),
        ("decimal(12,6)", "1.5", "1.500000"),
        ("double", "1.0E10", "10000000000"),
        ("double", "-0.0", "0.0"),
        ("double", '"NaN"', '"NaN"'),
        ("double", '"Infinity"', '"Infinity"'),
        ("float", "0.1", "0.10"),
        ("bigint", "5", "5"),
        ("string", '"\\u00e9"', '"é"'),
        ("boolean", "true", "true"),
        ("struct<a:int,b:array<int>>", '{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}'),
        ("string", "null", "null"),
    ],
)
def test_equal_values_do_not_differ_however_they_are_written(kind: str, live: str, new: str) -> None:
    assert not differ(kind, live, new)


@pytest.mark.parametrize(
    ("kind", "live", "new"),
    [
        # as floating-point numbers, these are equal
        ("decimal(38,20)", "0.10000000000000000001", "0.10000000000000000002"),
        ("decimal(38,0)", "10000000000000000000000000001", "10000000000000000000000000002"),
        ("bigint", "9223372036854775806", "9223372036854775807"),
        ("double", "0.1", "0.10000000000000002"),
        ("double", '"NaN"', "0.0"),
        ("double", '"Infinity"', '"-Infinity"'),
        ("double", "null", "0.0"),
        ("decimal(8,2)", "null", "0.00"),
        ("string", '"a"', '"a "'),
        ("string", "null", '""'),
        ("boolean", "true", "false"),
        ("array<int>", "[1,2]", "[2,1]"),
        ("map<string,int>", '{"a":1}', '{"a":2}'),
        ("variant", "5", '"5"'),
        ("variant", '{"a":[5]}', '{"a":["5"]}'),
    ],
)
def test_other_values_differ(kind: str, live: str, new: str) -> None:
    assert differ(kind, live, new) and differ(kind, new, live)


def test_a_tolerance_is_relative_and_for_floating_point_columns_alone() -> None:
    assert not differ("double", "100.0", "101.0", tolerance=0.01)
    assert differ("double", "100.0", "101.1", tolerance=0.01)
    assert not differ("double", "-100.0", "-99.0", tolerance=0.01)
    assert differ("double", "0.0", "0.000001", tolerance=0.01)
    assert differ("double", '"Infinity"', "1.0", tolerance=0.01)
    assert differ("double", '"NaN"', "1.0", tolerance=0.01) and not differ("double", '"NaN"', '"NaN"', tolerance=0.01)
    assert differ("double", "null", "0.0", tolerance=0.01)
    assert differ("decimal(8,2)", "100.00", "100.01", tolerance=0.01)
    assert differ("bigint", "100000", "100001", tolerance=0.01)


def test_columns_that_only_one_result_has_are_not_compared() -> None:
    columns = columns_of(result("a int; b int"), result("b int; c int; k string", key="a"), 0.0)
    assert list(columns) == ["b"]
    assert differing('{"a":1,"b":1}', '{"b":1,"c":3}', columns) == []
    assert differing('{"a":1,"b":1}', '{"b":2,"c":3}', columns) == ["b"]


def test_each_column_that_differs_is_named_in_the_order_of_the_new_result() -> None:
    columns = columns_of(result("a int; b int; c int"), result("c int; b int; a int"), 0.0)
    assert differing('{"a":1,"b":2,"c":3}', '{"a":2,"b":2,"c":4}', columns) == ["c", "a"]
    # a field that is missing is null
    assert differing('{"a":null}', '{"b":null}', columns) == []
    assert differing('{"a":null}', '{"b":0}', columns) == ["b"]


@pytest.mark.parametrize(
    ("live", "new", "equal"),
    [
        ("bigint 5", 'string "5"', True),
        ("bigint 5", 'string "05"', False),
        ("decimal(8,2) 1.50", "double 1.5", False),
        ("int 5", "bigint 5", True),
        ("boolean true", 'string "true"', True),
        ("string null", "bigint null", True),
        ("string null", 'date "null"', False),
    ],
)
def test_a_column_whose_type_has_changed_is_compared_as_text(live: str, new: str, equal: bool) -> None:
    (was, before), (now, after) = (each.split(" ", 1) for each in (live, new))
    columns = columns_of(result(f"v {was}"), result(f"v {now}"), 0.0)
    assert (differing(f'{{"v":{before}}}', f'{{"v":{after}}}', columns) == []) is equal


@pytest.mark.parametrize(
    ("live", "new", "tolerance", "equal"),
    [
        ("float 0.1", "double 0.10000000149011612", 0.01, True),
        ("float 0.1", "double 0.10000000149011612", 0.0, False),
        ("bigint 5", "double 5.0", 0.01, True),
        ("decimal(8,2) 1.50", "float 1.5", 0.01, True),
        ("decimal(8,2) 1.50", "float 1.6", 0.01, False),
        ('string "a"', "double 1.0", 0.01, False),
        ("double 5.0", "bigint 5", 0.01, False),
    ],
)
def test_a_number_that_has_become_floating_point_is_compared_with_the_tolerance(
    live: str, new: str, tolerance: float, equal: bool
) -> None:
    (was, before), (now, after) = (each.split(" ", 1) for each in (live, new))
    columns = columns_of(result(f"v {was}"), result(f"v {now}"), tolerance)
    assert (differing(f'{{"v":{before}}}', f'{{"v":{after}}}', columns) == []) is equal


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("5", "is not a JSON object"),
        ("[]", "is not a JSON object"),
        ('{"x":"a"}', "does not fit its columns"),
        ('{"d":"a"}', "does not fit its columns"),
        ('{"d":{}}', "does not fit its columns"),
    ],
)
def test_a_value_that_is_none_of_its_result_is_refused(value: str, why: str) -> None:
    columns = columns_of(result("x double; d decimal(8,2)"), result("x double; d decimal(8,2)"), 0.0)
    with pytest.raises(SwitchyardError, match=why):
        differing(value, '{"x":1.0,"d":1.00}', columns)


# -- against Spark, which writes the values

KINDS: dict[str, list[Any]] = {
    "double": [0.0, -0.0, 0.1, 1e10, 1e-7, float("nan"), float("inf"), 123456789.125],
    "float": [0.0, 0.5, 1e10, float("nan"), float("-inf")],
    "decimal(12,6)": [Decimal(0), Decimal("0.000001"), Decimal("-1.5"), Decimal(123456)],
    "decimal(38,18)": [Decimal("0.1"), Decimal("0.100000000000000001"), Decimal("12345678901234567890.1")],
    "bigint": [0, -1, 2**63 - 1, 2**63 - 2],
    "string": ["", "a", "é", '"', "\\", "\n", "NaN", "5"],
    "boolean": [True, False],
    "array<double>": [[], [0.5], [0.5, 1e10]],
    "struct<a:int,b:string>": [(1, "x"), (1, None), (None, "x")],
}


@pytest.mark.spark
@pytest.mark.parametrize("kind", KINDS)
def test_spark_finds_the_same(spark: SparkSession, kind: str) -> None:
    from pyspark.sql import functions as F

    values = [*KINDS[kind], None]
    pairs = spark.createDataFrame([(a, b) for a in values for b in values], f"live {kind}, new {kind}")
    written = (F.to_json(F.struct(F.col(side).alias("v"))) for side in ("live", "new"))
    found = pairs.select(*written, F.col("live").eqNullSafe(F.col("new"))).collect()
    columns = columns_of(result(f"v {kind}"), result(f"v {kind}"), 0.0)
    mine = [(live, new, not differing(live, new, columns)) for live, new, _ in found]
    assert mine == [tuple(row) for row in found]
    assert {True, False} == {equal for _, _, equal in mine}
