"""What Dagster prints on its terminal of a record, of the registry or of an error: nothing that a terminal obeys."""

# no `from __future__ import annotations`: Dagster reads the class of `context` from the annotation

from typing import Any, cast

import pytest
from dagster import OpExecutionContext, job, op

from orchestration.defs import resources
from orchestration.defs.resources import Platform
from orchestration.defs.shell import carry_out, failures_told
from orchestration.operations.context import Context
from pipelines.errors import Refused
from pipelines.settings import Settings
from tests.commands.test_printing import HOSTILE, PLAN, obeyed
from tests.defs.jobs import DEPRECATED
from tests.operations.builders import Log, context_of


def refused() -> None:
    raise Refused(HOSTILE, fix=HOSTILE) from ValueError(HOSTILE)


def unforeseen() -> None:
    raise ValueError(HOSTILE)


@DEPRECATED
@pytest.mark.parametrize("end", [refused, unforeseen])
def test_a_run_obeys_nothing(end: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(settings: Settings, *, say: Any, **_: Any) -> Context:
        say(HOSTILE)
        log = cast(Any, Log())
        log.close = lambda: None
        return context_of(log)

    monkeypatch.setattr(resources, "open_context", opened)

    @op
    def work(context: OpExecutionContext) -> None:
        with failures_told(), Platform().open(context.log.info) as operations:
            carry_out(context, operations, lambda: PLAN, execute=False)
            end()

    @job
    def run() -> None:
        work()

    assert not run.execute_in_process(raise_on_error=False).success
    said = capsys.readouterr().err
    assert obeyed(said.replace("\t", "")) == []
    # what was said, the plan's warning, and the error
    assert said.count(r"\x1b]52;c") >= 3
