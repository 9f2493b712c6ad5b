"""`switchyard jars`: it does what is left, says so, and needs nothing if nothing is left."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestration import cli
from orchestration.jvm import set_up as module
from orchestration.jvm.set_up import set_up
from pipelines.engine.jvm.jars import class_archive
from pipelines.errors import SwitchyardError

ALL = ["fetched", "compiled", "archived"]


class Steps:
    """Steps that leave a file each in place of what takes long. `fails`: step -> its error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.did: list[str] = []
        self.fails: dict[str, Exception] = {}

    def there(self, step: str) -> bool:
        return self.path(step).exists()

    def path(self, step: str) -> Path:
        return class_archive() if step == "archived" else self.folder / step

    def take(self, step: str) -> None:
        self.did.append(step)
        if step in self.fails:
            raise self.fails[step]
        self.path(step).write_text("made")


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps(tmp_path / "jars")
    monkeypatch.setenv("SWITCHYARD_JARS_DIR", str(made.folder))
    monkeypatch.setattr(module.jars, "complete", lambda folder: made.there("fetched"))
    monkeypatch.setattr(module.jars, "ensure", lambda folder: made.take("fetched"))
    monkeypatch.setattr(module.scala, "compiled", lambda: made.there("compiled"))
    monkeypatch.setattr(module.scala, "compile_to", lambda jar: made.take("compiled"))
    monkeypatch.setattr(module.class_archive, "up_to_date", lambda: made.there("archived"))
    monkeypatch.setattr(module.class_archive, "write", lambda: made.take("archived"))
    return made


def test_all_is_done_in_order_and_then_nothing(steps: Steps) -> None:
    said: list[str] = []
    done = set_up(say=said.append)
    assert steps.did == ALL and [line.split()[0] for line in said] == ["fetching", "compiling", "running"]
    assert (done.fetched, done.compiled, done.archived) == (True, True, True) and done.archive == class_archive()
    again = set_up(say=said.append)
    assert not again.changed and again.archive == class_archive()
    assert steps.did == ALL and len(said) == 3


@pytest.mark.parametrize("there", ALL)
def test_only_what_is_left_is_done(steps: Steps, there: str) -> None:
    steps.folder.mkdir()
    steps.path(there).touch()
    set_up()
    assert steps.did == [step for step in ALL if step != there]


def test_the_archive_can_be_left_out_and_comes_later(steps: Steps) -> None:
    assert set_up(archive=False).archive is None
    assert steps.did == ["fetched", "compiled"]
    assert set_up().archived and steps.did == ALL


def test_if_nothing_is_left_the_folder_is_only_read(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    set_up()
    monkeypatch.setattr(module.jars, "one_at_a_time", lambda folder: pytest.fail("it takes the lock"))
    assert not set_up().changed


def test_what_another_one_did_while_this_waited_is_not_done_again(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def waits(folder: Path) -> Iterator[None]:
        folder.mkdir()
        for step in ALL:
            steps.path(step).touch()
        yield

    monkeypatch.setattr(module.jars, "one_at_a_time", waits)
    assert not set_up().changed and steps.did == []


def test_other_users_can_read_the_jars(steps: Steps) -> None:
    before = os.umask(0o077)
    try:
        set_up()
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (steps.folder, steps.path("fetched"))}
    assert found == {"jars": 0o755, "fetched": 0o644}


def test_a_full_disk_is_said(steps: Steps) -> None:
    steps.fails["compiled"] = OSError(errno.ENOSPC, "No space left on device", "/jars/compiled")
    with pytest.raises(SwitchyardError, match="/jars/compiled can't be written: No space left on device") as caught:
        set_up()
    assert "SWITCHYARD_JARS_DIR" in caught.value.fix
    # what was fetched stays
    del steps.fails["compiled"]
    set_up()
    assert steps.did == ["fetched", "compiled", "compiled", "archived"]


def test_a_folder_that_can_not_be_made_is_said(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps.folder.touch()
    monkeypatch.setenv("SWITCHYARD_JARS_DIR", str(steps.folder / "below"))
    assert cli.run(["jars"]) == 1
    assert "the folder of the jars can't be written" in capsys.readouterr().err and steps.did == []


def test_a_wrong_checksum_ends_the_command(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    steps.fails["fetched"] = SwitchyardError("jar a has the wrong checksum", "do not use it")
    assert cli.run(["jars", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"] == "jar a has the wrong checksum"
    assert steps.did == ["fetched"]


def test_without_the_archive_the_command_succeeds_and_says_why(
    steps: Steps, capsys: pytest.CaptureFixture[str]
) -> None:
    steps.fails["archived"] = SwitchyardError("no class archive: the port is busy", "`switchyard jars` tries again")
    assert cli.run(["jars"]) == 0
    said = capsys.readouterr()
    assert "no class archive: the port is busy\n  `switchyard jars` tries again" in said.err
    assert said.out.splitlines()[1:] == ["Scala classes compiled"]
    assert cli.run(["jars", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fetched"], found["archive"], found["trouble"]["error"]) == (
        False,
        None,
        "no class archive: the port is busy",
    )


def test_the_command_says_what_it_did_and_what_was_there(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["jars"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.endswith(f" jars fetched, checksums right: {steps.folder}")
    assert (second, third) == ("Scala classes compiled", "class archive written: 0 MiB")
    assert cli.run(["jars"]) == 0
    said = capsys.readouterr()
    assert all("already" in line for line in said.out.splitlines()) and said.err == ""
