"""Writes a new app to start from: a module, a suite and a test, in the repository or in a folder of the author's own."""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template

from pipelines.engine.jvm.jars import PROJECT_ROOT, in_checkout
from pipelines.errors import BadUsage, Refused
from pipelines.model.names import is_app_name, is_topic_name

_ROOT = PROJECT_ROOT

_APP = Template('''\
"""$app: the number of records of each key, and the sum of their amounts."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app


@app(
    name="$app",
    inputs={"records": Stream(topic="$topic", key="key string", value=Json("amount decimal(10,2) NOT NULL"))},
    result=Table(key=("key",), partitions=4),
    suite="$suite",$more
    settings={"least": 0.0},
)
def $module(records: DataFrame, settings: AppSettings) -> DataFrame:
    """The number of records of each key with an amount of `least` or more, and the sum of their amounts.

    Result: key, records, total.
    """
    counted = records.where(F.col("amount") >= settings.least)
    return counted.groupBy("key").agg(F.count(F.lit(1)).alias("records"), F.sum("amount").alias("total"))
''')

_SUITE = Template('''\
"""What holds for every result of $app, whatever the input."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"key": "string", "records": "bigint", "total": "decimal(20,2)"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("key"),
        base.at_least("records", 1),
        base.volume(inputs),
    ]
''')

_TEST = Template('''\
"""Golden test of $app: records in, rows out, all written by hand."""

from __future__ import annotations

$imports
from pipelines.testing import AppTest$session
$fixture
RECORDS = [("a", {"amount": 2.0}), ("b", {"amount": 1.0}), ("a", {"amount": 0.5})]
$life

def test_the_records_of_each_key_are_counted(spark: SparkSession) -> None:
    with AppTest(spark, $module, least=1.0) as test:
        for key, value in RECORDS:
            test.send("records", value, key=key)
        test.run()
        test.send("records", {"amount": 3.0}, key="a")
        test.send("records", {"amount": "much"}, key="a")
        batch = test.run()
        assert test.table == {("a",): {"records": 2, "total": 5.0}, ("b",): {"records": 1, "total": 1.0}}
        assert [letter.reason for letter in batch.dead_letters] == ["field amount is not decimal(10,2)"]
''')

# beside the app, with a session of its own
_OWN = {
    "more": "",
    "imports": """\
from collections.abc import Iterator

import pytest
from $module import $module
from pyspark.sql import SparkSession
""",
    "session": ", session",
    "life": "",
    "fixture": """

@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with session() as found:
        yield found

""",
}
# among the repository's tests, which share one
_SHARED = {
    # an app of the catalog reads generated input, so no row should stop it
    "more": '\n    oversized="dead-letter",',
    "imports": """\
from typing import TYPE_CHECKING

import pytest

from pipelines.apps.$module import $module""",
    "session": """
from tests.apps.lives import Life""",
    "life": """
# tests/e2e/test_lives.py takes the app through its whole life. Its input is RECORDS, again and again, until there are 4,000.
# They have two keys. Once `switchyard produce` has input for the app, leave out `rows`
LIFE = Life(rows={"records": RECORDS}, records=4_000, at_least=2)
""",
    "fixture": """
if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
""",
}


def scaffold(app: str, topic: str, folder: Path | None) -> list[Path]:
    """Writes the files of app `app`, which reads `topic`. Returns their paths, the test last.

    `folder`: where; None for the repository's own folders. Raises BadUsage for a name that no app or no topic can have, and
    for a folder that can't be written; Refused if one of the files is there, or without a folder and a repository.
    """
    _refuse_names(app, topic)
    if folder is None and not in_checkout(_ROOT):
        raise Refused(
            "Switchyard is installed as a package, so there is no repository to add an app to",
            fix=f"name a folder of your own: `switchyard new {app} --topic {topic} --in {app}`",
        )
    module = app.replace("-", "_")
    # a suite beside the app is known by its name
    suite = f"{module}_suite" if folder is not None else module
    values = {
        "app": app,
        "topic": topic,
        "module": module,
        "suite": suite,
    }
    values |= {name: Template(text).substitute(values) for name, text in (_SHARED if folder is None else _OWN).items()}
    home = folder or _ROOT
    apps, suites, tests = (home, home, home) if folder is not None else (home / "pipelines/apps", home / "expectations/suites", home / "tests/apps")  # fmt: skip
    files = {
        apps / f"{module}.py": _APP,
        suites / f"{suite}.py": _SUITE,
        tests / f"test_{module}.py": _TEST,
    }
    if there := [str(path) for path in files if path.exists()]:
        raise Refused(
            f"these files already exist: {', '.join(there)}", fix="choose another name, or another folder with --in"
        )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.substitute(values))
    except OSError as error:
        raise BadUsage(
            f"{error.filename or home} can't be written: {error.strerror}",
            fix="give a folder that you may write to --in",
        ) from error
    return list(files)


def _refuse_names(app: str, topic: str) -> None:
    if not is_app_name(app):
        raise BadUsage(
            f"app name {app!r} is not lower-case words joined by hyphens, or has over 100 letters",
            fix="name it like stock-stats",
        )
    if keyword.iskeyword(app):
        raise BadUsage(
            f"app name {app!r} is a word of Python's, so no function can have it", fix="name it like stock-stats"
        )
    if not is_topic_name(topic):
        raise BadUsage(
            f"{topic!r} can't be a topic of Kafka: a topic name has 1 to 249 letters, digits, dots, underscores and hyphens",
            fix="correct the name after --topic",
        )
