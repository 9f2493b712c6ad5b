"""`switchyard produce`: options that mean nothing are refused before anything is done."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from orchestration.commands import produce as command
from pipelines.errors import BadUsage


def invoke(*arguments: str) -> object:
    app = typer.Typer()
    command.register(app)
    return CliRunner().invoke(app, list(arguments)).exception


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["stock-stats"], "nothing to produce"),
        (["nope"], "there is no source of input for 'nope'"),
        (["stock-stats", "--history", "5", "--records", "5"], "need a rate"),
        (["stock-stats", "--rate", "5", "--density", "thick"], "thick"),
        (["stock-stats", "--rate", "5", "--late", "2"], "--late"),
        (["stock-market", "--rate", "5"], "large-orders, stock-stats, word-count"),
    ],
)
def test_bad_usage(arguments: list[str], what: str) -> None:
    error = invoke(*arguments)
    assert isinstance(error, BadUsage)
    assert what in str(error)
