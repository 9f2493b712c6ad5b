"""What went wrong, in one line: the part of a long error that names the cause."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors.exceptions.captured import convert_exception

from pipelines.errors import SwitchyardError
from pipelines.secrets import masked
from pipelines.settings import Settings

_LONGEST_CHARS = 1500
_PLATFORM = Path(__file__).parents[1]
_TRACEBACK = "Traceback (most recent call last)"
# the last line of a Python traceback: `ValueError: not a price`, `decimal.InvalidOperation: [...]`, `KeyError`
_RAISED = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)')
# what Spark says below the error of a column: how and where the column was made
_OF_A_FRAME = "== DataFrame =="
_CALLED = re.compile(r'".+" was called from')
_PLACE = re.compile(r"(?P<file>.+\.py):(?P<line>\d+)")
# the last line of what Spark could not resolve
_BEFORE_PLAN = re.compile(r"SQLSTATE: \w{5};$")
# parts of the path of a frame that is not the author's: Python, its packages, compiled ones too, and Spark's worker
_NOT_AN_AUTHORS = re.compile(r"/site-packages/|/lib/python\d|/pyspark/|\.pxi$|\.pyx$|^<frozen |^<string>")
# what pyarrow raises for a time that pandas, which counts nanoseconds in 64 bits, does not have
_NO_TIME_OF_PANDAS = re.compile(r".*ArrowInvalid: .*\bout of bounds timestamp: -?\d+")
_NUMBERS_INSTEAD = "pandas has no time before 1677 or after 2262. Give Python numbers: `time_us` for event_time, `unix_micros` for others"


def cause(error: BaseException, lines: int = 4) -> str:
    """The first `lines` lines that say something, without stack frames. For an error of a Python worker, they are what
    it raised.
    """
    text = error.what if isinstance(error, SwitchyardError) else str(error) or type(error).__name__
    # there is no stack trace below
    text = text.replace(" Please see the stack trace below.", "")
    found = [line.rstrip() for line in _of_spark(text.splitlines()) if line.strip()]
    useful = [line.strip() for line in found if not line.lstrip().startswith(("at ", "File "))]
    raised = _raised(found)
    if raised:
        # keep the first line, unless it is the traceback's; the others are frames of the worker
        useful = [*(line for line in useful[:1] if _TRACEBACK not in line), *raised]
    elif below := _raised(line for each in _below(error) for line in str(each).splitlines()):
        # of the process that runs the `init` of a StatefulProcessor, Spark says above this only that it has crashed
        useful = below
    return _shown(useful[:lines])


def _shown(said: Iterable[str]) -> str:
    return masked(" | ".join(said))[:_LONGEST_CHARS]


def _below(error: BaseException) -> Iterator[BaseException]:
    """The errors of the JVM that caused an error of Spark's, the last one first. PySpark shows none of them."""
    found = getattr(error, "_cause", None)
    while isinstance(found, BaseException):
        yield found
        found = getattr(found, "_cause", None)


def of_jvm(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors of the JVM that caused it, as PySpark converts them.

    One that it doesn't know becomes an UnknownException, whose text begins with the name of its Java class.
    """
    if isinstance(error, Py4JJavaError):
        # a JVM that has ended can't be asked
        with suppress(Py4JError, ConnectionError):
            error = convert_exception(error.java_exception)
    yield error
    yield from _below(error)


def _of_spark(lines: Iterable[str]) -> list[str]:
    """The lines of an error, shortened.

    Leaves out the plan that Spark shows below a name that it could not resolve. Puts the place where a failed column was
    made after the message, as in `[DIVIDE_BY_ZERO] Division by zero (prices.py, line 7)`.
    """
    found: list[str] = []
    called = False
    for line in lines:
        if _BEFORE_PLAN.search(line):
            return [*found, line.removesuffix(";")]
        place = _PLACE.fullmatch(line.strip()) if called else None
        called = _CALLED.fullmatch(line.strip()) is not None
        if place is not None and found:
            found[-1] += f" ({place['file'].rpartition('/')[2]}, line {place['line']})"
        elif not called and line != _OF_A_FRAME:
            found.append(line)
    return found


def is_lost_contact(error: BaseException) -> bool:
    """Whether an error means that the JVM doesn't answer. An exception that the JVM threw is an answer."""
    return isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)


def jvm_ended(release: str, code: int, settings: Settings) -> SwitchyardError:
    """The error for a JVM that has ended by itself. `code`: the exit code of its process, or of the shell around it."""
    number = -code if code < 0 else code - 128 if code > 128 else None
    heap, batch = settings.driver_heap_mb, settings.max_bytes_per_batch
    if number is None:
        return SwitchyardError(
            f"the JVM of {release} ended with exit code {code}, most likely because its heap was full",
            fix=f"start the release with a larger SWITCHYARD_DRIVER_HEAP_MB ({heap}): the planned batch keeps its size; a smaller "
            f"SWITCHYARD_MAX_BYTES_PER_BATCH ({batch}) makes later batches smaller",
        )
    by_kernel = (
        "; if nobody sent it, the machine or its container is short of memory" if number == signal.SIGKILL else ""
    )
    return SwitchyardError(
        f"the JVM of {release} was ended by signal {number}{by_kernel}",
        fix=f"`switchyard start {release} --execute`; a smaller SWITCHYARD_DRIVER_HEAP_MB ({heap}) makes it use less memory",
    )


def place(error: BaseException) -> str:
    """Where in an author's code `error` was raised, as ` (prices.py, line 6, in price)`; nothing, if it wasn't there.

    This is for an error of this process; `cause` gives the place of an error that a Python worker reported.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_an_authors(frame.filename)]
    return f" ({_told(own[-1].filename, own[-1].lineno, own[-1].name)})" if own else ""


def _is_an_authors(file: str) -> bool:
    """Whether a file is an app's, not Python's, Spark's or the platform's."""
    path = Path(file)
    ours = path.is_relative_to(_PLATFORM) and not path.is_relative_to(_PLATFORM / "apps")
    return not ours and not _NOT_AN_AUTHORS.search(file)


def _told(file: str, line: int | str | None, name: str) -> str:
    return f"{file.rpartition('/')[2]}, line {line}, in {name}"


@dataclass(frozen=True, slots=True)
class FailedAt:
    """An error of an author's code in a Python worker. `place`: `prices.py, line 6, in price`. `raised`: error and message."""

    place: str
    raised: str


def failed_at(error: BaseException) -> FailedAt | None:
    """Where an author's code has failed, by what a Python worker reported; None: it has not."""
    for each in (error, *_below(error)):
        for end in _ends(str(each).splitlines()):
            if end.place:
                return FailedAt(end.place, _shown([end.raised]))
    return None


def _raised(lines: Iterable[str]) -> list[str]:
    """What each Python traceback in `lines` ends with, and where in an author's code; the innermost cause first, each once."""
    said = [f"{end.raised} ({end.place})" if end.place else end.raised for end in _ends(lines)]
    return list(dict.fromkeys(said))


def _ends(lines: Iterable[str]) -> Iterator[FailedAt]:
    """How each Python traceback in `lines` ends."""
    inside, where = False, ""
    for line in lines:
        if _TRACEBACK in line:
            inside, where = True, ""
        elif inside and (frame := _FRAME.match(line)):
            if _is_an_authors(frame["file"]):
                where = _told(*frame.group("file", "line", "name"))
        elif inside and line.strip() and not line[0].isspace():
            inside = False
            if _RAISED.fullmatch(line):
                yield FailedAt(where, f"{line}. {_NUMBERS_INSTEAD}" if _NO_TIME_OF_PANDAS.fullmatch(line) else line)
