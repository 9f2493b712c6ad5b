"""Spark's checkpoint folder. Its name is the fence; writing its files makes an aligned cut possible.

Only this module knows the files. Their layout in Spark 4.0: `offsets/N` is the plan of batch N (version line, metadata
line, one line of offsets per source). Spark writes `commits/N` after batch N (version line, metadata line).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import Refused, SwitchyardError
from pipelines.model.parts import Loss, lost_checkpoint
from pipelines.model.positions import SourcePosition
from pipelines.model.progress import Boundary
from pipelines.paths import below, remove, set_aside
from pipelines.private import private
from pipelines.settings import Settings

# also of a checksum: `.7.zip.crc`
_STATE = re.compile(r"\.?(?P<version>\d+)\.")
_FOLDER = re.compile(r"g(?P<generation>\d+)\.t(?P<token>\d+)")


class CheckpointDamaged(SwitchyardError):
    """A checkpoint that must exist according to progress is missing, or one of its files can't be read."""


def release_folder(settings: Settings, release: str) -> Path:
    """The folder of all checkpoints of a release. Raises SwitchyardError if a link leads out of the store."""
    return below(settings.store_dir, *_home(release))


def _home(release: str) -> tuple[str, str]:
    return "checkpoints", release


def fence(settings: Settings, release: str, generation: int, token: int, *, expected: bool) -> Path:
    """The checkpoint folder for `token`: the newest one of this generation, renamed, or a new one.

    A process with an older token then writes to a path that nobody reads. `expected`: progress holds batches of this
    generation, so a missing checkpoint means lost state: raises CheckpointDamaged instead of starting empty.
    Raises Refused if a newer token has the checkpoint: a driver that booted slowly must not take it back.
    """
    folder = release_folder(settings, release)
    private(settings.store_dir)
    folder.mkdir(parents=True, exist_ok=True)
    mine = below(settings.store_dir, *_home(release), f"g{generation}.t{token}")
    older = _folders(settings, release, generation)
    if older and older[-1][0] > token:
        raise Refused(f"a driver with token {older[-1][0]} has taken over {release} from token {token}",
                      fix="`switchyard status` shows who runs it")  # fmt: skip
    if older:
        os.replace(older[-1][1], mine)
        for _, dead in older[:-1]:
            remove(settings.store_dir, *_home(release), dead.name)
    _know_own_place(mine, release)
    if expected and not is_whole(mine):
        lost = lost_checkpoint(release, folder)
        raise CheckpointDamaged(lost.what, fix=lost.way)
    mine.mkdir(exist_ok=True)
    return mine


def is_whole(path: Path) -> bool:
    """Whether a checkpoint that has a batch was not deleted since its query began.

    Spark's next batch makes a deleted folder again, with its plan and state. But `metadata` is written by the start of a
    query only.
    """
    return (path / "offsets").is_dir() and (path / "metadata").is_file()


def is_taken_over(path: Path) -> bool:
    """Whether a driver with a newer token has the release by now: it has renamed the folder, or begun another generation."""
    own = _FOLDER.fullmatch(path.name)
    assert own is not None, path
    beside = filter(None, (_FOLDER.fullmatch(each.name) for each in path.parent.glob("g*.t*")))
    return any(int(each["token"]) > int(own["token"]) for each in beside)


def newest_folder(settings: Settings, release: str, generation: int) -> Path | None:
    """The checkpoint of a generation; None: there is none."""
    found = _folders(settings, release, generation)
    return found[-1][1] if found else None


def whole_folder(settings: Settings, release: str, generation: int) -> Path | None:
    """The checkpoint of a generation; None: there is none, or it is incomplete."""
    for _ in range(2):
        found = newest_folder(settings, release, generation)
        if found is not None and is_whole(found):
            return found
        # a driver that starts renames it, perhaps just now
    return None


def _folders(settings: Settings, release: str, generation: int) -> list[tuple[int, Path]]:
    """The checkpoints of a generation with their tokens, the newest last. Raises as `release_folder` does."""
    folder = release_folder(settings, release)
    return sorted(
        (int(match["token"]), below(settings.store_dir, *_home(release), path.name))
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _FOLDER.fullmatch(path.name)) and int(match["generation"]) == generation
    )


def size_of(path: Path | None) -> int:
    """Bytes of all files of a checkpoint; 0 without one."""
    if path is None:
        return 0
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())


def forget(settings: Settings, release: str, generation: int, upto: int | None = None) -> None:
    """Deletes the checkpoints of a generation. `upto`: only those of this token and older ones.

    An executor of a driver that was killed may write its last state files later, into a new folder of the old name. No
    checkpoint is taken from there, as it has no plan.
    """
    for token, path in _folders(settings, release, generation):
        if upto is None or token <= upto:
            shutil.rmtree(set_aside(path))


