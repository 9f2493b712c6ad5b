"""Pages that no one writes: one per command, those that are kept beside the README, and settings.md. A hook of MkDocs.

The text of a command's page is Typer's own, as `typer utils docs` prints it. `python docs/hooks/pages.py` writes
docs/settings.md from the descriptions in pipelines/settings.py.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]
COPIED = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
# the item of the navigation that the commands' pages are put under
SECTION = "Commands"
SETTINGS = ROOT / "docs" / "settings.md"
# title of a group of settings -> the first one in it; the order is that of the class
GROUPS = {
    "Kafka": "bootstrap_servers",
    "This machine": "state_dir",
    "Drivers": "driver_heap_mb",
    "Batches": "trigger_s",
    "Failures and waits": "heartbeat_s",
}
UNITS = {"_s": "s", "_mb": "MiB"}


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


def settings_page() -> str:
    """docs/settings.md: every setting with its variable, default, unit, limits, and what its description says."""
    from pipelines.settings import Settings

    titles = {first: title for title, first in GROUPS.items()}
    parts = [_INTRODUCTION]
    for name, field in Settings.model_fields.items():
        if name in titles:
            parts.append(f"## {titles[name]}")
        facts = [f"`SWITCHYARD_{name.upper()}`", *_value(name, field)]
        parts.append(f"### {name}")
        parts.append(" · ".join(facts))
        parts.append(_wrapped(field.description or ""))
    return "\n\n".join([*parts, _OTHERS]) + "\n"


_INTRODUCTION = """\
# Settings

Every setting of Switchyard, with its default. You need to change none of them to try it on your own machine.

Write a setting as a line of `switchyard.toml` in the folder where you run commands, or put it into the environment as
`SWITCHYARD_<NAME>`. The environment wins. A table or a list is JSON in the environment.

```toml
driver_heap_mb = 2048
driver_environment = ["AWS_PROFILE"]

[spark]
"spark.sql.adaptive.enabled" = "false"
```

```console
$ export SWITCHYARD_DRIVER_HEAP_MB=2048
$ export SWITCHYARD_DRIVER_ENVIRONMENT='["AWS_PROFILE"]'
```

A process reads the settings when it starts. So after a change, restart `switchyard supervise` and Dagster. If drivers
use the setting, stop and start each release: `switchyard stop RELEASE --execute`, then
`switchyard start RELEASE --execute`. A wrong setting stops every command, with exit code 2 and the name of the setting.

This page is made of `pipelines/settings.py`."""

_OTHERS = """\
## Only in the environment

These are not in `switchyard.toml`.

### SWITCHYARD_ALERT_WEBHOOK

An address that gets each alert as `{"text": ...}`. It counts as a secret. Set it so that someone hears of a release
that needs help; see [operating](operating.md#alerts).

### SWITCHYARD_JARS_DIR

Folder of the jars. Default: `.switchyard/jars` of the checkout. Set it to share the jars between checkouts.

### SWITCHYARD_MAVEN_URL

A mirror of Maven Central. `make setup` fetches the jars from it. Set it on a machine that can't reach the internet; see
[deploying](deploying.md#behind-a-proxy-or-from-a-mirror)."""


def _value(name: str, field: Any) -> Iterator[str]:
    """The default of a setting, with its unit, and the limits of its value."""
    default = field.get_default(call_default_factory=True)
    unit = next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "bytes" if "bytes" in name else "")
    if default is None or default == {} or default == ():
        yield "default: none"
    else:
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        yield f"default: `{shown}` {unit}".rstrip()
    limits = {type(each).__name__: each for each in field.metadata}
    if "Ge" in limits:
        least = limits["Ge"].ge
        yield f"from {least} to {limits['Le'].le}" if "Le" in limits else f"{least} or more"
    if "Gt" in limits:
        yield f"more than {limits['Gt'].gt}"


def _wrapped(text: str) -> str:
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


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


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    SETTINGS.write_text(settings_page())
