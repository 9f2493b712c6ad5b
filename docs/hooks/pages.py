"""Pages that no one writes: one per command and per app, those that are kept beside the README, and settings.md. A hook of MkDocs.

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
APPS = "Apps"
SETTINGS = ROOT / "docs" / "settings.md"
# title of a group of settings -> the first one in it; the order is that of the class
GROUPS = {
    "Kafka": "bootstrap_servers",
    "This machine": "state_dir",
    "Drivers": "driver_heap_mb",
    "Batches": "target_latency_s",
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


def app_pages() -> dict[str, str]:
    """Path in docs/ -> Markdown, of each app of the repository, and of their index."""
    sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]
    from orchestration.catalog import find_apps, first_sentence, in_words

    found = find_apps()
    rows = [
        f"| [`{a.name}`]({a.name}.md) | {a.shows or ''} | {in_words(a)} | {_first_line(first_sentence(a))} |"
        for a in found
    ]
    head = [
        "# Apps",
        "",
        "The apps of the repository, as examples to learn from and to try. `switchyard apps` lists them, too.",
        "",
    ]
    index = "\n".join([*head, "| app | shows | result | what it does |", "|---|---|---|---|", *rows, ""])
    return {"apps/index.md": index, **{f"apps/{a.name}.md": _app_page(a) for a in found}}


def _topic(source: Any) -> str:
    """A topic, or the app whose result is read, with a link to its page."""
    of = source.topic
    return f"`{of}`" if isinstance(of, str) else f"[{of}]({of.app}.md)"


def _app_page(app: Any) -> str:
    """What an app reads and writes, its checks, its code, and how to try it."""
    from expectations.suites import SuiteInputs, checks_of
    from orchestration.catalog import result_in_words
    from orchestration.sources import app_names

    reads = [
        f"| `{name}` | {_topic(i)} | {_kind(i)} | {_form(i.key)} | {_form(i.value)} |" for name, i in app.inputs.items()
    ]
    facts = [
        f"- **Result{f' `{name}`' if name else ''}**: {result_in_words(result)}, {result.partitions} partitions."
        for name, result in app.results.items()
    ]
    facts += [f"- **Watermark**: {app.watermark}."] if app.watermark else []
    facts += [f"- **Setting** `{name}`: {value!r} by default." for name, value in app.settings.items()]
    parts = [f"# {app.name}", inspect.cleandoc(app.function.__doc__ or "")]
    parts += ["| input | topic | read as | key | value |\n|---|---|---|---|---|\n" + "\n".join(reads), "\n".join(facts)]
    if app.name in app_names():
        before = "".join(f"{_FIRST.format(app=of.app)}\n" for of in app.upstream.values())
        parts += ["## Try it", _TRY.format(app=app.name, before=before)]
    for name, suite in app.suites.items():
        checks = checks_of(suite, SuiteInputs(app_settings=app.settings))
        lines = [f"| {_first_line(c.name)} | {_first_line(c.detail)} |" for c in checks]
        parts += [
            f"## Checks{f' of {name}' if name else ''}",
            "| check | what it expects |\n|---|---|\n" + "\n".join(lines),
        ]
    source = Path(inspect.getfile(app.function)).read_text().rstrip()
    parts += ["## Code", f"```python\n{source}\n```"]
    return "\n\n".join(parts) + "\n"


_FIRST = "$ switchyard reprocess {app} --auto-promote --execute"
_TRY = """\
```console
$ switchyard produce {app} --history 100000
{before}$ switchyard stage {app} --execute
$ switchyard start {app} --execute
$ switchyard wait {app}.v1
$ switchyard check {app}.v1
$ switchyard promote {app}.v1 --execute
$ switchyard follow {app} --from-beginning
```"""


def _kind(source: Any) -> str:
    return {"Changelog": "table", "StaticTable": "static table"}.get(type(source).__name__, "stream")


def _form(part: Any) -> str:
    """How a key or a value is written in its topic."""
    if part is None:
        return "not read"
    if isinstance(part, str):
        return f"text: `{part}`"
    match type(part).__name__:
        case "Json":
            return f"JSON: `{part.schema}`"
        case "Avro":
            # the text of a schema may have line breaks, which end the row of a table
            return f"Avro: `{' '.join(part.schema.split())}`"
        case "Text":
            return f"text: `{part.column}`"
        case _:
            return f"bytes: `{part.column}`"


def copied() -> dict[str, str]:
    """Path in docs/ -> Markdown, of the pages beside the README."""
    texts = {page: (ROOT / name).read_text().replace("](docs/", "](") for page, name in COPIED.items()}
    return {page: text.replace("](CHANGELOG.md", "](changelog.md") for page, text in texts.items()}


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

This page is generated from `pipelines/settings.py`."""

_OTHERS = """\
## Only in the environment

These are not in `switchyard.toml`.

### SWITCHYARD_ALERT_WEBHOOK

An address that gets the alerts as `{"text": ...}`. It counts as a secret. Set it so that someone hears of a release
that needs help; see [operating](operating.md#alerts).

### SWITCHYARD_JARS_DIR

Folder of the jars. Default: `.switchyard/jars` of the checkout; for an installed wheel,
`~/.cache/switchyard/VERSION/jars`, or `$XDG_CACHE_HOME/switchyard/VERSION/jars`. Set it to share the jars between
installations of one version, or between users.

### SWITCHYARD_MAVEN_URL

A mirror of Maven Central. `switchyard jars` fetches the jars from it. Set it on a machine that can't reach the
internet; see [deploying](deploying.md#behind-a-proxy-or-from-a-mirror)."""


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
    """Puts the commands and the apps into the navigation."""
    for section in config.nav or ():
        for item in next(iter(section.values())):
            if isinstance(item, dict) and SECTION in item:
                item[SECTION] = list(pages())
            if isinstance(item, dict) and APPS in item:
                item[APPS] = list(app_pages())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages to the site."""
    from mkdocs.structure.files import File

    for path, content in {**pages(), **app_pages(), **copied()}.items():
        files.append(File.generated(config, path, content=content))
    return files


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    SETTINGS.write_text(settings_page())
