"""Paths from the registry's data: none leads out of the state folder, and nothing outside is deleted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.launchers.local import LocalLauncher
from orchestration.operations.applying.applier import Applier
from orchestration.operations.comparing.evidence import evidence_path
from orchestration.operations.comparing.upkeep import path_of
from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.generations import DeleteCheckpoint
from orchestration.operations.plans.stages.releases import DeleteFiles
from orchestration.operations.procedures.check import docs_dir
from pipelines.engine.checkpoint import fence, forget, inherit, newest_folder, release_folder
from pipelines.engine.code import code_path
from pipelines.engine.table_file import table_path
from pipelines.errors import SwitchyardError
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Staged, StateSet, StaticTableSpec
from pipelines.paths import below, move, remove, set_aside
from pipelines.settings import Settings
from tests.operations.builders import Log, evidence, spec

NAME, DIGEST = "sums.v1", "0" * 64


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "state").mkdir()
    return Settings(state_dir=tmp_path / "state", bootstrap_servers="127.0.0.1:1")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A foreign folder that looks like a checkpoint."""
    folder = tmp_path / "outside"
    (folder / "g1.t1" / "offsets").mkdir(parents=True)
    (folder / "fold.parquet").mkdir()
    (folder / "precious").write_text("mine")
    return folder


def link(path: Path, to: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)
    return path


def applied(settings: Settings, stage: DeleteFiles | DeleteCheckpoint) -> None:
    table = StaticTableSpec(topic="rates", topic_id="t", position={0: 1}, rows=1, size_bytes=9, digest=DIGEST)
    log = Log(Staged(spec=spec(NAME, static_tables={"rates": table})), StateSet(release=NAME, state="retired"))
    context = Context(settings=settings, registry=cast(Registry, log), launcher=cast(Any, None))
    Applier(context, Plan(id="retire-1", operation=Kind.RETIRE, releases=(stage.release,), stages=(stage,))).apply(
        stage
    )


def test_a_path_below_is_where_it_is_said_to_be(settings: Settings, tmp_path: Path) -> None:
    root = settings.state_dir
    assert below(root, "checkpoints", NAME) == root / "checkpoints" / NAME
    # the state folder itself may be a link, for example to a larger disk
    assert below(link(tmp_path / "linked", root), "code", "a.zip") == root / "code" / "a.zip"


@pytest.mark.parametrize("part", ["", ".", "..", "/", "/etc", "a/b", "../a", "a/..", "a\0b"])
def test_what_is_not_one_name_is_refused(settings: Settings, part: str) -> None:
    for parts in ((part,), ("checkpoints", part), (part, "checkpoints")):
        with pytest.raises(SwitchyardError, match="is not the name of a file in"):
            below(settings.state_dir, *parts)
    with pytest.raises(SwitchyardError, match=r"no file or folder in .* was named"):
        below(settings.state_dir)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_whatever_is_named_lies_inside_or_is_refused(parts: list[str]) -> None:
    root = Path("/nowhere/state")
    try:
        path = below(root, *parts)
    except SwitchyardError:
        return
    assert path.parents[len(parts) - 1] == root and ".." not in path.parts


def test_a_link_that_leads_elsewhere_is_refused(settings: Settings, outside: Path) -> None:
    root = settings.state_dir
    (root / "there").mkdir()
    link(root / "checkpoints", outside)
    link(root / "inside", root / "there")
    link(root / "itself", root / "itself")
    for parts in (("checkpoints",), ("checkpoints", "g1.t1"), ("inside", "x"), ("itself",)):
        with pytest.raises(SwitchyardError, match=r"is a link in the folder .*, or is under one"):
            below(root, *parts)
        with pytest.raises(SwitchyardError, match="is a link"):
            remove(root, *parts)
    assert (outside / "precious").read_text() == "mine"


def test_a_link_inside_what_is_deleted_goes_and_what_it_leads_to_stays(settings: Settings, outside: Path) -> None:
    folder = settings.state_dir / "checkpoints" / NAME
    folder.mkdir(parents=True)
    link(folder / "way-out", outside)
    remove(settings.state_dir, "checkpoints", NAME)
    assert not folder.exists() and (outside / "precious").read_text() == "mine"
    # a second call does nothing
    remove(settings.state_dir, "checkpoints", NAME)


