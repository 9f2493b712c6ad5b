"""Pages of the site that no one writes: one per command, and those that are kept beside the README. A hook of MkDocs.

The text of a command's page is Typer's own, as `typer utils docs` prints it.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
COPIED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
# the item of the navigation that the commands' pages are put under
SECTION = "Commands"


def pages() -> dict[str, str]:
    """Path in docs/ -> Markdown, of each command, in the order of `switchyard --help`, and of their index."""
    import typer.main
    from typer.cli import get_docs_for_click

    sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
    from orchestration.cli import build

    group: Any = typer.main.get_command(build())
    context = typer.Context(group, info_name="switchyard", **group.context_settings)
    found = {
        f"commands/{name}.md": get_docs_for_click(obj=command, ctx=context, name=name, call_prefix="switchyard")
        for name, command in group.commands.items()
    }
    rows = [f"| [`{name}`]({name}.md) | {_first_line(command.help)} |" for name, command in group.commands.items()]
    index = "\n".join(["# Commands", "", group.help, "", "| command | what it does |", "|---|---|", *rows, ""])
    return {"commands/index.md": index, **found}


def copied() -> dict[str, str]:
    """Path in docs/ -> Markdown, of the pages beside the README."""
    return {page: (ROOT / name).read_text().replace("](docs/", "](") for page, name in COPIED.items()}


def _first_line(text: str | None) -> str:
    return inspect.cleandoc(text or "").partition("\n")[0].replace("|", r"\|")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the commands into the navigation."""
    for section in config.nav or ():
        for item in next(iter(section.values())):
            if isinstance(item, dict) and SECTION in item:
                item[SECTION] = list(pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages to the site."""
    from mkdocs.structure.files import File

    for path, content in {**pages(), **copied()}.items():
        files.append(File.generated(config, path, content=content))
    return files
