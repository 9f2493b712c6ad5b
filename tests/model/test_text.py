from __future__ import annotations

import json

import pytest

from pipelines.model.text import json_text, markdown, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, and ünïcödé, 日本, 👩‍💻", None),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]52;c;aGk=\x07", "\\x1b]52;c;aGk=\\x07"),
        ("over\rwritten\x08", "over\\rwritten\\x08"),
        ("\x00\x7f\x9b31m\x85", "\\x00\\x7f\\x9b31m\\x85"),
        ("a\u202eb\u2066c\u200fd", "a\\u202eb\\u2066c\\u200fd"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("hidden\U000e0041", "hidden\\U000e0041"),
        # what a name of a file may hold: no encoding can write it
        ("\udcff", "\\udcff"),
        ("[red]x[/red] [link=http://x]", None),
        ("two\nlines\tand a tab", "two\\nlines\\tand a tab"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_by_its_number(text: str, shown: str | None) -> None:
    assert visible(text) == (text if shown is None else shown)
    visible(text).encode()


def test_line_feeds_and_tabs_of_ours_stay() -> None:
    assert visible("a\n\tb\rc\x1b", lines=True) == "a\n\tb\\rc\\x1b"


def test_no_control_character_is_left_of_all_there_are() -> None:
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    assert visible(every).isprintable() and visible(every, lines=True).replace("\n", "").replace("\t", "").isprintable()


def test_json_escapes_by_its_own_rules_and_can_be_read_back() -> None:
    value = {"a\x1b": "\x7f\x9b\u202e\n<script>é"}
    text = json_text(value)
    assert text.isascii() and text.isprintable()
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("<img src=x onerror=y>", "&lt;img src=x onerror=y&gt;"),
        ("[a](javascript:b) ![c](d)", "\\[a\\](javascript:b) \\!\\[c\\](d)"),
        ("a|b\nc`d`", "a\\|b\\nc\\`d\\`".replace("\\n", "\\\\n")),
        ("&lt;", "&amp;lt;"),
        ("stock-stats.v2: 5 of 7 (0.1%)", "stock-stats.v2: 5 of 7 (0.1%)"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str, shown: str) -> None:
    assert markdown(text) == shown
