"""The checkpoint folder: its fence, what its files say, and batches planned by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.checkpoint import (
    Checkpoint,
    CheckpointDamaged,
    copy_of,
    fence,
    forget,
    is_whole,
    release_folder,
    whole_folder,
)
from pipelines.errors import Refused
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Boundary
from pipelines.settings import Settings

RELEASE = "sums.v1"
FIX = (
    "restore the folder from a backup; or run `switchyard reset sums.v1 --to-earliest --output new --execute` to read "
    "history again; add `--missing-history accept` if Kafka no longer keeps all of it"
)
INPUTS = {"trades": "trades", "quotes": "quotes"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Batches 0 and 1 committed."""
    found = Checkpoint(tmp_path / "checkpoint", INPUTS, RELEASE)
    plan(found, 0, {"trades": {0: 5, 1: 6}}, {"quotes": {0: 7}}, watermark_ms=0)
    commit(found, 0, next_watermark_ms=1_000)
    plan(found, 1, {"trades": {0: 15, 1: 16}}, {"quotes": {0: 17}}, watermark_ms=1_000)
    commit(found, 1, next_watermark_ms=2_000)
    return found


def plan(
    checkpoint: Checkpoint, number: int, *lines: dict[str, dict[int, int]], watermark_ms: int, at_ms: int = 100
) -> None:
    """Writes `offsets/N` as Spark does."""
    facts = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": at_ms + number, "conf": {"a": "b"}}
    text = "\n".join(["v1", json.dumps(facts), *(json.dumps(line) for line in lines)])
    write(checkpoint.path / "offsets" / str(number), text)


def commit(checkpoint: Checkpoint, number: int, *, next_watermark_ms: int) -> None:
    """Writes `commits/N` as Spark does."""
    write(checkpoint.path / "commits" / str(number), f'v1\n{{"nextBatchWatermarkMs":{next_watermark_ms}}}')


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_name(f".{path.name}.crc").write_bytes(b"checksum")


def made(settings: Settings, *names: str) -> Path:
    folder = release_folder(settings, RELEASE)
    for name in names:
        (folder / name / "offsets").mkdir(parents=True)
        (folder / name / "metadata").touch()
        (folder / name / "mine").write_text(name)
    return folder


# -- the fence


def schema_paths(checkpoint: Path) -> list[str]:
    """Where the operator of a StatefulProcessor looks for its schemas."""
    text = (checkpoint / "state" / "0" / "_metadata" / "v2" / "0").read_text()
    assert text.startswith("v2\n")
    return [path for store in json.loads(text[3:])["stateStoreInfo"] for path in store["stateSchemaFilePaths"]]


def with_schema(checkpoint: Path) -> None:
    """Writes what Spark 4.0 stores for a StatefulProcessor's operator in batch 0."""
    at = f"file:{checkpoint}/state/0/_stateSchema/default/0_a3d7"
    facts = {
        "operatorInfo": {"operatorId": 0},
        "stateStoreInfo": [{"storeName": "default", "stateSchemaFilePaths": [at]}],
    }
    write(checkpoint / "state" / "0" / "_metadata" / "v2" / "0", f"v2\n{json.dumps(facts)}")


def test_a_checkpoint_under_another_name_finds_its_schemas_in_itself(settings: Settings) -> None:
    folder = made(settings, "g1.t4")
    with_schema(folder / "g1.t4")
    path = fence(settings, RELEASE, 1, 5, expected=True)
    expected = "file:{}/state/0/_stateSchema/default/0_a3d7"
    assert schema_paths(path) == [expected.format(folder / "g1.t5")]
    # Spark checks bytes against their checksum
    assert not (path / "state" / "0" / "_metadata" / "v2" / ".0.crc").exists()
    # a copy shares its files with the original, which must not change
    copy = copy_of(path, folder / "copy", RELEASE)
    assert schema_paths(copy) == [expected.format(copy)]
    assert schema_paths(path) == [expected.format(path)]


