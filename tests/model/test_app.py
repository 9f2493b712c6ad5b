"""What an app's definition says of its results, and what it may not say."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import BadUsage
from pipelines.model import AppendStream, Changelog, ResultOf, StaticTable, Stream, Table, Text, app
from pipelines.model.app import Input, Result

# as a tuple of one column without its comma
TEXT: Any = "user"
INPUTS = {"lines": Stream(topic="lines", value=Text("line"))}


def test_the_only_result_has_no_name_and_the_suite_of_the_app() -> None:
    made = app(name="words", inputs=INPUTS, result=Table(key=("word",)), suite="words")(lambda lines, settings: lines)
    assert made.results == {"": Table(key=("word",), suite="words")}
    assert (made.suites, made.has_several, made.output_mode) == ({"": "words"}, False, "update")


def test_several_results_have_names_and_suites_of_their_own_and_one_output_mode() -> None:
    results: dict[str, Result] = {"counts": Table(key=("word",), suite="counts"), "alerts": AppendStream()}
    made = app(name="words", inputs=INPUTS, results=results)(lambda lines, settings: lines)
    assert (made.suites, made.has_several, made.output_mode) == ({"counts": "counts"}, True, "update")
    results = {"counts": Table(key=("word",), emit="final"), "alerts": AppendStream()}
    assert app(name="words", inputs=INPUTS, results=results)(lambda lines, settings: lines).output_mode == "append"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "app words names no result"),
        ({"results": {}}, "app words names no result"),
        ({"result": AppendStream(), "results": {"a": AppendStream()}}, "app words names a result and results"),
        ({"result": Table(key=())}, "the result of app words, a table, has no key"),
        ({"results": {"counts": Table(key=())}}, "result counts of app words, a table, has no key"),
        ({"result": AppendStream(partitions=0)}, "the result of app words has 0 partitions"),
        ({"results": {"A b": AppendStream()}}, "has a name that is not lower-case words joined by hyphens"),
        ({"results": {"": AppendStream()}}, "has a name that is not lower-case words joined by hyphens"),
        ({"results": {"a": AppendStream()}, "suite": "words"}, "has several results, so words could check any of them"),
        ({"result": AppendStream(suite="one"), "suite": "other"}, "names two suites, other and one"),
        ({"result": Table(key=TEXT)}, "the key of the result of app words is the text 'user'"),
        ({"results": Table(key=("user",))}, "gives one Table as results"),
        ({"result": {"a": AppendStream()}}, "gives several results as result"),
        ({"results": {"a": Table(key=("k",)), "b": Table(key=("k",), emit="final")}}, "differ in emit"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadUsage) as refused:
        app(name="words", inputs=INPUTS, **options)
    assert said in refused.value.what and refused.value.fix


WRONG: Any = "amount double"


@pytest.mark.parametrize(
    ("inputs", "settings", "said"),
    [
        ({"lines": "lines"}, {}, "input lines of app words is 'lines'"),
        ({"lines": Stream(topic="lines", value=WRONG)}, {}, "the value of input lines of app words is 'amount double'"),
        ({"lines": Stream(topic="my lines", value=Text())}, {}, "reads topic 'my lines', which is not a name that Kafka"),
        (INPUTS, {"least": [0.0]}, "setting least of app words is [0.0]"),
        (INPUTS, {"least": None}, "setting least of app words is None"),
    ],
)  # fmt: skip
def test_an_input_or_a_setting_that_can_not_be_one_is_refused(
    inputs: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadUsage) as refused:
        app(name="words", inputs=inputs, result=AppendStream(), settings=settings)
    assert said in refused.value.what and refused.value.fix


def test_a_static_table_is_an_input_that_no_position_counts() -> None:
    names = StaticTable(topic="names", key="user string", value=Text("name"))
    inputs: dict[str, Input] = {
        "lines": Stream(topic=ResultOf("texts"), value=Text("line")),
        "names": names,
        "users": Changelog(topic="users", key="user string", value=Text("user")),
    }
    made = app(name="words", inputs=inputs, result=AppendStream())(lambda settings, **_: None)
    assert (list(made.sources), made.static_tables) == (["lines", "users"], {"names": names})
    assert (made.topics, made.upstream) == ({"users": "users"}, {"lines": ResultOf("texts")})
    read = made.reading({"lines": "texts.v1.g1", "users": "users"})
    assert list(read.inputs) == list(inputs) and read.inputs["names"] is names
    assert read.topics == {"lines": "texts.v1.g1", "users": "users"}
    with pytest.raises(BadUsage, match="app words has only static tables as inputs"):
        app(name="words", inputs={"names": names}, result=AppendStream())
