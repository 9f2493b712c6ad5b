"""An app is tried in a process of its own. What it says of itself is checked before Spark starts."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import pipelines.apps
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.trials import probe, try_rows
from orchestration.scaffold import scaffold
from pipelines.engine.code import freeze
from pipelines.engine.known import Known, table_beside
from pipelines.engine.raw import Record, write_records
from pipelines.engine.table_file import as_file
from pipelines.errors import BadUsage, SwitchyardError
from pipelines.settings import Settings
from tests.operations.builders import Log, context_of

APP = """\
from pipelines.model import AppendStream, Stream, Text, app


@app(name="odd", inputs={"given": Stream(topic="nowhere", value=Text("line"))}, result=AppendStream(), suite="of_odd")
def odd(given, settings):
    return given.select("line")
"""


def tried(folder: Path, head: str, check: Any, **settings: Any) -> Mapping[str, Any]:
    (folder / "odd.py").write_text(head + APP)
    return probe(Settings(state_dir=folder / "state", **settings), freeze(folder), "odd", {}, check)


@pytest.mark.slow
def test_what_an_app_says_of_itself_is_checked_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no Spark can start
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    def check(definition: Mapping[str, Any]) -> Known:
        raise BadUsage(f"there is no {definition}")

    noise = "import sys\nprint('{}')\nprint('x' * 1_000_000, file=sys.stderr)\n"
    with pytest.raises(BadUsage) as error:
        tried(tmp_path, noise, check)
    assert error.value.what == (
        "there is no {'sources': ['given'], 'inputs': {'given': 'nowhere'}, 'upstream': {}, 'static': {}, "
        "'suites': {'': 'of_odd'}, 'watermark': None}"
    )


@pytest.mark.spark
@pytest.mark.long
def test_a_trial_makes_the_file_of_a_static_table_in_its_own_process(tmp_path: Path) -> None:
    records = [
        Record(
            topic="rates", partition=0, offset=number, key=b"EUR", value=value, time=datetime(2026, 1, 1, tzinfo=UTC)
        )
        for number, value in enumerate((b'{"rate": 1}', b'{"rate": 2}', b"{"))
    ]
    path = str(tmp_path / "rates.parquet")
    write_records(path, [records])

    def check(definition: Mapping[str, Any]) -> Known:
        assert (definition["sources"], definition["static"]) == (["paid"], {"rates": "rates"})
        return Known(records={"rates": path}, table_max_bytes=1_000)

    code = freeze(Path(__file__).parents[1] / "shared" / "payments")
    facts = probe(Settings(state_dir=tmp_path / "state"), code, "payments", {}, check)
    table = as_file([(b"EUR", b'{"rate": 2}')])
    assert Path(table_beside(path)).read_bytes() == table.data
    said = facts["static_tables"]["rates"]
    assert said.pop("said").startswith("1 malformed record, the first at rates[0] offset 2: the value is not JSON")
    assert said == {"digest": table.digest, "rows": 1, "size_bytes": len(table.data), "malformed": 1}
    assert facts["topology"][-1]["does"] == "input rates" and not any(step["state"] for step in facts["topology"])


@pytest.mark.spark
@pytest.mark.long
def test_a_trial_tries_the_suites_too(tmp_path: Path) -> None:
    scaffold("my-sums", "my-orders", tmp_path)
    suite = tmp_path / "my_sums_suite.py"
    suite.write_text(suite.read_text().replace('"records": "bigint"', '"orders": "bigint"'))
    with pytest.raises(BadUsage, match=r"has key string, records bigint, .* suite expects key string, orders bigint"):
        probe(Settings(state_dir=tmp_path / "state"), freeze(tmp_path), "my-sums", {})


@pytest.mark.slow
def test_a_trial_that_can_not_start_spark_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SwitchyardError, match="app odd could not be tried"):
        tried(tmp_path, "", lambda _: Known())


def commands() -> str:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found.append(path.read_bytes().decode(errors="replace"))
    return "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_module_that_waits_is_ended(tmp_path: Path) -> None:
    began = tmp_path / "began"
    # nobody else sleeps as long as that
    command = f"sleep {10_000 + os.getpid()}.25"
    wait = f"import os\nopen({str(began)!r}, 'w').close()\nos.system({command!r})\n"
    with pytest.raises(SwitchyardError, match=r"did not end within 5 s") as error:
        tried(tmp_path, wait, lambda _: Known(), probe_timeout_s=5)
    assert "wait for anything" in error.value.fix
    assert began.exists()
    # what it has started ends with it
    while command.replace(" ", "\0") in commands():
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "said"),
    [({}, "there is no suite 'of_odd'"), ({"deep": "1"}, "app odd has no setting deep; it has none")],
    ids=["suite", "setting"],
)
def test_show_try_and_stage_refuse_a_definition_in_the_same_words_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], said: str
) -> None:
    # no Spark can start
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "odd.py").write_text(APP)
    here = Settings(state_dir=tmp_path / "state")
    # `show` asks as `probe` does without a check of its own
    attempts = (
        lambda: probe(here, freeze(folder), "odd", settings),
        lambda: try_rows(here, "odd", folder, settings, [[{"value": "a"}]]),
        lambda: plan_stage(context_of(Log()), "odd", code_dir=folder, settings=settings),
    )
    told = []
    for attempt in attempts:
        with pytest.raises(BadUsage) as error:
            attempt()
        told.append((error.value.what, error.value.fix))
    assert told[0][0] == said
    assert told[1:] == told[:1] * 2


@pytest.mark.slow
def test_try_needs_no_spark_to_learn_the_suites_of_an_app_that_reads_another_s_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    folder = tmp_path / "code"
    folder.mkdir()
    source = (Path(pipelines.apps.__path__[0]) / "top_stocks.py").read_text()
    assert 'suite="top_stocks"' in source
    (folder / "top_stocks.py").write_text(source.replace('suite="top_stocks"', 'suite="nowhere"'))
    with pytest.raises(BadUsage, match="there is no suite 'nowhere'"):
        try_rows(Settings(state_dir=tmp_path / "state"), "top-stocks", folder, {}, [[{"value": "a"}]])
