"""Copies of checkpoints in a bucket, with a dict for the bucket: what is packed, what a host gets back, what is deleted."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipelines.engine import copies as module
from pipelines.engine import packs
from pipelines.engine.checkpoint import Checkpoint, newest_folder, release_folder
from pipelines.engine.copies import Copies, Copy, CopyDamaged, copied, has_state, link, take_over_checkpoint
from pipelines.errors import SwitchyardError, Unavailable
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings
from tests.engine.test_checkpoint import commit, plan

RELEASE = "sums.v1"


class Bucket:
    """A bucket of bytes by key."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, key: str, data: bytes | Path) -> None:
        self.objects[key] = data if isinstance(data, bytes) else data.read_bytes()

    def get(self, key: str, path: Path) -> bool:
        if key in self.objects:
            path.write_bytes(self.objects[key])
        return key in self.objects

    def read(self, key: str) -> bytes | None:
        return self.objects.get(key)

    @property
    def packs(self) -> Sequence[str]:
        return sorted(key.rpartition("/")[2] for key in self.list(f"checkpoints/{RELEASE}/g1/packs"))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def delete_all(self, prefix: str) -> None:
        for key in self.list(prefix):
            del self.objects[key]

    def list(self, prefix: str) -> dict[str, int]:
        return {key: len(data) for key, data in self.objects.items() if key.startswith(prefix + "/")}


