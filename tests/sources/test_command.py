"""`switchyard produce`: options that mean nothing are refused before anything is done."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.testing import CliRunner

from orchestration.commands import produce as command
from orchestration.sources import Options, app_names, source_for
from pipelines.errors import BadUsage, SwitchyardError


def invoke(*arguments: str) -> object:
    app = typer.Typer()
    command.register(app)
    return CliRunner().invoke(app, list(arguments)).exception


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["stock-stats"], "nothing to produce"),
        (["nope"], "`switchyard produce` has no input for 'nope'"),
        (["stock-stats", "--history", "5", "--records", "5"], "need a rate"),
        (["stock-stats", "--rate", "5", "--density", "thick"], "thick"),
        (["stock-stats", "--rate", "5", "--late", "2"], "--late"),
        (["stock-market", "--rate", "5"], ", ".join(app_names())),
    ],
)
def test_bad_usage(arguments: list[str], what: str) -> None:
    error = invoke(*arguments)
    assert isinstance(error, BadUsage)
    assert what in str(error)


def test_without_the_prices_their_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # as without the package: the import system looks here first
    monkeypatch.setitem(sys.modules, "bokeh_sampledata", None)
    error = invoke("stock-stats", "--history", "5")
    assert isinstance(error, SwitchyardError)
    assert "the extra `demo`" in error.what and "pip install bokeh-sampledata" in error.fix
    # the other apps need none
    for app in ("large-orders", "word-count"):
        source_for(app, Options())
