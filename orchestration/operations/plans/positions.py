"""Positions as people write them for a reset, named as in Kafka's own tool."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pipelines.errors import BadUsage
from pipelines.kafka.clock import now_ms
from pipelines.model.reset import Target

# an offset has 64 bits; Python refuses to parse numbers of more than 4,300 digits
_NUMBER = r"[0-9]{1,19}"
# a wrong line that was meant as a position, and so may be shown
_HARMLESS = re.compile(r'[\w." -]{1,80}(,[\w." -]{0,80})+')
# how many wrong lines of a file an error names
_NAMED = 10
_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_NAMES = "--to-earliest, --to-latest, --to-current, --to-datetime, --by-duration, --shift-by, --to-offset, --from-file or --skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionOptions:
    """The options by which a command or a job names a position. Exactly one must be given."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_datetime: str | None = None
    by_duration: str | None = None
    shift_by: int | None = None
    to_offset: int | None = None
    from_file: Path | None = None
    skip: str | None = None

    def target(self, clock_ms: Callable[[], int] = now_ms) -> Target:
        """The position. Raises BadUsage if none is given, or several, or one that can't be read."""
        given: list[tuple[str, Callable[[], Target]]] = []
        if self.to_earliest:
            given.append(("--to-earliest", lambda: Target(kind="earliest", text="--to-earliest")))
        if self.to_latest:
            given.append(("--to-latest", lambda: Target(kind="latest", text="--to-latest")))
        if self.to_current:
            given.append(("--to-current", lambda: Target(kind="current", text="--to-current")))
        if (text := self.to_datetime) is not None:
            given.append(("--to-datetime", lambda: at_time(text)))
        if (duration := self.by_duration) is not None:
            given.append(("--by-duration", lambda: before_now(duration, clock_ms())))
        if (shift := self.shift_by) is not None:
            given.append(("--shift-by", lambda: Target(kind="shift", text=f"--shift-by {shift}", number=shift)))
        if (offset := self.to_offset) is not None:
            given.append(("--to-offset", lambda: to_offset(offset)))
        if (path := self.from_file) is not None:
            given.append(("--from-file", lambda: from_file(path)))
        if (record := self.skip) is not None:
            given.append(("--skip", lambda: one_record(record)))
        if not given:
            raise BadUsage("a reset needs a position", fix=f"give one of {_NAMES}")
        if len(given) > 1:
            raise BadUsage(
                f"{' and '.join(name for name, _ in given)} can't be used together", fix="give only one position"
            )
        return given[0][1]()


def at_time(text: str) -> Target:
    """`2026-11-01T00:00:00.000Z`, or with another zone. Raises BadUsage for any other form, and without a zone."""
    found = _time(text)
    if found is None:
        raise BadUsage(
            f"--to-datetime {text!r} is not a date and time",
            fix="write it like 2026-11-01T00:00:00.000Z, or with another zone: ...+01:00",
        )
    return Target(kind="datetime", text=f"--to-datetime {text}", at_ms=_milliseconds("--to-datetime", text, found))


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if "T" in text else None
    except ValueError:
        return None


def _milliseconds(option: str, text: str, at: datetime) -> int:
    if at.tzinfo is None:
        # Kafka's own tool reads it as UTC, but whoever types it may mean local time
        raise BadUsage(
            f"{option} {text} has no time zone", fix=f"for UTC write {text}Z; for another zone write {text}+01:00"
        )
    if at.timestamp() < 0:
        # Kafka takes -1 for the end and -2 for the beginning
        raise BadUsage(f"{option} {text} is before 1970", fix="use --to-earliest to go to the first records")
    return int(at.timestamp() * 1000)


def before_now(text: str, now: int) -> Target:
    """An ISO 8601 duration such as `PT6H` or `P1DT30M`, before now. Raises BadUsage for any other form, and for zero."""
    match = _DURATION.fullmatch(text)
    parts = {name: float(value) for name, value in (match.groupdict() if match else {}).items() if value}
    if not parts:
        raise BadUsage(f"--by-duration {text!r} is not a duration", fix="write it like PT6H, PT30M or P1DT12H")
    try:
        duration = timedelta(**parts)
    except OverflowError:
        duration = timedelta.max
    if duration.total_seconds() * 1000 > now:
        raise BadUsage(
            f"--by-duration {text} goes back before 1970", fix="use --to-earliest to go to the first records"
        )
    # Kafka's times are milliseconds
    if duration < timedelta(milliseconds=1):
        raise BadUsage(f"--by-duration {text} is zero", fix="give how far to go back; --to-latest goes to the end")
    ago_ms = int(duration.total_seconds() * 1000)
    return Target(kind="datetime", text=f"--by-duration {text}", at_ms=now - ago_ms, ago_ms=ago_ms)


def to_offset(number: int) -> Target:
    """The same offset on every partition. Raises BadUsage for a negative one."""
    if number < 0:
        raise BadUsage(
            f"--to-offset {number} is negative", fix="offsets start at 0; to go back by some records, use --shift-by"
        )
    return Target(kind="offset", text=f"--to-offset {number}", number=number)


