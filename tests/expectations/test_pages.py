"""What a page of the Data Docs makes of a record, a check or an error that would be markup."""

from __future__ import annotations

import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from great_expectations.expectations import ExpectColumnValuesToNotBeNull
from jinja2 import Environment
from pyspark.sql import SparkSession

from expectations.gate import check_rows
from expectations.pages import escaped
from expectations.suites.base import Check, rows, skipped
from tests.expectations.tables import request

ATTACKS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"><svg onload=alert(3)>'",
    "$styling $template {{ 7 * 7 }}",
    "\x1b]8;;http://x\x07red\u202e",
)


class Tags(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def planted(page: Path) -> list[str]:
    """What of the attacks is markup in a page."""
    raw = page.read_text()
    tags = Tags(raw)
    found = [tag for tag, attrs in tags.found if tag == "svg" or (tag == "img" and attrs.get("src") == "x")]
    found += [name for _, attrs in tags.found for name, value in attrs.items() if "alert(" in f"{name}={value}"]
    return found + re.findall(r"<script>\s*alert\(\d\)", raw) + re.findall(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", raw)


def _literal(text: str) -> str:
    """A text in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.mark.spark
def test_no_page_runs_code_from_a_record(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(attack, 1) for attack in ATTACKS], "word string, count bigint").coalesce(1)
    checks = [
        # a sample of one record is shown: each attack has its check
        *[
            rows(f"word {number}", f"word != {_literal(attack)}", detail=f"as in {attack}")
            for number, attack in enumerate(ATTACKS)
        ],
        Check(
            name="column",
            detail="one that is not there",
            expectation=partial(ExpectColumnValuesToNotBeNull, column=ATTACKS[0]),
        ),
        rows("errored", f"`{ATTACKS[1]}` > 0", detail=f"a column that is not there: {ATTACKS[0]}"),
        skipped("skipped", ATTACKS[0]),
    ]
    verdict = check_rows(frame, checks, request(tmp_path))
    assert [each.outcome for each in verdict.results] == ["failed"] * 5 + ["errored"] * 2 + ["skipped"]
    # for programs: as it is
    assert ATTACKS[1] in verdict.results[1].sample[0]
    assert verdict.docs is not None
    suites = list((tmp_path / "expectations").rglob("*.html"))
    assert len(suites) == 1
    for page in (verdict.docs, *suites, tmp_path / "index.html"):
        assert planted(page) == [], page
    # escaped once, not twice: a person reads what the record holds
    read = Tags(verdict.docs.read_text()).text
    assert ATTACKS[0] in read and ATTACKS[1] in read and "\\x1b]8;;http://x\\x07red\\u202e" in read
    assert "&lt;" not in read


@pytest.mark.spark
def test_a_process_compiles_each_template_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []
    compile_it = Environment.compile

    def compile_and_tell(self: Environment, *source: Any, **options: Any) -> Any:
        compiled.append(source[1:2])
        return compile_it(self, *source, **options)

    frame = spark.createDataFrame([("a", 1)], "word string, count bigint").coalesce(1)
    checks = [rows("positive", "count > 0", detail="more than none")]
    check_rows(frame, checks, request(tmp_path / "first"))
    monkeypatch.setattr(Environment, "compile", compile_and_tell)
    docs = check_rows(frame, checks, request(tmp_path / "second")).docs
    # the result's page, its suite's and the index
    assert docs is not None and len(list((tmp_path / "second").rglob("*.html"))) == 3
    assert compiled == []


def test_text_is_escaped_wherever_it_is() -> None:
    found = escaped({"<b>": ["<i>", ("a\x1b[0m", 1)], "n": None, "bytes": [b"<b>", bytearray(b"<i>\x1b")]})
    assert found == {
        "&lt;b&gt;": ["&lt;i&gt;", ["a\\x1b[0m", 1]], "n": None,
        "bytes": ["b&#x27;&lt;b&gt;&#x27;", "b&#x27;&lt;i&gt;\\x1b&#x27;"],
    }  # fmt: skip