def inherit(
    settings: Settings, release: str, generation: int, token: int, source: Path, change: Callable[[Path], None]
) -> Path:
    """Makes the checkpoint of a new generation with the state of `source`, which stays as it is. Returns its path.

    It uses hard links, so a large state takes no time: Spark never changes a file that it has written. `change` is
    called with the copy before the copy gets its name. A second call starts over.
    """
    mine = below(settings.store_dir, *_home(release), f"g{generation}.t{token}")
    remove(settings.store_dir, *_home(release), mine.name)
    copy = copy_of(source, mine.with_name(f".{mine.name}.unfinished"), release)
    change(copy)
    os.replace(copy, mine)
    return mine


def copy_of(source: Path, target: Path, release: str) -> Path:
    """Copies a checkpoint of `release` to `target` with hard links, and replaces what is there. Returns `target`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
    _know_own_place(target, release)
    return target


def _know_own_place(path: Path, release: str) -> None:
    """Makes the operators of a checkpoint of `release` that was moved or copied find their schemas in it.

    A StatefulProcessor's `state/<operator>/_metadata/v2/<batch>` holds their absolute paths. Each file is replaced, never
    changed in place: another checkpoint may share it.
    """
    for file in path.glob("state/*/_metadata/v2/*"):
        if not file.name.isdigit():
            continue
        schemas = f"file:{file.parents[2].absolute()}/_stateSchema/"
        try:
            version, facts = file.read_text().split("\n", 1)
            known = json.loads(facts)
            for store in known["stateStoreInfo"]:
                places = store["stateSchemaFilePaths"]
                store["stateSchemaFilePaths"] = [schemas + place.rpartition("/_stateSchema/")[2] for place in places]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"{file} is truncated or damaged: {error}", fix=_fix(release)) from error
        # Spark would check the new bytes against the old checksum
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        _replace(file, f"{version}\n{json.dumps(known, separators=(',', ':'))}")


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.by-hand")
    temporary.write_text(text)
    os.replace(temporary, path)


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """What `offsets/N` says. `lines`: topic -> partition -> next offset, one per source, in the plan's order."""

    batch_id: int
    watermark_ms: int
    timestamp_ms: int
    lines: tuple[dict[str, dict[int, int]], ...]