def from_file(path: Path) -> Target:
    """Lines `topic,partition,offset`, as `--export` and Kafka's own tool write them. Raises BadUsage that names the
    wrong lines.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(
            f"--from-file {path} can't be read: {error}", fix="give a file with lines of topic,partition,offset"
        ) from error
    offsets: dict[str, dict[int, int]] = {}
    wrong: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        parts = [part.strip().strip('"') for part in line.split(",")]
        if len(parts) != 3 or not parts[0] or not all(re.fullmatch(_NUMBER, part) for part in parts[1:]):
            # any file may be named, also one with secrets
            shown = f": {line!r} is not" if _HARMLESS.fullmatch(line) else " is not"
            wrong.append(f"line {number}{shown} topic,partition,offset")
            continue
        topic, partition, offset = parts[0], int(parts[1]), int(parts[2])
        if partition in offsets.setdefault(topic, {}):
            wrong.append(f"line {number}: {topic}[{partition}] is listed twice")
        offsets[topic][partition] = offset
    if wrong:
        more = f"; and {len(wrong) - _NAMED} more lines" if len(wrong) > _NAMED else ""
        raise BadUsage(
            f"{path}, {'; '.join(wrong[:_NAMED])}{more}", fix="write one line per partition, like trades,0,1500"
        )
    if not offsets:
        raise BadUsage(f"{path} names no partition", fix="write lines of topic,partition,offset, like trades,0,1500")
    return Target(kind="file", text=f"--from-file {path.name} ({digest_of(offsets)})", offsets=offsets)


def one_record(text: str) -> Target:
    """`trades:0:1234`, one record. Raises BadUsage for any other form."""
    topic, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    if not topic or not re.fullmatch(_NUMBER, partition) or not re.fullmatch(_NUMBER, offset):
        raise BadUsage(f"--skip {text!r} does not name a record", fix="give topic:partition:offset, like trades:0:1234")
    return Target(kind="skip", text=f"--skip {text}", offsets={topic: {int(partition): int(offset)}})


def until_of(text: str | None) -> Target | None:
    """Where a bounded replay stops: `current`, `latest`, an offset, or a date and time. Raises BadUsage for another
    form.
    """
    if text is None:
        return None
    if text == "latest":
        return Target(kind="latest", text="latest")
    if text == "current":
        # the current position of the release
        return Target(kind="shift", text="current", number=0)
    if re.fullmatch(_NUMBER, text):
        return Target(kind="offset", text=text, number=int(text))
    found = _time(text)
    if found is None:
        raise BadUsage(
            f"--until {text!r} is not a position",
            fix="give current, latest, an offset, or a time like 2026-11-01T00:00:00.000Z",
        )
    return Target(kind="datetime", text=text, at_ms=_milliseconds("--until", text, found))


def topics_of(text: str | None) -> dict[str, tuple[int, ...] | None]:
    """`trades:0,1,orders` -> `{"trades": (0, 1), "orders": None}`; None: every input.

    Raises BadUsage for a text that can't be read or names nothing, and for a topic or partition that is named twice.
    """
    if text is None:
        return {}
    found: dict[str, tuple[int, ...] | None] = {}
    newest = ""
    parts = [p.strip() for p in text.split(",") if p.strip()]
    if not parts:
        raise BadUsage(f"--input-topics {text!r} names no topic", fix="leave it out to move every input")
    for part in parts:
        if re.fullmatch(_NUMBER, part) and newest and found[newest] is not None:
            partition = int(part)
        else:
            newest, colon, first = part.partition(":")
            if not newest or newest in found or (colon and not re.fullmatch(_NUMBER, first)):
                raise BadUsage(
                    f"--input-topics {text!r}: {part!r} can't be read, or is named twice",
                    fix="write it like trades:0,1,orders",
                )
            found[newest] = () if colon else None
            if not colon:
                continue
            partition = int(first)
        known = found[newest] or ()
        if partition in known:
            raise BadUsage(f"--input-topics {text!r} names {newest}[{partition}] twice", fix="name it once")
        found[newest] = (*known, partition)
    return found


def export_to(path: Path, positions: Mapping[str, Mapping[int, int]]) -> None:
    """Writes positions, topic -> partition -> offset, to a new file, as `--from-file` reads them.

    Raises BadUsage if it can't write the file, also if the file exists or is a link.
    """
    try:
        with path.open("x") as file:
            file.write(as_lines(positions))
    except OSError as error:
        raise BadUsage(f"--export {path} can't be written: {error.strerror}", fix="name another file") from error


def digest_of(positions: Mapping[str, Mapping[int, int]]) -> str:
    """A short hash of the positions in a file, because a file with other positions is another reset."""
    return hashlib.sha256(as_lines(positions).encode()).hexdigest()[:8]


def as_lines(positions: Mapping[str, Mapping[int, int]]) -> str:
    """Topic -> partition -> offset as lines `topic,partition,offset`."""
    return "".join(f"{t},{p},{o}\n" for t, offsets in sorted(positions.items()) for p, o in sorted(offsets.items()))