PATHS: list[tuple[Callable[[Settings, str], object], str]] = [
    (code_path, "code"),
    (table_path, "tables"),
    (release_folder, "checkpoints"),
    (lambda settings, name: newest_folder(settings, name, 1), "checkpoints"),
    (lambda settings, name: forget(settings, name, 1), "checkpoints"),
    (lambda settings, name: fence(settings, name, 1, 2, expected=False), "checkpoints"),
    (lambda settings, name: inherit(settings, name, 1, 2, settings.state_dir, lambda _: None), "checkpoints"),
    (evidence_path, "evidence"),
    (lambda settings, name: path_of(settings, evidence("a.v1", "a.v2").model_copy(update={"id": name})), "evidence"),
    (lambda settings, name: LocalLauncher(settings).log_path(name), "logs"),
    (lambda settings, name: LocalLauncher(settings).launch(name), "run"),
]


@pytest.mark.parametrize(("path", "folder"), PATHS)
def test_every_path_of_the_registry_s_data_stays_inside(
    settings: Settings, outside: Path, path: Callable[[Settings, str], object], folder: str
) -> None:
    # with an ending, `..` is an ordinary file name and stays inside
    for name in (str(outside), f"../{outside.name}", "x/../../.."):
        with pytest.raises(SwitchyardError, match="is not the name of a file"):
            path(settings, name)
    link(settings.state_dir / folder, outside)
    with pytest.raises(SwitchyardError, match="is a link"):
        path(settings, NAME)
    assert sorted(p.name for p in outside.iterdir()) == ["fold.parquet", "g1.t1", "precious"]


def test_data_docs_are_written_inside(settings: Settings, outside: Path) -> None:
    context = Context(settings=settings, registry=cast(Registry, Log()), launcher=cast(Any, None))
    assert docs_dir(context) == settings.state_dir / "data-docs"
    link(settings.state_dir / "data-docs", outside)
    with pytest.raises(SwitchyardError, match="is a link"):
        docs_dir(context)


def test_a_checkpoint_that_is_a_link_is_not_taken_for_one(settings: Settings, outside: Path) -> None:
    link(settings.state_dir / "checkpoints" / NAME / "g1.t1", outside / "g1.t1")
    calls: tuple[Callable[[], object], ...] = (
        lambda: fence(settings, NAME, 1, 2, expected=True),
        lambda: newest_folder(settings, NAME, 1),
        lambda: applied(settings, DeleteCheckpoint(release=NAME, generation=1)),
    )
    for call in calls:
        with pytest.raises(SwitchyardError, match="is a link"):
            call()
    assert (outside / "g1.t1" / "offsets").is_dir()


def test_a_forged_stage_deletes_nothing_elsewhere(settings: Settings, outside: Path) -> None:
    for stage in (
        DeleteFiles(release=str(outside), code_digest=None),
        DeleteFiles(release=NAME, code_digest=str(outside / "precious")),
        DeleteFiles(release=NAME, code_digest=None, evidence=(f"../../{outside.name}",)),
        DeleteFiles(release=NAME, code_digest=None, tables=(str(outside / "precious"),)),
        DeleteFiles(release="..", code_digest=None),
        DeleteCheckpoint(release=str(outside), generation=1),
    ):
        with pytest.raises(SwitchyardError, match="is not the name of a file"):
            applied(settings, stage)
    assert (outside / "precious").exists() and (outside / "g1.t1").is_dir() and settings.state_dir.is_dir()


def test_files_are_deleted_whole_or_where_one_leads_elsewhere_not_at_all(settings: Settings, outside: Path) -> None:
    state = settings.state_dir
    kept = state / "checkpoints" / NAME / "g1.t1"
    kept.mkdir(parents=True)
    (state / "run" / NAME).mkdir(parents=True)
    (state / "code").mkdir()
    (state / "code" / f"{DIGEST}.zip").write_bytes(b"zip")
    (state / "tables").mkdir()
    (state / "tables" / f"{DIGEST}.jsonl").write_bytes(b"{}")
    (state / "tables" / f"{'1' * 64}.jsonl").write_bytes(b"{}")
    way_out = link(state / "evidence" / "diff-1", outside)
    stage = DeleteFiles(release=NAME, code_digest=DIGEST, evidence=("diff-1",), tables=(DIGEST,))
    with pytest.raises(SwitchyardError, match="diff-1 is a link in the folder"):
        applied(settings, stage)
    assert kept.is_dir() and (state / "code" / f"{DIGEST}.zip").exists() and (outside / "precious").exists()
    way_out.unlink()
    applied(settings, stage)
    assert not kept.parent.exists() and not (state / "run" / NAME).exists()
    assert not (state / "code" / f"{DIGEST}.zip").exists()
    assert [each.name for each in (state / "tables").iterdir()] == [f"{'1' * 64}.jsonl"]


