"""A suite that does not fit its app is found when the app is tried, not after the whole history was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from expectations.suites import SuiteInputs, checks_of
from expectations.trial import refuse_unfit_suites
from orchestration.scaffold import scaffold
from pipelines.engine.code import freeze
from pipelines.engine.guard import Code, admit
from pipelines.errors import BadUsage

HAS = "`key` string, `records` bigint, `total` decimal(20,2)"


def own_suite(folder: Path, old: str = "", new: str = "") -> Code:
    """The code of a scaffolded app, in whose suite `old` is replaced by `new`."""
    scaffold("my-sums", "my-orders", folder / "mine")
    suite = folder / "mine" / "my_sums_suite.py"
    assert old in suite.read_text()
    suite.write_text(suite.read_text().replace(old, new))
    code = freeze(folder / "mine")
    path = folder / f"{code.digest}.zip"
    path.write_bytes(code.data)
    return admit(path, code.digest, "my-sums.v1")


def facts(ddl: str = HAS, name: str = "") -> dict[str, Any]:
    result = {"table": True, "key": ["key"], "partitions": 4, "schema_ddl": ddl, "suite": "my_sums_suite"}
    return {"app": "my-sums", "settings": {}, "results": {name: result}}


def test_a_suite_fits_the_columns_that_it_expects(tmp_path: Path) -> None:
    refuse_unfit_suites(facts(), own_suite(tmp_path))


def test_a_suite_without_a_check_of_the_schema_fits_any_columns(tmp_path: Path) -> None:
    refuse_unfit_suites(facts("`other` string"), own_suite(tmp_path, "base.schema(COLUMNS),", ""))


@pytest.mark.parametrize(
    "ddl",
    ["`key` string, `records` bigint, `total` double", "`key` string, `total` decimal(20,2), `records` bigint"],
    ids=["type", "order"],
)
def test_a_suite_that_expects_other_columns_is_refused(tmp_path: Path, ddl: str) -> None:
    code = own_suite(tmp_path)
    with pytest.raises(BadUsage) as refused:
        refuse_unfit_suites(facts(ddl, "counts"), code)
    assert refused.value.what == (
        "result counts of app my-sums does not have the columns that suite my_sums_suite expects: "
        f"it has {ddl.replace('`', '')}; the suite expects {HAS.replace('`', '')}"
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def suite(", "def suit(", "has no attribute 'suite'"),
        ("    return [", "    return 1 / 0 or [", r"ZeroDivisionError: division by zero \(my_sums_suite.py, line 14, in suite\)"),
        ("COLUMNS = ", "COLUMN = ", r"NameError: name 'COLUMNS' is not defined \(my_sums_suite.py, line 16, in suite\)"),
        ("def suite(", "def suite(more, ", "missing 1 required positional argument"),
    ],
    ids=["function", "raises", "name", "arguments"],
)  # fmt: skip
def test_a_suite_whose_code_fails_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    code = own_suite(tmp_path, old, new)
    with pytest.raises(BadUsage, match=rf"suite my_sums_suite fails: .*{said}") as refused:
        refuse_unfit_suites(facts(), code)
    assert "def suite(inputs)" in refused.value.fix
    # a check of a release that has it says the same
    with pytest.raises(BadUsage, match=said):
        checks_of("my_sums_suite", SuiteInputs(app_settings={}), code)