class Host:
    """A host with a disk of its own."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        self.settings = Settings(state_dir=folder)
        self.copies = Copies(bucket, self.settings, RELEASE, 1)  # type: ignore[arg-type]
        self.last: Copy | None = None

    def run(self, batch_id: int, token: int = 1, *, state: str = "") -> Path:
        """A batch of a driver: its plan, its state, its end. Old state is deleted."""
        folder = release_folder(self.settings, RELEASE) / f"g1.t{token}"
        made = Checkpoint(folder, {"trades": "trades"}, RELEASE)
        (folder / "state" / "0").mkdir(parents=True, exist_ok=True)
        (folder / "metadata").touch()
        plan(made, batch_id, {"trades": {0: 10 * batch_id}}, watermark_ms=0)
        (folder / "state" / "0" / f"{batch_id + 1}.changelog").write_text(state or f"state {batch_id}")
        commit(made, batch_id, next_watermark_ms=0)
        (folder / "state" / "0" / f"{batch_id - 15}.changelog").unlink(missing_ok=True)
        return folder

    def copy(self, folder: Path, token: int = 1) -> Copy:
        self.last = self.copies.write(folder, token, self.last)
        assert self.last is not None
        return self.last

    def read(self) -> Path:
        found = self.copies.for_reading()
        assert found is not None
        return found

    def brought(self) -> dict[str, tuple[bytes, int]]:
        found = newest_folder(self.settings, RELEASE, 1)
        assert found is not None
        return content(found)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Path -> bytes and time of change."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def one(tmp_path: Path, bucket: Bucket) -> Host:
    return Host(tmp_path / "one", bucket)


@pytest.fixture
def other(tmp_path: Path, bucket: Bucket) -> Host:
    return Host(tmp_path / "other", bucket)


@pytest.mark.parametrize("missing", ["metadata", "offsets/1"])
def test_what_a_late_process_made_again_is_not_copied(one: Host, bucket: Bucket, missing: str) -> None:
    one.run(0)
    folder = one.run(1)
    (folder / missing).unlink()
    with pytest.raises(CopyDamaged, match="is incomplete"):
        one.copies.write(folder, 1, None)
    assert not bucket.objects
    assert [path.name for path in folder.parent.iterdir()] == ["g1.t1"]


def test_a_host_whose_checkpoint_is_damaged_gets_the_copy(one: Host) -> None:
    folder = one.run(0)
    one.copy(folder)
    before = content(folder)
    one.run(1)
    (folder / "metadata").unlink()
    one.copies.bring(token=2)
    assert one.brought() == before


def test_another_host_gets_the_checkpoint_as_it_was(one: Host, other: Host) -> None:
    for batch in range(3):
        folder = one.run(batch)
        one.copy(folder)
    assert other.copies.newest() == 2
    other.copies.bring(token=7)
    assert other.brought() == content(folder)
    found = newest_folder(other.settings, RELEASE, 1)
    assert found is not None and found.name == "g1.t7"
    # nothing else is left on either host
    assert [path.name for path in release_folder(other.settings, RELEASE).iterdir()] == ["g1.t7"]
    assert [path.name for path in folder.parent.iterdir()] == ["g1.t1"]


def test_only_what_is_new_is_packed(one: Host, bucket: Bucket) -> None:
    folder = one.run(0)
    one.copy(folder)
    first = set(bucket.objects)
    one.run(1)
    copy = one.copy(folder)
    new = {path for path, file in copy.files.items() if file.pack == copy.name}
    assert {"offsets/1", "commits/1", "state/0/2.changelog"} <= new and "offsets/0" not in new
    # a copy of the same batch writes nothing
    before = dict(bucket.objects)
    assert one.copy(folder) is copy and before == bucket.objects and first < set(bucket.objects)


def test_a_file_that_was_replaced_is_packed_again(one: Host, other: Host) -> None:
    folder = one.run(0)
    one.copy(folder)
    Checkpoint(folder, {"trades": "trades"}, RELEASE).move_end_of(0, SourcePosition(sources={"trades": {0: 5}}))
    one.copy(folder)
    assert content(other.read()) == content(folder)


def test_the_packs_hold_at_most_twice_what_is_of_use(
    one: Host, other: Host, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "_SMALL_BYTES", 0)
    for batch in range(40):
        folder = one.run(batch, state=f"{batch}" * 2_000)
        copy = one.copy(folder)
        assert sum(copy.packs.values()) <= 2 * copy.size_bytes
        assert set(copy.packs) <= set(bucket.packs)
    # some copies, and the packs that they need
    assert 2 <= len(bucket.list(f"checkpoints/{RELEASE}/g1/copies")) <= 9
    assert len(bucket.packs) < 25
    assert content(other.read()) == content(folder)


def test_the_same_batch_is_copied_again_only_if_the_release_was_moved(one: Host, bucket: Bucket) -> None:
    folder = one.run(0)
    copy = one.copy(folder)
    # the next batch runs
    (folder / "state" / "0" / "2.changelog").write_text("half")
    assert one.copy(folder) is copy
    Checkpoint(folder, {"trades": "trades"}, RELEASE).move_end_of(0, SourcePosition(sources={"trades": {0: 5}}))
    before = dict(bucket.objects)
    moved = one.copy(folder)
    assert (moved.batch_id, moved.number) == (0, 2)
    # no object was replaced: a driver that is killed here leaves the copy before
    assert before.items() <= bucket.objects.items()


def test_a_host_keeps_its_own_if_only_older_copies_are_whole(one: Host, other: Host, bucket: Bucket) -> None:
    one.copy(one.run(0))
    other.copies.bring(token=1)
    for batch in (1, 2):
        folder = one.run(batch)
    del bucket.objects[f"checkpoints/{RELEASE}/g1/packs/{one.copy(folder).name}"]
    other.run(1)
    before = other.brought()
    other.copies.bring(token=3)
    assert other.brought() == before
    # nor does the next copy build on one that is not whole
    found = other.copies.read()
    assert found is not None and found.batch_id == 0


def test_packs_that_another_version_may_need_stay(one: Host, bucket: Bucket) -> None:
    copy = one.copy(one.run(0))
    bucket.objects[f"checkpoints/{RELEASE}/g1/copies/{copy.name}.json"] = b'{"of": "another version"}'
    one.copies.delete_orphans(9)
    assert bucket.packs


def test_a_host_that_is_as_new_keeps_its_own(one: Host, bucket: Bucket) -> None:
    folder = one.run(0)
    one.copy(folder)
    one.run(1)
    before = content(folder)
    one.copies.bring(token=2)
    assert one.brought() == before and folder.name == "g1.t1"


def test_a_host_that_is_behind_gets_the_newer_one(one: Host, other: Host) -> None:
    one.copy(one.run(0))
    other.copies.bring(token=2)
    for batch in (1, 2):
        folder = other.run(batch, token=2)
    other.last = other.copies.read()
    other.copy(folder, token=2)
    one.copies.bring(token=3)
    assert one.brought() == content(folder)


def test_what_is_only_read_takes_the_place_of_no_folder_into_which_a_driver_writes(one: Host, other: Host) -> None:
    other.run(0)
    one.copy(one.run(0))
    # it has that batch itself
    assert other.read().name == "g1.t1"
    folder = one.run(1)
    one.copy(folder)
    before = content(other.settings.state_dir / "checkpoints" / RELEASE / "g1.t1")
    assert content(other.read()) == content(folder)
    one.copy(one.run(2))
    assert content(other.read()) == content(folder)
    assert other.brought() == before
    # the next driver here takes a newer copy, too
    other.copies.bring(token=2)
    assert other.brought() == content(folder)


def test_an_older_copy_does_if_a_newer_one_is_not_whole(one: Host, other: Host, bucket: Bucket) -> None:
    folder = one.run(0)
    one.copy(folder)
    first = content(folder)
    one.run(1)
    one.copy(folder)
    newest = f"checkpoints/{RELEASE}/g1/packs/{bucket.packs[-1]}"
    bucket.objects[newest] = bucket.objects[newest][: len(bucket.objects[newest]) // 2]
    assert content(other.read()) == first
    del bucket.objects[newest]
    assert content(other.read()) == first


def test_without_a_whole_copy_the_host_gets_none(one: Host, other: Host, bucket: Bucket) -> None:
    one.copy(one.run(0))
    [pack] = bucket.packs
    del bucket.objects[f"checkpoints/{RELEASE}/g1/packs/{pack}"]
    with pytest.raises(CopyDamaged, match=f"no copy of the checkpoint of {RELEASE} in the bucket is whole") as caught:
        other.copies.for_reading()
    assert "switchyard reset" in caught.value.fix
    assert newest_folder(other.settings, RELEASE, 1) is None


def test_a_checkpoint_without_a_batch_is_not_copied(one: Host, bucket: Bucket) -> None:
    folder = release_folder(one.settings, RELEASE) / "g1.t1"
    plan(Checkpoint(folder, {"trades": "trades"}, RELEASE), 0, {"trades": {0: 0}}, watermark_ms=0)
    assert one.copies.write(folder, 1, None) is None
    assert not bucket.objects and one.copies.newest() is None and one.copies.read() is None


def test_names_from_the_bucket_lead_out_of_no_folder(one: Host, other: Host, bucket: Bucket) -> None:
    copy = one.copy(one.run(0))
    bad, packed = "../../out", io.BytesIO()
    key = f"checkpoints/{RELEASE}/g1/copies/{copy.name}.json"
    bucket.objects[key] = bucket.objects[key].replace(b'"offsets/0"', f'"{bad}"'.encode())
    with tarfile.open(fileobj=packed, mode="w") as written:
        written.addfile(tarfile.TarInfo(bad))
    bucket.objects[f"checkpoints/{RELEASE}/g1/packs/{copy.name}"] = packed.getvalue()
    with pytest.raises(SwitchyardError, match="is not the name of a file"):
        other.copies.for_reading()
    assert not list(other.settings.state_dir.glob("**/out*"))


def test_packs_of_a_copy_that_was_never_written_are_deleted_by_a_newer_driver(one: Host, bucket: Bucket) -> None:
    one.copy(one.run(0))
    orphan = f"checkpoints/{RELEASE}/g1/packs/{9:012}.t1.n1"
    bucket.objects[orphan] = b"half"
    # its driver may still run
    one.copies.delete_orphans(1)
    assert orphan in bucket.objects
    one.copies.delete_orphans(2)
    assert orphan not in bucket.objects and len(bucket.packs) == 1


def test_without_an_answer_of_the_bucket_a_driver_starts_with_the_checkpoint_of_its_host(
    one: Host, other: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.copy(one.run(0))
    one.run(1)
    before = one.brought()

    def silent(prefix: str) -> None:
        raise Unavailable(f"no answer about {prefix}", fix="wait")

    monkeypatch.setattr(Bucket, "list", lambda _, prefix: silent(prefix))
    monkeypatch.setattr(
        module, "copies_of", lambda settings, *_: one.copies if settings is one.settings else other.copies
    )
    take_over_checkpoint(one.settings, RELEASE, 1, 2)
    assert one.brought() == before
    # a host without one must not start from nothing
    with pytest.raises(Unavailable, match="no answer"):
        take_over_checkpoint(other.settings, RELEASE, 1, 2)


def test_what_a_killed_process_left_is_deleted(one: Host) -> None:
    folder = one.run(0).parent
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (folder / f".copy-{pid}-x" / "linked").mkdir(parents=True)
    one.copies.sweep()
    assert sorted(path.name for path in folder.iterdir()) == [f".copy-{os.getpid()}-x", "g1.t1"]


def test_a_plan_knows_of_state_elsewhere_and_brings_nothing(
    one: Host, other: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "copies_of", lambda settings, *_: one.copies if settings is one.settings else other.copies
    )
    assert not has_state(other.settings, RELEASE, 1)
    one.copy(one.run(0))
    assert has_state(one.settings, RELEASE, 1) and has_state(other.settings, RELEASE, 1)
    assert newest_folder(other.settings, RELEASE, 1) is None


def test_the_operator_sees_how_old_the_copy_is(one: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert copied(one.settings, RELEASE, 1, 3) is None
    monkeypatch.setattr(module, "copies_of", lambda *_: one.copies)
    assert copied(one.settings, RELEASE, 1, 3) == "the bucket has no copy of its checkpoint yet"
    one.copy(one.run(0))
    assert copied(one.settings, RELEASE, 1, 3) == "the bucket has its checkpoint after batch 0, 3 batches ago"
    assert copied(one.settings, RELEASE, 1, 0) == "the bucket has its checkpoint after batch 0"


def test_a_newer_driver_s_copies_are_not_deleted(one: Host, bucket: Bucket) -> None:
    folder = one.run(0, token=2)
    one.copy(folder, token=2)
    one.copies.delete(upto=1)
    assert bucket.objects
    one.copies.delete(upto=2)
    assert not bucket.objects


@pytest.mark.parametrize("after", ["commits", "offsets"])
def test_a_batch_that_ends_meanwhile_is_no_part_of_the_copy(
    one: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    folder = one.run(0)
    linked, link_all = tmp_path / "linked", packs._link_all

    def meanwhile(source: Path, to: Path, part: str) -> set[str]:
        gone = link_all(source, to, part)
        if part == after:
            one.run(1)
        return gone

    monkeypatch.setattr(packs, "_link_all", meanwhile)
    assert link(folder, linked) == 0
    found = content(linked)
    # what the log has is whole
    assert {"offsets/0", "commits/0", "state/0/1.changelog"} <= set(found) and "commits/1" not in found


def test_a_checkpoint_is_linked_again_if_spark_may_have_deleted_what_it_needs(
    one: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link_all, batches = one.run(0), packs._link_all, iter(range(1, 30))

    def meanwhile(source: Path, to: Path, part: str) -> set[str]:
        gone = link_all(source, to, part)
        if part == "commits":
            for _ in range(12):
                if (number := next(batches, None)) is not None:
                    one.run(number)
        return gone

    monkeypatch.setattr(packs, "_link_all", meanwhile)
    assert link(folder, tmp_path / "linked") == 24
    assert "state/0/25.changelog" in content(tmp_path / "linked")


@pytest.mark.parametrize(("name", "whole"), [("8.changelog", True), ("31.changelog", False)])
def test_spark_may_delete_old_state_meanwhile_and_nobody_else_any(
    one: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, whole: bool
) -> None:
    folder, linked_by = one.run(7), os.link
    one.run(30)

    def gone(source: Path, target: Path) -> None:
        if source.name == name:
            raise FileNotFoundError
        linked_by(source, target)

    monkeypatch.setattr(os, "link", gone)
    if whole:
        assert link(folder, tmp_path / "linked") == 30
        assert f"state/0/{name}" not in content(tmp_path / "linked")
    else:
        with pytest.raises(CopyDamaged, match="is incomplete"):
            link(folder, tmp_path / "linked")


@pytest.mark.parametrize("after", ["commits", "offsets", "state"])
def test_a_checkpoint_that_another_driver_takes_meanwhile_is_not_copied(
    one: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    folder, link_all = one.run(0), packs._link_all

    def meanwhile(source: Path, to: Path, part: str) -> set[str]:
        gone = link_all(source, to, part)
        if part == after:
            folder.rename(folder.with_name("g1.t2"))
        return gone

    monkeypatch.setattr(packs, "_link_all", meanwhile)
    with pytest.raises((CopyDamaged, FileNotFoundError)):
        link(folder, tmp_path / "linked")


def test_what_a_batch_that_has_not_ended_left_is_not_copied(one: Host, tmp_path: Path) -> None:
    folder = one.run(5)
    plan(Checkpoint(folder, {"trades": "trades"}, RELEASE), 6, {"trades": {0: 60}}, watermark_ms=0)
    for name in ("7.changelog", "7.zip", ".7.zip.crc", "8.zip"):
        (folder / "state" / "0" / "0").mkdir(exist_ok=True)
        (folder / "state" / "0" / "0" / name).touch()
    assert link(folder, tmp_path / "linked") == 5
    found = content(tmp_path / "linked")
    assert "offsets/5" in found and "offsets/6" not in found
    assert not [path for path in found if path.startswith("state/0/0/")]
    # the driver's own are still there
    assert (folder / "offsets" / "6").is_file() and (folder / "state" / "0" / "0" / "7.zip").is_file()