@pytest.mark.parametrize("same_disk", [True, False])
def test_a_folder_is_moved_whole_to_another_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_disk: bool
) -> None:
    (tmp_path / "spill" / "inside").mkdir(parents=True)
    (tmp_path / "spill" / "inside" / "file").write_text("all")
    (tmp_path / "store" / ".fold.unfinished" / "of-an-attempt-before").mkdir(parents=True)
    replace, asked = os.replace, []

    def replaced(source: Path, target: Path) -> None:
        asked.append(source)
        if not same_disk and source == tmp_path / "spill":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(source, target)

    monkeypatch.setattr("pipelines.paths.os.replace", replaced)
    move(tmp_path / "spill", tmp_path / "store" / "fold")
    found = [
        path.relative_to(tmp_path / "store" / "fold").as_posix() for path in (tmp_path / "store" / "fold").rglob("*")
    ]
    assert found == ["inside", "inside/file"] and not (tmp_path / "spill").exists()
    assert len(asked) == (1 if same_disk else 2)


def other_disks(monkeypatch: pytest.MonkeyPatch, source: Path) -> list[Path]:
    """Puts `source` on another disk than all else. Returns the list of paths that are then synced."""
    replace, fsync = os.replace, os.fsync
    synced: list[Path] = []

    def replaced(origin: Path, target: Path) -> None:
        if origin == source:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        assert synced, "what was copied is not on the disk yet"
        replace(origin, target)

    def kept(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr("pipelines.paths.os.replace", replaced)
    monkeypatch.setattr("pipelines.paths.os.fsync", kept)
    return synced


def test_a_move_to_another_disk_is_on_that_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, store = tmp_path / "spill", tmp_path / "store"
    (source / "inside").mkdir(parents=True)
    (source / "inside" / "file").write_text("all")
    store.mkdir()
    synced = other_disks(monkeypatch, source)
    copied = store / ".fold.unfinished"

    def refuse(path: Path, **_: Any) -> None:
        # the copy stands, so a source that stays harms nobody
        if path == source and not _.get("ignore_errors"):
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pipelines.paths.shutil.rmtree", refuse)
    move(source, store / "fold")
    assert set(synced) == {copied, copied / "inside", copied / "inside" / "file"}
    assert (store / "fold" / "inside" / "file").read_text() == "all"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_copy_that_fails_leaves_nothing_and_names_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    source, store = tmp_path / "spill", tmp_path / "store"
    source.mkdir()
    (source / "file").write_text("all")
    store.mkdir()
    other_disks(monkeypatch, source)

    def full(_: int) -> None:
        raise error

    monkeypatch.setattr("pipelines.paths.os.fsync", full)
    expected = SwitchyardError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        move(source, store / "fold")
    if isinstance(caught.value, SwitchyardError):
        assert caught.value.what == f"{store / 'fold'} can't be written: No space left on device"
        assert f"the disk of {store}" in str(caught.value.fix)
    assert list(store.iterdir()) == [] and (source / "file").read_text() == "all"


def test_a_folder_into_which_others_write_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is deleted, an executor that nobody has told writes one file after the other into it."""
    folder = tmp_path / "checkpoints" / "g1.t4"
    (folder / "state").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".g1.t4.0a1b2c3d.deleted" / "left").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".g1.t40.0a1b2c3d.deleted").mkdir()
    rmdir = os.rmdir

    def late(path: str, **rest: Any) -> None:
        if folder.is_dir():
            (folder / "state" / "late").touch()
        rmdir(path, **rest)

    monkeypatch.setattr("os.rmdir", late)
    remove(tmp_path, "checkpoints", "g1.t4")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [".g1.t40.0a1b2c3d.deleted"]
    folder.mkdir()
    assert set_aside(folder).parent == folder.parent and not folder.exists()
