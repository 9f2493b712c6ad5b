"""Spark's checkpoint folder: its name is the fence, its files the means of an aligned cut.

Only this module knows the files. Layout per Spark 4.0: `offsets/N` is the plan of batch N (version line, metadata line,
one line of offsets per source), `commits/N` is written after batch N (version line, metadata line).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import Refused, SwitchyardError
from pipelines.model.positions import SourcePosition
from pipelines.settings import Settings

_FOLDER = re.compile(r"g(?P<generation>\d+)\.t(?P<token>\d+)")


class CheckpointDamaged(SwitchyardError):
    """A checkpoint that progress says must be there is missing, or one of its files can't be read."""


def release_folder(settings: Settings, release: str) -> Path:
    """Where all checkpoints of a release are."""
    return settings.state_dir / "checkpoints" / release


def fence(settings: Settings, release: str, generation: int, token: int, *, expected: bool) -> Path:
    """The checkpoint folder for `token`: the newest one of this generation, renamed, or a new one.

    A process with an older token goes on writing to a path that nobody reads. `expected`: progress holds batches
    of this generation, so that a missing checkpoint is lost state: raises CheckpointDamaged, never starts empty.
    Raises Refused if a newer token has the checkpoint: a driver that booted slowly must not take it back.
    """
    folder = release_folder(settings, release)
    folder.mkdir(parents=True, exist_ok=True)
    mine = folder / f"g{generation}.t{token}"
    older = sorted(
        (int(match["token"]), path)
        for path in folder.iterdir()
        if (match := _FOLDER.fullmatch(path.name)) and int(match["generation"]) == generation
    )
    if older and older[-1][0] > token:
        raise Refused(f"a driver with token {older[-1][0]} has taken over {release} from token {token}",
                      fix="see `switchyard status` for who runs it")  # fmt: skip
    if older:
        os.replace(older[-1][1], mine)
        for _, dead in older[:-1]:
            shutil.rmtree(dead, ignore_errors=True)
    if expected and not (mine / "offsets").is_dir():
        raise CheckpointDamaged(
            f"the checkpoint of {release} generation {generation} is gone from {folder}, though it has committed batches",
            fix="bring the folder back from a backup, or stage a new version and reprocess: nothing starts from empty state",
        )
    mine.mkdir(exist_ok=True)
    return mine


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
        replaced; partitions that `target` doesn't name stay where they are. Raises CheckpointDamaged if N isn't there.
        """
        last = self.last_committed()
        if last is None:
            raise CheckpointDamaged(f"{self.path} has no committed batch", fix="let the release run its first batch")
        version, metadata, *_lines = self._lines("offsets", last)
        batch = self.planned(last)
        position = self.position(batch).sources
        facts = json.loads(metadata)
        facts["batchWatermarkMs"] = self.next_watermark_ms(last)
        # a batch's time must not go back, or processing-time expressions would
        facts["batchTimestampMs"] = batch.timestamp_ms + 1
        wanted = []
        for line, name in zip(batch.lines, position, strict=True):
            topic = next(iter(line))
            offsets = {**line[topic], **{p: o for p, o in target.sources.get(name, {}).items() if p in line[topic]}}
            wanted.append(json.dumps({topic: {str(p): o for p, o in sorted(offsets.items())}}, separators=(",", ":")))
        for number in range(last + 1, (self.last_planned() or last) + 1):
            self._remove("offsets", number)
        self._forget_state(last + 2)
        self._write("offsets", last + 1, "\n".join([version, json.dumps(facts, separators=(",", ":")), *wanted]))
        return last + 1

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
        temporary = path.with_name(f".{batch_id}.by-hand")
        temporary.write_text(text)
        os.replace(temporary, path)


_FIX = "bring the checkpoint back from a backup, or stage a new version and reprocess"