def test_a_copy_has_every_file_of_every_operator_and_partition(tmp_path: Path) -> None:
    files = {"offsets/0", "metadata", *(f"state/{operator}/{p}/1.zip" for operator in (0, 1) for p in range(3))}
    for name in files:
        write(tmp_path / "whole" / name, name)
    copy = copy_of(tmp_path / "whole", tmp_path / "copy", RELEASE)
    assert {
        p.relative_to(copy).as_posix(): p.read_text() for p in copy.rglob("*") if p.is_file() and p.suffix != ".crc"
    } == {name: name for name in files}
    # hard links: a state of gigabytes is not copied
    assert all((copy / name).samefile(tmp_path / "whole" / name) for name in files)


def test_an_operator_whose_files_are_damaged_is_named(settings: Settings) -> None:
    folder = made(settings, "g1.t4")
    write(folder / "g1.t4" / "state" / "0" / "_metadata" / "v2" / "0", "v2")
    with pytest.raises(CheckpointDamaged, match="_metadata/v2/0 is truncated or damaged") as caught:
        fence(settings, RELEASE, 1, 5, expected=True)
    assert caught.value.fix == FIX


def test_the_fence_renames_the_checkpoint_to_its_token(settings: Settings) -> None:
    folder = made(settings, "g1.t4")
    path = fence(settings, RELEASE, 1, 5, expected=True)
    assert path == folder / "g1.t5"
    assert (path / "mine").read_text() == "g1.t4"
    assert [p.name for p in folder.iterdir()] == ["g1.t5"]


def test_a_zombie_that_keeps_writing_makes_no_valid_checkpoint(settings: Settings) -> None:
    folder = made(settings, "g1.t4")
    fence(settings, RELEASE, 1, 5, expected=True)
    # the process with token 4 wakes up, and its Spark creates the folder again
    made(settings, "g1.t4")
    path = fence(settings, RELEASE, 1, 6, expected=True)
    assert (path / "mine").read_text() == "g1.t4"
    assert (folder / "g1.t6" / "offsets").is_dir()
    assert not (folder / "g1.t4").exists()


def test_of_several_folders_the_newest_token_wins_by_number(settings: Settings) -> None:
    folder = made(settings, "g1.t9", "g1.t10", "g1.t2")
    assert (fence(settings, RELEASE, 1, 11, expected=True) / "mine").read_text() == "g1.t10"
    assert [p.name for p in folder.iterdir()] == ["g1.t11"]


def test_a_driver_that_starts_slowly_does_not_take_the_checkpoint_back(settings: Settings) -> None:
    folder = made(settings, "g1.t6")
    with pytest.raises(Refused, match="token 6 has taken over"):
        fence(settings, RELEASE, 1, 5, expected=True)
    assert [p.name for p in folder.iterdir()] == ["g1.t6"]


def test_another_generation_is_left_alone_and_not_taken(settings: Settings) -> None:
    folder = made(settings, "g1.t4")
    path = fence(settings, RELEASE, 2, 5, expected=False)
    assert list(path.iterdir()) == []
    assert (folder / "g1.t4" / "mine").exists()


@pytest.mark.parametrize("left", [None, "g1.t4", "g1.t4/offsets"], ids=["nothing", "an empty folder", "recreated"])
def test_a_missing_checkpoint_stops_the_driver(settings: Settings, left: str | None) -> None:
    """Spark's next batch makes a deleted folder again, but not the file with which its query began."""
    folder = release_folder(settings, RELEASE)
    if left is not None:
        (folder / left).mkdir(parents=True)
    with pytest.raises(CheckpointDamaged, match=f"checkpoint {folder} of sums.v1 is gone") as caught:
        fence(settings, RELEASE, 1, 5, expected=True)
    assert "switchyard reset" in caught.value.fix


def test_a_checkpoint_is_found_while_a_driver_that_starts_renames_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(settings, "g1.t4")

    def renamed(path: Path) -> bool:
        if path.name == "g1.t4":
            fence(settings, RELEASE, 1, 5, expected=False)
        return is_whole(path)

    monkeypatch.setattr("pipelines.engine.checkpoint.is_whole", renamed)
    assert whole_folder(settings, RELEASE, 1) == folder / "g1.t5"
    (folder / "g1.t5" / "metadata").unlink()
    assert whole_folder(settings, RELEASE, 1) is None


def test_a_first_start_begins_with_an_empty_folder(settings: Settings) -> None:
    assert fence(settings, RELEASE, 1, 1, expected=False).is_dir()