class Checkpoint:
    """One checkpoint folder of `release`. `inputs`: source name -> topic, in the order of the app's definition."""

    def __init__(self, path: Path, inputs: Mapping[str, str], release: str) -> None:
        self.path = path
        self._inputs = dict(inputs)
        self._release = release

    def planned(self, batch_id: int) -> PlannedBatch:
        """What batch `batch_id` was planned to read. Raises CheckpointDamaged if the plan can't be read."""
        _, metadata, *lines = self._lines("offsets", batch_id)
        with self._readable("offsets", batch_id):
            facts = json.loads(metadata)
            return PlannedBatch(
                batch_id,
                int(facts["batchWatermarkMs"]),
                int(facts["batchTimestampMs"]),
                tuple(
                    {topic: {int(p): int(o) for p, o in offsets.items()} for topic, offsets in json.loads(line).items()}
                    for line in lines
                ),
            )

    def position(self, batch: PlannedBatch) -> SourcePosition:
        """The position at the end of a planned batch, by source name."""
        free = dict(self._inputs)
        sources: dict[str, dict[int, int]] = {}
        for line in batch.lines:
            topic = next(iter(line))
            # the plan lists two sources on one topic in the order of the definition
            name = next(n for n, t in free.items() if t == topic)
            del free[name]
            sources[name] = line[topic]
        return SourcePosition(sources=sources)

    def boundary(self, batch_id: int, before: SourcePosition, *, watermarked: bool) -> Boundary:
        """The boundary at the end of batch `batch_id`, as it is planned. `before`: where it starts. `watermarked`: whether
        the app is. Raises as `planned` does.
        """
        batch = self.planned(batch_id)
        position = self.position(batch)
        return Boundary(
            batch_id=batch_id,
            position=position,
            previous=before,
            watermark_ms=batch.watermark_ms if watermarked else None,
            # a batch without input already has the watermark of all input: another one would change nothing
            settled=not watermarked or position == before,
        )

    def last_planned(self) -> int | None:
        return self._last("offsets")

    def last_committed(self) -> int | None:
        return self._last("commits")

    @property
    def newest(self) -> int:
        """The last batch in Spark's log; -1: none."""
        last = self.last_committed()
        return -1 if last is None else last

    def committed(self, batch_id: int) -> bool:
        return (self.path / "commits" / str(batch_id)).exists()

    def next_watermark_ms(self, batch_id: int) -> int:
        """The watermark of the batch after `batch_id`."""
        line = self._lines("commits", batch_id)[1]
        with self._readable("commits", batch_id):
            return int(json.loads(line)["nextBatchWatermarkMs"])

    def settled(self, batch_id: int) -> bool:
        """Whether another batch without input would change nothing: the watermark didn't move in `batch_id`."""
        return self.next_watermark_ms(batch_id) == self.planned(batch_id).watermark_ms

    def move_watermark(self, to_ms: int) -> None:
        """Makes the next batch run with the watermark `to_ms`, as later records would; for rehearsals.

        The query must be stopped. Raises CheckpointDamaged if it has no committed batch.
        """
        last = self.last_committed()
        if last is None:
            raise CheckpointDamaged(f"{self.path} has no committed batch", fix="run a batch first")
        version, line, *more = self._lines("commits", last)
        with self._readable("commits", last):
            facts = json.loads(line)
            facts["nextBatchWatermarkMs"] = max(to_ms, int(facts["nextBatchWatermarkMs"]))
        self._write("commits", last, "\n".join([version, json.dumps(facts, separators=(",", ":")), *more]))

    def plan_next(self, target: SourcePosition) -> int:
        """Plans the next batch by hand, so that it ends exactly at `target`. Returns its number.

        The query must be stopped and its last batch N committed. If Spark has planned batch N+1 but not run it, that plan
        is replaced; so is the plan of a first batch. Partitions that `target` doesn't name stay where they are. Raises
        CheckpointDamaged if there is no batch at all.
        """
        last = self.last_committed()
        if last is None:
            if self.last_planned() is None:
                raise CheckpointDamaged(f"{self.path} has no planned batch", fix="let the release run its first batch")
            self._forget_state(1)
            self._write_plan(0, 0, target, watermark_ms=self.planned(0).watermark_ms)
            return 0
        self.forget_later(last)
        self._write_plan(last + 1, last, target, watermark_ms=self.next_watermark_ms(last))
        return last + 1

    def move_end_of(self, batch_id: int, target: SourcePosition) -> None:
        """Moves the end of the committed batch `batch_id` to `target` and keeps the state. The next batch starts there.

        The query must be stopped. Plans of later batches are removed. Raises CheckpointDamaged unless this is the last
        committed batch.
        """
        if self.last_committed() != batch_id:
            raise CheckpointDamaged(
                f"{self.path} has batch {self.last_committed()} committed, progress has {batch_id}",
                fix=_fix(self._release),
            )
        self.forget_later(batch_id)
        self._write_plan(batch_id, batch_id, target, watermark_ms=self.planned(batch_id).watermark_ms)

    def _write_plan(self, batch_id: int, model: int, target: SourcePosition, *, watermark_ms: int) -> None:
        """Writes `offsets/<batch_id>` in the form of `offsets/<model>`."""
        version, metadata, *_lines = self._lines("offsets", model)
        batch = self.planned(model)
        facts = json.loads(metadata)
        facts["batchWatermarkMs"] = watermark_ms
        # a batch's time must not go back: processing-time expressions use it
        facts["batchTimestampMs"] = batch.timestamp_ms + (batch_id - model)
        wanted = []
        for line, name in zip(batch.lines, self.position(batch).sources, strict=True):
            topic = next(iter(line))
            # `target` may name partitions that were added to the input since
            offsets = {**line[topic], **target.sources.get(name, {})}
            wanted.append(json.dumps({topic: {str(p): o for p, o in sorted(offsets.items())}}, separators=(",", ":")))
        self._write("offsets", batch_id, "\n".join([version, json.dumps(facts, separators=(",", ":")), *wanted]))

    def forget_later(self, batch_id: int) -> None:
        """Removes what batches after the committed batch `batch_id` have left: their plans and their state."""
        for number in range(batch_id + 1, (self.last_planned() or batch_id) + 1):
            self._remove("offsets", number)
        self._forget_state(batch_id + 2)

    def _forget_state(self, version: int) -> None:
        """Removes the state that uncommitted runs of batch `version` - 1 and later ones may have left."""
        for path in (self.path / "state").glob("*/*/**/*.*"):
            match = _STATE.match(path.name)
            if match is not None and int(match["version"]) >= version:
                path.unlink(missing_ok=True)

    def _lines(self, log: str, batch_id: int) -> list[str]:
        path = self.path / log / str(batch_id)
        try:
            lines = path.read_text().splitlines()
        except OSError as error:
            raise CheckpointDamaged(f"{path} can't be read: {error.strerror}", fix=_fix(self._release)) from error
        if len(lines) < 2 or lines[0] != "v1":
            raise CheckpointDamaged(
                f"{path} is truncated or of another version: it has {len(lines)} lines", fix=_fix(self._release)
            )
        return lines

    @contextmanager
    def _readable(self, log: str, batch_id: int) -> Iterator[None]:
        """Raises CheckpointDamaged with the file's name if its content isn't what Spark writes."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(
                f"{self.path / log / str(batch_id)} is truncated or damaged: {error}", fix=_fix(self._release)
            ) from error

    def _last(self, log: str) -> int | None:
        folder = self.path / log
        numbers = [int(name) for name in os.listdir(folder) if name.isdigit()] if folder.is_dir() else []
        return max(numbers, default=None)

    def _remove(self, log: str, batch_id: int) -> None:
        (self.path / log / str(batch_id)).unlink(missing_ok=True)
        (self.path / log / f".{batch_id}.crc").unlink(missing_ok=True)

    def _write(self, log: str, batch_id: int, text: str) -> None:
        path = self.path / log / str(batch_id)
        # Spark would check a left-over checksum against the new bytes
        (self.path / log / f".{batch_id}.crc").unlink(missing_ok=True)
        _replace(path, text)


def _fix(release: str) -> str:
    """What helps is the same whether a checkpoint is damaged or gone."""
    return Loss(release=release, part="checkpoint", name="").way
