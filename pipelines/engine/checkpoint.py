"""Spark's checkpoint folder: its name is the fence, its files the means of an aligned cut.

Only this module knows the files. Layout per Spark 4.0: `offsets/N` is the plan of batch N (version line, metadata line,
one line of offsets per source), `commits/N` is written after batch N (version line, metadata line).
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
from pipelines.model.positions import SourcePosition
from pipelines.paths import below, remove
from pipelines.settings import Settings

_FOLDER = re.compile(r"g(?P<generation>\d+)\.t(?P<token>\d+)")


class CheckpointDamaged(SwitchyardError):
    """A checkpoint that progress says must be there is missing, or one of its files can't be read."""


def release_folder(settings: Settings, release: str) -> Path:
    """Where all checkpoints of a release are. Raises SwitchyardError where a link leads elsewhere."""
    return below(settings.state_dir, *_home(release))


def _home(release: str) -> tuple[str, str]:
    return "checkpoints", release


def fence(settings: Settings, release: str, generation: int, token: int, *, expected: bool) -> Path:
    """The checkpoint folder for `token`: the newest one of this generation, renamed, or a new one.

    A process with an older token goes on writing to a path that nobody reads. `expected`: progress holds batches
    of this generation, so that a missing checkpoint is lost state: raises CheckpointDamaged, never starts empty.
    Raises Refused if a newer token has the checkpoint: a driver that booted slowly must not take it back.
    """
    folder = release_folder(settings, release)
    folder.mkdir(parents=True, exist_ok=True)
    mine = below(settings.state_dir, *_home(release), f"g{generation}.t{token}")
    older = _folders(settings, release, generation)
    if older and older[-1][0] > token:
        raise Refused(f"a driver with token {older[-1][0]} has taken over {release} from token {token}",
                      fix="see `switchyard status` for who runs it")  # fmt: skip
    if older:
        os.replace(older[-1][1], mine)
        for _, dead in older[:-1]:
            remove(settings.state_dir, *_home(release), dead.name)
    _know_own_place(mine)
    if expected and not (mine / "offsets").is_dir():
        raise CheckpointDamaged(
            f"the checkpoint of {release} generation {generation} is gone from {folder}, though it has committed batches",
            fix=f"bring the folder back, or read history again: `switchyard reset {release} --to-earliest`",
        )
    mine.mkdir(exist_ok=True)
    return mine


def newest_folder(settings: Settings, release: str, generation: int) -> Path | None:
    """The checkpoint of a generation; None: there is none."""
    found = _folders(settings, release, generation)
    return found[-1][1] if found else None


def _folders(settings: Settings, release: str, generation: int) -> list[tuple[int, Path]]:
    """Checkpoints of a generation with their tokens, the newest last. Raises as `release_folder` does."""
    folder = release_folder(settings, release)
    return sorted(
        (int(match["token"]), below(settings.state_dir, *_home(release), path.name))
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _FOLDER.fullmatch(path.name)) and int(match["generation"]) == generation
    )


def size_of(path: Path | None) -> int:
    """Bytes of all files of a checkpoint; 0 without one."""
    if path is None:
        return 0
    return sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())


def forget(settings: Settings, release: str, generation: int) -> None:
    """Deletes the checkpoints of a generation."""
    for _, path in _folders(settings, release, generation):
        shutil.rmtree(path)


def inherit(
    settings: Settings, release: str, generation: int, token: int, source: Path, change: Callable[[Path], None]
) -> Path:
    """The checkpoint of a new generation with the state of `source`, which stays as it is.

    By hard links, so that a large state takes no time: Spark never changes a file that it has written. `change` is
    called with the copy before it gets its name. Done again, it begins anew.
    """
    mine = below(settings.state_dir, *_home(release), f"g{generation}.t{token}")
    remove(settings.state_dir, *_home(release), mine.name)
    copy = copy_of(source, mine.with_name(f".{mine.name}.unfinished"))
    change(copy)
    os.replace(copy, mine)
    return mine