# -- what the files say


def test_a_planned_batch_is_read_and_placed_by_the_names_of_the_sources(checkpoint: Checkpoint) -> None:
    planned = checkpoint.planned(1)
    assert (planned.batch_id, planned.watermark_ms, planned.timestamp_ms) == (1, 1_000, 101)
    assert checkpoint.position(planned) == SourcePosition(sources={"trades": {0: 15, 1: 16}, "quotes": {0: 17}})
    assert (checkpoint.last_planned(), checkpoint.last_committed()) == (1, 1)
    assert checkpoint.committed(1) and not checkpoint.committed(2)


def test_two_sources_on_one_topic_are_told_apart_by_their_order(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, {"left": "trades", "right": "trades"}, RELEASE)
    plan(checkpoint, 0, {"trades": {0: 1}}, {"trades": {0: 2}}, watermark_ms=0)
    assert checkpoint.position(checkpoint.planned(0)).sources == {"left": {0: 1}, "right": {0: 2}}


def test_a_batch_is_settled_when_the_watermark_did_not_move_in_it(checkpoint: Checkpoint) -> None:
    assert not checkpoint.settled(1)
    plan(checkpoint, 2, {"trades": {0: 15, 1: 16}}, {"quotes": {0: 17}}, watermark_ms=2_000)
    commit(checkpoint, 2, next_watermark_ms=2_000)
    assert checkpoint.settled(2)


def test_a_planned_batch_ends_at_a_boundary_that_is_settled_if_another_would_change_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, {"trades": "trades"}, RELEASE)
    plan(checkpoint, 3, {"trades": {0: 15}}, watermark_ms=1_000)
    before, end = (SourcePosition(sources={"trades": {0: offset}}) for offset in (9, 15))
    found = Boundary(batch_id=3, position=end, previous=before, watermark_ms=1_000, settled=False)
    assert checkpoint.boundary(3, before, watermarked=True) == found
    # without input, or without a watermark
    empty = Boundary(batch_id=3, position=end, previous=end, watermark_ms=1_000, settled=True)
    assert checkpoint.boundary(3, end, watermarked=True) == empty
    plain = Boundary(batch_id=3, position=end, previous=before, watermark_ms=None, settled=True)
    assert checkpoint.boundary(3, before, watermarked=False) == plain


def test_an_empty_checkpoint_has_no_batches(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, INPUTS, RELEASE)
    assert (checkpoint.last_planned(), checkpoint.last_committed()) == (None, None)
    with pytest.raises(CheckpointDamaged, match="no planned batch"):
        checkpoint.plan_next(SourcePosition(sources={}))


@pytest.mark.parametrize("text", ["", "v1\n", "v2\n{}\n{}", 'v1\n{"batchWatermarkMs":0'])
def test_a_truncated_file_is_named(checkpoint: Checkpoint, text: str) -> None:
    (checkpoint.path / "offsets" / "1").write_text(text)
    with pytest.raises(CheckpointDamaged, match=r"offsets/1 ") as caught:
        checkpoint.planned(1)
    assert caught.value.fix == FIX


@pytest.mark.parametrize("line", ['{"trades":{"0":15', "[]", '{"trades":[1]}'])
def test_a_line_of_offsets_that_is_cut_off_is_named(checkpoint: Checkpoint, line: str) -> None:
    text = (checkpoint.path / "offsets" / "1").read_text().splitlines()
    (checkpoint.path / "offsets" / "1").write_text("\n".join([*text[:2], line]))
    with pytest.raises(CheckpointDamaged, match=r"offsets/1 "):
        checkpoint.planned(1)


@pytest.mark.parametrize("text", ["v1\n{", "v1\n{}", "v1\n[]"])
def test_a_commit_that_is_cut_off_is_named(checkpoint: Checkpoint, text: str) -> None:
    (checkpoint.path / "commits" / "1").write_text(text)
    with pytest.raises(CheckpointDamaged, match=r"commits/1 "):
        checkpoint.next_watermark_ms(1)


def test_a_file_that_is_gone_is_named(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointDamaged, match=r"offsets/7 can't be read"):
        checkpoint.planned(7)


# -- planned by hand


