"""When a trial starts Spark: after what can be refused without it, and before it parses columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.trials import default_code_dir
from pipelines.engine.code import freeze
from pipelines.engine.probe import probe


class Started(Exception):
    """Spark would start."""


class Checked(Exception):
    """The definition would be checked."""


@pytest.mark.parametrize(("app", "first"), [("word-count", Checked), ("top-stocks", Started)])
def test_spark_is_there_before_the_columns_of_another_apps_result_are_parsed(
    tmp_path: Path, app: str, first: type[Exception]
) -> None:
    code = freeze(default_code_dir())
    path = tmp_path / f"{code.digest}.zip"
    path.write_bytes(code.data)

    def session() -> Any:
        raise Started

    def check(_: object) -> Any:
        raise Checked

    with pytest.raises(first):
        probe(path, code.digest, app, {}, session, check)
