"""After an upgrade, a release tells which version staged it: its checkpoint keeps that one's formats."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from orchestration.commands import broker
from orchestration.operations.looking.platform import staged_by_another, this_platform
from orchestration.operations.planning.run import plan_start
from pipelines.model.entries import Entry, Staged
from tests.operations.builders import Kafka, Log, context_of, generation, spec

OLDER = "switchyard 0.0.9, pyspark 4.0.1"
SAID = f"{OLDER}; its next driver runs on {this_platform()} and keeps the formats of its checkpoint"


def log(*platforms: str) -> Log:
    """`a.v1`, `a.v2`, ... staged by these versions."""
    entries: list[Entry] = []
    for number, platform in enumerate(platforms, 1):
        name = f"a.v{number}"
        entries += [Staged(spec=spec(name, platform=platform)), generation(name)]
    return Log(*entries)


def test_the_version_is_told_only_if_it_is_another() -> None:
    told = [staged_by_another(spec("a.v1", platform=each)) for each in (OLDER, this_platform(), "")]
    assert told == [SAID, None, SAID.replace(OLDER, "a build before 0.1.0")]


def test_the_plan_of_a_start_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.operations.planning.run._refuse_cut_off", lambda *_: None)
    monkeypatch.setattr("orchestration.operations.planning.run.moved_by_hand", lambda *_: None)
    context = context_of(log(OLDER, this_platform()), Kafka())
    assert plan_start(context, "a.v1").facts["staged by"] == SAID
    assert "staged by" not in plan_start(context, "a.v2").facts


def test_status_tells_it_to_who_asks_about_the_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context = context_of(log(OLDER, this_platform(), ""), Kafka())
    monkeypatch.setattr(broker, "_cluster_status", lambda *_: ({"answering": True}, {}))
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context)
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    monkeypatch.setattr("orchestration.operations.supervising.overview.told_losses", lambda *_: {})
    monkeypatch.setattr(broker, "load_settings", lambda: SimpleNamespace(embedded=False, bucket=None))
    broker.status("a")
    assert [line for line in capsys.readouterr().out.splitlines() if "staged by" in line] == [
        f"a.v1: staged by {SAID}",
        f"a.v3: staged by {SAID.replace(OLDER, 'a build before 0.1.0')}",
    ]
    broker.status(None)
    assert "staged by" not in capsys.readouterr().out
    broker.status("a", as_json=True)
    assert [each["staged_by"] for each in json.loads(capsys.readouterr().out)["releases"]] == [
        OLDER,
        this_platform(),
        None,
    ]
