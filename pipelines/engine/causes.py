"""What went wrong, in one line: the part of a long error that names the cause."""

from __future__ import annotations

import re
import signal

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from pipelines.errors import SwitchyardError
from pipelines.secrets import masked
from pipelines.settings import Settings

_LONGEST_CHARS = 1500
_TRACEBACK = "Traceback (most recent call last)"
# the last line of a Python traceback: `ValueError: not a price`, `decimal.InvalidOperation: [...]`, `KeyError`
_RAISED = re.compile(r"[A-Za-z_][\w.]*(: .*)?")


def cause(error: BaseException, lines: int = 4) -> str:
    """The first `lines` lines that say something, without stack frames. Of a Python worker's error, what it raised."""
    text = error.what if isinstance(error, SwitchyardError) else str(error) or type(error).__name__
    # there is no stack trace below
    text = text.replace(" Please see the stack trace below.", "")
    found = [line.rstrip() for line in text.splitlines() if line.strip()]
    useful = [line.strip() for line in found if not line.lstrip().startswith(("at ", "File "))]
    raised = _raised(found)
    if raised:
        # keep the first line, unless it is the traceback's; the others are frames of the worker
        useful = [*(line for line in useful[:1] if _TRACEBACK not in line), *raised]
    return masked(" | ".join(useful[:lines]))[:_LONGEST_CHARS]


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


def _raised(lines: list[str]) -> list[str]:
    """The last line of each Python traceback in `lines`, the innermost cause first, without repetitions."""
    ends: list[str] = []
    inside = False
    for line in lines:
        if _TRACEBACK in line:
            inside = True
        elif inside and not line[0].isspace():
            inside = False
            if _RAISED.fullmatch(line):
                ends.append(line)
    return list(dict.fromkeys(ends))
