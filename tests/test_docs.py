"""What the documents tell to type exists: every command, argument and option of it. So do their links and examples."""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from orchestration.catalog import find_apps, topics_of
from orchestration.cli import build
from orchestration.sources import app_names
from pipelines.model import App, AppendStream, Avro, Changelog, Json, Raw, ResultOf, StaticTable, Stream, Text
from pipelines.model.app import Input
from pipelines.settings import Settings
from tests.shared import typed

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^\$ switchyard (?P<rest>.*?)(?:\s+#.*)?$", re.MULTILINE)
COMMANDS = sorted({match["rest"].removesuffix(" &") for page in PAGES for match in LINE.finditer(page.read_text())})


def test_the_documents_have_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_documents_can_be_typed(line: str) -> None:
    typed.require(line)


CODE = re.compile(r"^```[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """What links can point at in a page: its headings, as sites that show Markdown name them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors_of(target))):
            dead.append(link)
    assert dead == []


def functions_in(source: str) -> dict[str, str]:
    """The functions of a module without their docstrings, as text that comments and line breaks don't change."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            node.body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            found[node.name] = ast.unparse(node)
    return found


# the functions that pages show, and where they are from
SHOWN = {
    "word_count": "pipelines/apps/word_count.py",
    "stock_stats": "pipelines/apps/stock_stats.py",
    "suite": "expectations/suites/word_count.py",
    "product_views": "pipelines/apps/product_views.py",
    "notification_counts": "pipelines/apps/notification_counts.py",
    "payments": "tests/shared/payments/payments.py",
}


def test_the_examples_are_the_code_of_the_repository() -> None:
    shown = set()
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for name, function in functions_in(block).items():
                if name in SHOWN:
                    shown.add(name)
                    assert function == functions_in((ROOT / SHOWN[name]).read_text())[name], page.name
    assert shown == set(SHOWN)


@cache
def hook() -> Any:
    """The module that makes pages."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "hooks" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_a_page_for_each_command_with_its_options() -> None:
    pages = hook().pages()
    group: Any = typer.main.get_command(build())
    assert list(pages) == ["commands/index.md", *(f"commands/{name}.md" for name in group.commands)]
    for name, command in group.commands.items():
        text = pages[f"commands/{name}.md"]
        assert text.startswith(f"# `switchyard {name}`\n") and f"]({name}.md)" in pages["commands/index.md"]
        assert all(option in text for each in command.params for option in each.opts if option.startswith("-"))


def test_the_site_has_a_page_for_each_app_with_its_checks_and_its_code() -> None:
    pages = hook().app_pages()
    apps = find_apps()
    assert list(pages) == ["apps/index.md", *(f"apps/{app.name}.md" for app in apps)]
    for app in apps:
        text = pages[f"apps/{app.name}.md"]
        assert text.startswith(f"# {app.name}\n") and f"]({app.name}.md)" in pages["apps/index.md"]
        assert all(f"`{topic}`" in text for topic in topics_of(app)) and f'name="{app.name}"' in text
        assert (f"switchyard produce {app.name}" in text) == (app.name in app_names())
        assert not app.suites or "| schema |" in text


def test_no_row_that_is_too_large_stops_an_app_of_the_catalog() -> None:
    assert [app.name for app in find_apps() if app.oversized != "dead-letter"] == []


def test_the_page_of_an_app_says_how_each_of_its_inputs_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(**_: Any) -> None:
        """Reads everything."""

    inputs: dict[str, Input] = {
        "readings": Stream(topic="r", value=Avro('{"type": "record",\n "name": "reading"}')),
        "lines": Stream(topic="l", key="k string", value=Text("line")),
        "blobs": Stream(topic="b", value=Raw("blob")),
        "users": Changelog(topic=ResultOf("word-count"), key=Json("k string"), value=Json("n int")),
        "rates": StaticTable(topic="s", key="k string", value=Json("rate double")),
    }
    made = App(name="odd", inputs=inputs, results={"": AppendStream()}, function=odd)
    monkeypatch.setattr("orchestration.catalog.find_apps", lambda: (made,))
    rows = [line for line in hook().app_pages()["apps/odd.md"].splitlines() if line.startswith("| `")]
    assert rows == [
        '| `readings` | `r` | stream | not read | Avro: `{"type": "record", "name": "reading"}` |',
        "| `lines` | `l` | stream | text: `k string` | text: `line` |",
        "| `blobs` | `b` | stream | not read | bytes: `blob` |",
        "| `users` | [result of word-count](word-count.md) | table | JSON: `k string` | JSON: `n int` |",
        "| `rates` | `s` | static table | text: `k string` | JSON: `rate double` |",
    ]


def test_the_page_of_settings_is_what_the_settings_say_of_themselves() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    assert page == hook().settings_page(), "run `python docs/hooks/pages.py`"
    for name, field in Settings.model_fields.items():
        assert f"\n### {name}\n\n`SWITCHYARD_{name.upper()}` · default: " in page
        assert field.description and re.search(r"\b(Set|Raise|Lower|Change|change)\b", field.description), name


VARIABLE = re.compile(r"\bSWITCHYARD_[A-Z_]*[A-Z]\b")
# names that are no one's to set: what a driver is told, what tests and `make runbook` set, and examples
OURS = {
    "SWITCHYARD_CODE",
    "SWITCHYARD_RELEASE",
    "SWITCHYARD_RUNBOOK",
    "SWITCHYARD_WORKER_INSTALLED",
    "SWITCHYARD_STATE_SECRET",
}


def test_each_variable_that_is_read_is_on_the_page_of_settings() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    files = [
        ROOT / "Makefile",
        *(p for name in ("pipelines", "orchestration", "expectations") for p in (ROOT / name).rglob("*.py")),
    ]
    read = {name for path in files for name in VARIABLE.findall(path.read_text())}
    assert {name for name in read - OURS if f"`{name}`" not in page and f"### {name}\n" not in page} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_of_a_page_is_longer_than_120_characters(page: Path) -> None:
    assert [line for line in page.read_text().splitlines() if len(line) > 120] == []
