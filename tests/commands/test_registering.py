"""`switchyard register-follower` and `forget-follower`, for a person and for a script. No broker."""

from __future__ import annotations

import json

import pytest

from orchestration.cli import run
from pipelines.model.entries import Entry, FollowerRegistered, FollowerRemoved
from tests.operations.builders import Log, context_of, staged


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log(*staged("sums.v1"))
    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: context_of(found))
    return found


def entered(log: Log) -> list[Entry]:
    return [entry for entry in log.entries if isinstance(entry, FollowerRegistered | FollowerRemoved)]


def test_a_person_is_told_who_follows(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["register-follower", "sums", "reader"]) == 0
    # once more changes nothing
    assert run(["register-follower", "sums", "reader"]) == 0
    assert run(["forget-follower", "sums", "reader"]) == 0
    assert entered(log) == [
        FollowerRegistered(alias="sums", group="reader"),
        FollowerRemoved(alias="sums", group="reader"),
    ]
    said = "reader is registered as a follower of sums\n"
    assert capsys.readouterr().out == f"{said}{said}reader is no longer a follower of sums\n"


def test_a_script_gets_one_document(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    for command, registered in (("register-follower", True), ("forget-follower", False)):
        assert run([command, "sums", "reader", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"app": "sums", "group": "reader", "registered": registered}
    assert len(entered(log)) == 2


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("register-follower", "counts", "reader"), "counts has no release"),
        (("register-follower", "sums", "read\ner"), "'read\\ner' can't be a follower's group"),
        (("forget-follower", "sums", "reader"), "sums has no follower reader"),
    ],
)
def test_a_script_gets_what_is_wrong_as_well(
    log: Log, arguments: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == what
    assert entered(log) == []
