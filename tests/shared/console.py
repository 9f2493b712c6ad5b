"""The console blocks of a page: their commands, what these printed, and whether they still print that."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from pipelines.settings import Settings

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
# a command may continue on the next line, after a backslash
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_ID = re.compile(r"\b([a-z]+)-\d{8}-\d{6}-[0-9a-f]{4}\b")
# everything that depends on machine, time or speed: numbers with their units, but not the name of a release
_RELEASE = re.compile(r"\b[a-z-]+\.v\d+(?:\.g\d+)?\b")
_WORD = re.compile(r"[A-Za-z_]+")
# how a page breaks a long line, so that none is longer than the others
_WIDTH, _CONTINUED = 120, " " * 10
# a page leaves out lines here
_LEFT_OUT = "..."
_OF_THE_JVM = ("WARNING: Using incubator modules", "NOTE: Picked up JDK_JAVA_OPTIONS", "Picked up JAVA_TOOL_OPTIONS")
_UNITS = {"B", "KiB", "MiB", "GiB", "of", "s", "min", "h", "d", "ms"}


@dataclass(frozen=True)
class Shown:
    """A command of a page, and the lines below it."""

    command: str
    output: str


def sections(page: str) -> dict[str, str]:
    """The headings of the second level, and the text below each."""
    return dict(zip(*[iter(re.split(r"^## (.*)\n", page, flags=re.MULTILINE)[1:])] * 2, strict=True))


def blocks(page: str, section: str) -> list[list[Shown]]:
    """The console blocks below a heading. Raises KeyError if there is no such heading."""
    found = []
    for block in _BLOCK.findall(sections(page)[section]):
        pieces = _COMMAND.split(block)[1:]
        found.append([Shown(c, o) for c, o in zip(pieces[::2], pieces[1::2], strict=True)])
    return found


def compare(path: Path, section: str, block: int, found: Sequence[Shown]) -> None:
    """Asserts that the commands of a block still print the page's words; numbers, times and ids may differ.

    Where the page leaves out lines, the others must be in the output, in this order. `SWITCHYARD_RUNBOOK=write` writes
    what was found into the page instead, and leaves out the same lines.
    """
    page = path.read_text()
    pairs = list(zip(blocks(page, section)[block], found, strict=True))
    kept = [_selected(shown.output, given.output) for shown, given in pairs]
    if os.environ.get("SWITCHYARD_RUNBOOK") == "write":
        taken = [Shown(g.command, g.output if k is None else k) for (_, g), k in zip(pairs, kept, strict=True)]
        path.write_text(written(page, section, block, taken))
        return
    for (shown, given), output in zip(pairs, kept, strict=True):
        assert output is not None and words(output) == words(shown.output), f"$ {given.command}\n{given.output}"


def _selected(shown: str, given: str) -> str | None:
    """The lines of an output that a page shows; all, if it leaves out none. None: one of them is not in the output."""
    if _LEFT_OUT not in shown.splitlines():
        return given
    kept, left = [], _whole_lines(given)
    for line in _whole_lines(shown):
        if line != _LEFT_OUT:
            place = next((n for n, each in enumerate(left) if words(each) == words(line)), None)
            if place is None:
                return None
            line, left = left[place], left[place + 1 :]
        kept.append(f"{line}\n")
    return "".join(kept)


def _whole_lines(output: str) -> list[str]:
    return re.split(rf"\n(?!{_CONTINUED})", output.removesuffix("\n"))


def written(page: str, section: str, block: int, shown: Sequence[Shown]) -> str:
    """The page with other commands and outputs in one of its blocks."""
    head = page.index(f"## {section}\n")
    match = list(_BLOCK.finditer(page, head))[block]
    text = "".join(f"$ {each.command}\n{each.output}" for each in shown)
    return f"{page[: match.start()]}```console\n{text}```{page[match.end() :]}"


def as_shown(output: str, settings: Settings) -> str:
    """An output without what is special to this machine, its name and its paths, and without the JVM's own lines. Breaks
    long lines.
    """
    text = output.replace(str(settings.state_dir), ".switchyard")
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "vm", text)
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith(_OF_THE_JVM)]
    return "".join(part + "\n" for line in lines for part in _broken(line))


def _broken(line: str) -> list[str]:
    parts = wrap(line, _WIDTH, subsequent_indent=_CONTINUED, break_long_words=False, break_on_hyphens=False)
    return parts if len(line) > _WIDTH else [line]


def words(output: str) -> list[list[str]]:
    """The words of each line, with the names of releases: these must be the same in every run."""
    found = []
    for line in output.replace(f"\n{_CONTINUED}", " ").splitlines():
        names = _RELEASE.findall(line)
        rest = _RELEASE.sub(" ", _ID.sub(r" \1 ", line))
        found.append([*names, *(w for w in _WORD.findall(rest) if w not in _UNITS)])
    return [line for line in found if line]


def identifier(kind: str, command: str) -> str | None:
    """The id of the operation that a command names, if it is one of `kind`."""
    found = _ID.search(command)
    return found.group(0) if found and found.group(1) == kind else None
