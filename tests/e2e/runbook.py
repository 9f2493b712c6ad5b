"""The runbook's console blocks: their commands, what these printed, and whether they still print that."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from pipelines.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_ID = re.compile(r"\b([a-z]+)-\d{8}-\d{6}-[0-9a-f]{4}\b")
# everything that depends on machine, time or speed: numbers with their units, but not the name of a release
_RELEASE = re.compile(r"\b[a-z-]+\.v\d+(?:\.g\d+)?\b")
_WORD = re.compile(r"[A-Za-z_]+")
# how the page breaks a long line, so that none is longer than those of the other pages
_WIDTH, _CONTINUED = 120, " " * 10
_OF_THE_JVM = ("WARNING: Using incubator modules", "NOTE: Picked up JDK_JAVA_OPTIONS", "Picked up JAVA_TOOL_OPTIONS")
_UNITS = {"B", "KiB", "MiB", "GiB", "of", "s", "min", "h", "d", "ms"}


@dataclass(frozen=True)
class Shown:
    """A command of the page, and the lines below it."""

    command: str
    output: str


def blocks(page: str, section: str) -> list[list[Shown]]:
    """The console blocks below a heading. Raises KeyError if there is no such heading."""
    parts = dict(zip(*[iter(re.split(r"^## (.*)\n", page, flags=re.MULTILINE)[1:])] * 2, strict=True))
    found = []
    for block in _BLOCK.findall(parts[section]):
        pieces = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
        found.append([Shown(c, o) for c, o in zip(pieces[::2], pieces[1::2], strict=True)])
    return found


def written(page: str, section: str, block: int, shown: list[Shown]) -> str:
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