def test_the_next_batch_ends_at_the_target_with_the_watermark_of_its_predecessor(checkpoint: Checkpoint) -> None:
    target = SourcePosition(sources={"trades": {0: 20, 1: 21}, "quotes": {0: 22}})
    assert checkpoint.plan_next(target) == 2
    planned = checkpoint.planned(2)
    assert checkpoint.position(planned) == target
    assert (planned.watermark_ms, planned.timestamp_ms) == (2_000, 102)
    # the rest of the metadata is copied from Spark's
    facts = json.loads((checkpoint.path / "offsets" / "2").read_text().splitlines()[1])
    assert facts["conf"] == {"a": "b"}


def test_what_the_target_does_not_name_stays_where_it_is_and_new_partitions_are_added(checkpoint: Checkpoint) -> None:
    checkpoint.plan_next(SourcePosition(sources={"trades": {1: 30, 9: 99}, "others": {0: 1}}))
    position = checkpoint.position(checkpoint.planned(2))
    assert position.sources == {"trades": {0: 15, 1: 30, 9: 99}, "quotes": {0: 17}}


def test_batches_that_were_planned_and_never_ran_are_replaced_with_their_checksums(checkpoint: Checkpoint) -> None:
    plan(checkpoint, 2, {"trades": {0: 90, 1: 90}}, {"quotes": {0: 90}}, watermark_ms=2_000)
    plan(checkpoint, 3, {"trades": {0: 95, 1: 95}}, {"quotes": {0: 95}}, watermark_ms=2_000)
    target = SourcePosition(sources={"trades": {0: 20, 1: 20}, "quotes": {0: 20}})
    assert checkpoint.plan_next(target) == 2
    assert checkpoint.position(checkpoint.planned(2)) == target
    left = sorted(p.name for p in (checkpoint.path / "offsets").iterdir())
    assert left == [".0.crc", ".1.crc", "0", "1", "2"]


def planned_next(checkpoint: Checkpoint) -> None:
    checkpoint.plan_next(SourcePosition(sources={"trades": {0: 20}}))


def moved(checkpoint: Checkpoint) -> None:
    checkpoint.move_end_of(1, SourcePosition(sources={"trades": {0: 20}}))


@pytest.mark.parametrize("change", [planned_next, moved])
def test_state_that_a_run_left_uncommitted_is_forgotten(
    checkpoint: Checkpoint, change: Callable[[Checkpoint], None]
) -> None:
    # batch N - 1 writes version N of the state
    state = checkpoint.path / "state" / "0" / "1"
    for name in ("2.zip", ".2.zip.crc", "3.changelog", ".3.changelog.crc", "3.zip", "4.zip", "30-b.sst"):
        write(state / name, name)
    change(checkpoint)
    left = {p.name for p in state.iterdir() if not p.name.startswith(".")}
    assert left == {"2.zip", "30-b.sst"}
    assert not (state / ".3.changelog.crc").exists()


def test_a_target_planned_twice_is_planned_the_same(checkpoint: Checkpoint) -> None:
    target = SourcePosition(sources={"trades": {0: 20, 1: 20}, "quotes": {0: 20}})
    checkpoint.plan_next(target)
    first = (checkpoint.path / "offsets" / "2").read_bytes()
    assert checkpoint.plan_next(target) == 2
    assert (checkpoint.path / "offsets" / "2").read_bytes() == first


def test_a_checkpoint_into_which_a_late_executor_writes_is_forgotten(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(settings, "g1.t4", "g2.t5")
    rmtree = shutil.rmtree

    def late(path: Path, **rest: Any) -> None:
        # the executor of a killed driver makes the folder again
        write(folder / "g1.t4" / "state" / "0" / "0" / "7.zip", "late")
        rmtree(path, **rest)

    monkeypatch.setattr("pipelines.engine.checkpoint.shutil.rmtree", late)
    forget(settings, RELEASE, 1)
    assert {path.name for path in folder.iterdir()} == {"g1.t4", "g2.t5"}
    assert not (folder / "g1.t4" / "mine").exists()
    # what is left is not taken for a checkpoint
    assert whole_folder(settings, RELEASE, 1) is None and whole_folder(settings, RELEASE, 2) == folder / "g2.t5"