def copy_of(source: Path, target: Path) -> Path:
    """Another checkpoint with the same files, linked, at `target`; what is there is replaced."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=os.link)
    _know_own_place(target)
    return target


def _know_own_place(path: Path) -> None:
    """Has the operators of a checkpoint that was moved, or is a copy, find their schemas in it.

    A StatefulProcessor's `state/<operator>/_metadata/v2/<batch>` names them by absolute paths. Each file is replaced, never
    written to: another checkpoint may have it, too.
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
            raise CheckpointDamaged(f"{file} is cut off or damaged: {error}", fix=_FIX) from error
        # Spark would check the checksum of the old bytes
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
    """One checkpoint folder. `inputs`: source name -> topic, in the order of the app's definition."""

    def __init__(self, path: Path, inputs: Mapping[str, str]) -> None:
        self.path = path
        self._inputs = dict(inputs)

    def planned(self, batch_id: int) -> PlannedBatch:
        """What batch `batch_id` was planned to read. Raises CheckpointDamaged if that can't be read."""
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
        """The position at the end of a planned batch, by the names of the sources."""
        free = dict(self._inputs)
        sources: dict[str, dict[int, int]] = {}
        for line in batch.lines:
            topic = next(iter(line))
            # two sources on one topic stand in the plan in the order of the definition
            name = next(n for n, t in free.items() if t == topic)
            del free[name]
            sources[name] = line[topic]
        return SourcePosition(sources=sources)

    def last_planned(self) -> int | None:
        return self._last("offsets")

    def last_committed(self) -> int | None:
        return self._last("commits")

    def committed(self, batch_id: int) -> bool:
        return (self.path / "commits" / str(batch_id)).exists()

    def next_watermark_ms(self, batch_id: int) -> int:
        """The watermark that the batch after `batch_id` runs with."""
        line = self._lines("commits", batch_id)[1]
        with self._readable("commits", batch_id):
            return int(json.loads(line)["nextBatchWatermarkMs"])

    def settled(self, batch_id: int) -> bool:
        """Whether a further batch without input would change nothing: the watermark didn't move in `batch_id`."""
        return self.next_watermark_ms(batch_id) == self.planned(batch_id).watermark_ms

    def plan_next(self, target: SourcePosition) -> int:
        """Plans the next batch by hand, so that it ends exactly at `target`. Returns its number.

        The query must be stopped, with its last batch N committed. A batch N+1 that Spark had planned and never ran is
        replaced, also a first one; partitions that `target` doesn't name stay where they are. Raises CheckpointDamaged if
        there is neither.
        """
        last = self.last_committed()
        if last is None:
            if self.last_planned() is None:
                raise CheckpointDamaged(f"{self.path} has no planned batch", fix="let the release run its first batch")
            self._forget_state(1)
            self._write_plan(0, 0, target, watermark_ms=self.planned(0).watermark_ms)
            return 0
        for number in range(last + 1, (self.last_planned() or last) + 1):
            self._remove("offsets", number)
        self._forget_state(last + 2)
        self._write_plan(last + 1, last, target, watermark_ms=self.next_watermark_ms(last))
        return last + 1

    def stand_at(self, batch_id: int, target: SourcePosition) -> None:
        """Moves the end of the committed batch `batch_id` to `target`, under the state: the next one begins there.

        The query must be stopped; what Spark had planned behind it is removed. Raises CheckpointDamaged if that batch
        isn't the last one, or not committed.
        """
        if self.last_committed() != batch_id:
            raise CheckpointDamaged(
                f"{self.path} has batch {self.last_committed()} committed, progress has {batch_id}", fix=_FIX
            )
        for number in range(batch_id + 1, (self.last_planned() or batch_id) + 1):
            self._remove("offsets", number)
        self._forget_state(batch_id + 2)
        self._write_plan(batch_id, batch_id, target, watermark_ms=self.planned(batch_id).watermark_ms)

    def _write_plan(self, batch_id: int, model: int, target: SourcePosition, *, watermark_ms: int) -> None:
        """Writes `offsets/<batch_id>` after that of `model`."""
        version, metadata, *_lines = self._lines("offsets", model)
        batch = self.planned(model)
        facts = json.loads(metadata)
        facts["batchWatermarkMs"] = watermark_ms
        # a batch's time must not go back, or processing-time expressions would
        facts["batchTimestampMs"] = batch.timestamp_ms + (batch_id - model)
        wanted = []
        for line, name in zip(batch.lines, self.position(batch).sources, strict=True):
            topic = next(iter(line))
            # with partitions that the input has got since
            offsets = {**line[topic], **target.sources.get(name, {})}
            wanted.append(json.dumps({topic: {str(p): o for p, o in sorted(offsets.items())}}, separators=(",", ":")))
        self._write("offsets", batch_id, "\n".join([version, json.dumps(facts, separators=(",", ":")), *wanted]))

    def _forget_state(self, version: int) -> None:
        """Removes what an uncommitted run of batch `version` - 1 may have left of its state."""
        for path in (self.path / "state").glob(f"*/*/**/{version}.*"):
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def _lines(self, log: str, batch_id: int) -> list[str]:
        path = self.path / log / str(batch_id)
        try:
            lines = path.read_text().splitlines()
        except OSError as error:
            raise CheckpointDamaged(f"{path} can't be read: {error.strerror}", fix=_FIX) from error
        if len(lines) < 2 or lines[0] != "v1":
            raise CheckpointDamaged(f"{path} is cut off or of another version: it has {len(lines)} lines", fix=_FIX)
        return lines

    @contextmanager
    def _readable(self, log: str, batch_id: int) -> Iterator[None]:
        """Names the file whose content isn't what Spark writes."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(
                f"{self.path / log / str(batch_id)} is cut off or damaged: {error}", fix=_FIX
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


_FIX = "bring the checkpoint back from a backup, or stage a new version and reprocess"
