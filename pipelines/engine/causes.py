"""What went wrong, in a line: the part of a long error that tells a person the cause."""

from __future__ import annotations

import re
import signal

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from pipelines.errors import SwitchyardError
from pipelines.secrets import masked
from pipelines.settings import Settings

_LONGEST_CHARS = 1500
_TRACEBACK = "Traceback (most recent call last)"
# as Python ends a traceback: `ValueError: not a price`, `decimal.InvalidOperation: [...]`, `KeyError`
_RAISED = re.compile(r"[A-Za-z_][\w.]*(: .*)?")


def cause(error: BaseException, lines: int = 4) -> str:
    """The first lines that say something, no frames among them; for a Python worker's error what it raised."""
    text = error.what if isinstance(error, SwitchyardError) else str(error) or type(error).__name__
    # what stands below is not shown
    text = text.replace(" Please see the stack trace below.", "")
    found = [line.rstrip() for line in text.splitlines() if line.strip()]
    useful = [line.strip() for line in found if not line.lstrip().startswith(("at ", "File "))]
    raised = _raised(found)
    if raised:
        # the first line may be the traceback's own; the rest of it is the worker's machinery
        useful = [*(line for line in useful[:1] if _TRACEBACK not in line), *raised]
    return masked(" | ".join(useful[:lines]))[:_LONGEST_CHARS]


def is_lost_contact(error: BaseException) -> bool:
    """Whether an error says that the JVM doesn't answer; what it has thrown itself is an answer."""
    return isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)


def jvm_ended(release: str, code: int, settings: Settings) -> SwitchyardError:
    """That the JVM of a release has ended by itself; `code`: as its process, or the shell around it, ended."""
    number = -code if code < 0 else code - 128 if code > 128 else None
    heap, batch = settings.driver_heap_mb, settings.max_bytes_per_batch
    if number is None:
        return SwitchyardError(
            f"the JVM of {release} has ended with exit code {code}: out of heap, as a rule",
            fix=f"start it with a larger SWITCHYARD_DRIVER_HEAP_MB ({heap}), as the batch that is planned stays as it is; by a smaller "
            f"SWITCHYARD_MAX_BYTES_PER_BATCH ({batch}) later ones are smaller",
        )
    by_kernel = (
        ": where nobody did, the machine or its container is short of memory" if number == signal.SIGKILL else ""
    )
    return SwitchyardError(
        f"the JVM of {release} was ended by signal {number}{by_kernel}",
        fix=f"`switchyard start {release} --execute`; with a smaller SWITCHYARD_DRIVER_HEAP_MB ({heap}) it takes less of the memory",
    )


def _raised(lines: list[str]) -> list[str]:
    """What each Python traceback in `lines` ends with, the innermost cause first, each once."""
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
