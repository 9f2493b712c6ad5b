"""`switchyard apps | show | try`: for people who write apps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import App, From, Json, Set, settings_of
from orchestration.commands.terminal import out, print_facts, print_json, print_table, say
from pipelines.model.app import Shows

Rows = Annotated[
    Path,
    typer.Option(
        "--rows",
        metavar="FILE",
        help="JSON lines, one record per line: input, key, value, time, partition. A blank line starts the next batch.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(new)
    app.command()(apps)
    app.command()(show)
    app.command("try")(try_)


def new(
    app: App,
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The topic that it reads: JSON, with the key as text.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--in",
            metavar="FOLDER",
            help="Folder of your own for the app; default, in a checkout: the repository's folders for apps, suites and tests.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a new app to start from: its module, its suite and a test. Nothing is overwritten."""
    from orchestration.scaffold import scaffold

    written = scaffold(app, topic, folder)
    if as_json:
        print_json({"app": app, "files": written})
        return
    for path in written:
        out(f"wrote {path}")
    from_ = f" --from {folder}" if folder is not None else ""
    out(f"see what it makes of records: switchyard try {app}{from_} --rows FILE")
    out(f"run its test: pytest {written[-1]}")
    out(f"release it: switchyard stage {app}{from_}")


def apps(as_json: Json = False) -> None:
    """List the apps that come with Switchyard, with the inputs and the result of each."""
    from orchestration.catalog import find_apps, first_sentence, in_words, reads, result_in_words

    found = find_apps()
    if as_json:
        print_json([
            {"name": each.name, "shows": each.shows, "inputs": reads(each), "result": in_words(each),
             "results": {name: result_in_words(result) for name, result in each.results.items()}, "suites": each.suites,
             "watermark": each.watermark, "settings": dict(each.settings), "does": first_sentence(each)}
            for each in found
        ])  # fmt: skip
        return
    order = [*get_args(Shows), None]
    rows = sorted(found, key=lambda each: (order.index(each.shows), each.name))
    print_table(
        ("app", "shows", "reads", "result", "what it does"),
        ((each.name, each.shows or "", ", ".join(reads(each)), in_words(each), first_sentence(each)) for each in rows),
    )


def show(app: App, code: From = None, set_: Set = None, as_json: Json = False) -> None:
    """Show an app: its inputs, its result, and the steps between them with their state. Needs no broker."""
    from orchestration.operations.trials import TRYING, default_code_dir, probe
    from pipelines.engine.code import freeze
    from pipelines.model.app import ResultOf
    from pipelines.model.entries import ResultSpec

    say(TRYING)
    facts = probe(load_settings(), freeze(code or default_code_dir()), app, settings_of(set_))
    if as_json:
        print_json(facts)
        return
    results = {name: ResultSpec(**each) for name, each in facts["results"].items()}
    inputs = {name: f"topic {topic}" for name, topic in facts["inputs"].items()}
    inputs |= {name: str(ResultOf(of["app"], of["result"])) for name, of in facts["upstream"].items()}
    inputs |= {name: f"static table, topic {topic}" for name, topic in facts["static"].items()}
    print_facts({
        "app": app,
        **{f"input {name}": f"{inputs[name]}: {', '.join(facts['columns'][name])}" for name in (*facts["sources"], *facts["static"])},
        **{
            f"result {name}".rstrip(): f"{each.in_words()}, {each.partitions} partitions: {each.schema_ddl.replace('`', '')}"
            for name, each in results.items()
        },
        "watermark": facts["watermark"] or "none",
        **{
            f"suite {name}".rstrip(): each.suite or "none: nothing checks the result" for name, each in results.items()
        },
        "settings": ", ".join(f"{name}={value}" for name, value in facts["settings"].items()) or "none",
    })  # fmt: skip
    out("steps, the last one first")
    for step in facts["topology"]:
        out(f"{'  ' * (step['depth'] + 1)}{step['does']}{' (keeps state)' if step['state'] else ''}")


def try_(app: App, rows: Rows, code: From = None, set_: Set = None, as_json: Json = False) -> None:
    """Show the result of an app for some records. It needs no broker, and nothing is kept.

    A line {"watermark": "2026-01-01T12:01:00Z"} moves the watermark.
    """
    from orchestration.operations.trials import TRYING, try_rows

    records = _read(rows)
    say(TRYING)
    batches = try_rows(load_settings(), app, code, settings_of(set_), records)
    if as_json:
        print_json(batches)
        return
    for number, batch in enumerate(batches, start=1):
        _show(batch, f"batch {number}" if len(batches) > 1 else None)


def _show(batch: dict[str, Any], title: str | None) -> None:
    rows, letters = batch["rows"], batch["dead_letters"]
    names = batch.get("results") or [""] * len(rows)
    for result in dict.fromkeys(names):
        mine = [row for row, name in zip(rows, names, strict=True) if name == result]
        columns = list(dict.fromkeys(name for row in mine for name in row))
        called = ", ".join(part for part in (title, result) if part)
        print_table(columns, ([_cell(row, name) for name in columns] for row in mine), title=called or None)
    if not rows:
        out(f"{title}: no rows" if title else "no rows")
    if letters:
        print_table(
            ["dead letter", "reason"],
            ([_place(each), each["reason"]] for each in letters),
        )
    for name, words in batch.get("malformed", {}).items():
        out(f"static table {name}: {words}")
    if batch["late"]:
        out(f"{batch['late']} late rows dropped")
    if batch["watermark"]:
        out(f"watermark {batch['watermark']}")


def _place(letter: dict[str, Any]) -> str:
    """Where a malformed record was; or what a row that is too large was for, and which record it comes from."""
    if letter["offset"] is not None:
        return f"{letter['topic']}[{letter['partition']}] offset {letter['offset']}"
    return f"row for {letter['topic']}" + (f" from {letter['source']}" if "source" in letter else "")


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    return "" if name not in row else value if isinstance(value, str) else json.dumps(value)


def _read(path: Path) -> list[list[Any]]:
    """The file's batches. Raises BadUsage for a file that isn't there, and for a line that isn't JSON."""
    from pipelines.errors import BadUsage

    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadUsage(f"{path} can't be read: {reason}", fix="name a file of JSON lines after --rows") from error
    batches: list[list[Any]] = [[]]
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            batches.append([])
            continue
        try:
            batches[-1].append(json.loads(line))
        except json.JSONDecodeError as error:
            raise BadUsage(
                f"{path}, line {number} is not JSON: {error.msg}", fix="write one JSON object on each line"
            ) from error
    found = [batch for batch in batches if batch]
    if not found:
        raise BadUsage(f"{path} has no record", fix="write one JSON object on each line")
    return found
