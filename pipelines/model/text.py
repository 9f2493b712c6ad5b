"""Text from records, the registry or errors, made safe for where it is shown: a terminal, a log, Markdown.

Nothing here shortens or drops text: a character that can't be shown as it is appears as its number.
"""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

# control characters, lone surrogates (no encoding can write them), line and paragraph separators
_HIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
# these change the direction of the text around them: a line would look different from what it is
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# letters that no terminal draws, used to hide text in text
_TAGS = range(0xE0000, 0xE0080)
_PUNCTUATION = re.compile(r"([\\`*_\[\]#|~!])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def visible(text: str, *, lines: bool = False) -> str:
    """`text` with each control character, start of an escape sequence and change of direction as its number: `\\x1b`.

    `lines`: keep line feeds and tabs, because the text is ours. In text from a record they are replaced; otherwise a
    record could start a line that looks like ours.
    """
    # true for nearly all text, and fast
    if text.isprintable() and text.isascii():
        return text
    return "".join(c if _is_shown(c, lines) else _named(c) for c in text)


def _is_shown(char: str, lines: bool) -> bool:
    if lines and char in "\n\t":
        return True
    return not (unicodedata.category(char) in _HIDDEN or char in _BIDI or ord(char) in _TAGS)


def _named(char: str) -> str:
    number = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def counted(number: int, what: str) -> str:
    """A number of things in words, such as "1 late row" or "2,000 late rows"."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON in ASCII, by JSON's own rules. What JSON doesn't know, such as a path, becomes text."""
    # the only control character that JSON leaves as it is
    return json.dumps(value, indent=indent, default=str).replace("\x7f", "\\u007f")


def markdown(text: str) -> str:
    """`text` as Markdown that shows exactly that: no tag, picture, code or table cell starts or ends in it, and no
    link shows another address than its own.
    """
    escaped = _PUNCTUATION.sub(r"\\\1", visible(text))
    return "".join(_ENTITIES.get(char, char) for char in escaped)


def utc(at_ms: int) -> str:
    """A time, in milliseconds since the epoch, as `2026-11-25 16:05:00`. A time outside the calendar stays a number."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, OSError, ValueError):
        return f"{at_ms} ms"
