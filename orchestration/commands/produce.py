"""`switchyard produce`: writes input for an app, at a chosen rate."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.terminal import err, out, print_json_line, rewrite

if TYPE_CHECKING:
    from orchestration.sources import Produced


def produce(
    app: Annotated[
        str, typer.Argument(metavar="APP", help="An app that comes with Switchyard; `switchyard apps` lists them.")
    ],
    rate: Annotated[float | None, typer.Option(min=0.001, help="Live records per second.")] = None,
    history: Annotated[int, typer.Option(min=0, help="Records to write first, at full speed.")] = 0,
    records: Annotated[int | None, typer.Option(min=1, help="Stop after this many live records.")] = None,
    duration: Annotated[float | None, typer.Option(min=0, help="Stop after this many seconds of live records.")] = None,
    seed: Annotated[int, typer.Option(help="Seed; the same seed makes the same records.")] = 1,
    topic: Annotated[
        str | None, typer.Option(help="Topic to write to, for an app with one input; default: its input.")
    ] = None,
    density: Annotated[
        str, typer.Option(help="For trades: dense (in every second) or sparse (a few a day, 2000-2013).")
    ] = "dense",
    per_second: Annotated[int | None, typer.Option(help="Records per second of event time.")] = None,
    per_day: Annotated[int, typer.Option(help="With --density sparse: trades per ticker and day.")] = 8,
    keys: Annotated[
        int | None,
        typer.Option(
            help="How many users, devices or products the records are of, if the app's input lets you choose."
        ),
    ] = None,
    tickers: Annotated[str, typer.Option(help="For trades: only these tickers, separated by commas.")] = "",
    out_of_order: Annotated[float, typer.Option(help="Share of records up to 3 s late.")] = 0.02,
    late: Annotated[float, typer.Option(help="Share of records 4 to 7 s late, still in time for stock-stats.")] = 0.001,
    too_late: Annotated[float, typer.Option(help="Share of records 1 to 2 minutes late.")] = 0.0,
    duplicate: Annotated[float, typer.Option(help="Share of records sent twice.")] = 0.0005,
    malformed: Annotated[float, typer.Option(help="Share of records whose value can't be parsed.")] = 0.0001,
    tombstone: Annotated[float, typer.Option(help="Share of records without a value.")] = 0.00005,
    clean: Annotated[bool, typer.Option("--clean", help="Make none of these faults.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Produce input for an app: history at full speed, then live records at a rate until Ctrl-C.

    Event time continues from the last record of the topic.
    """
    from orchestration.sources import Faults, Options, app_names, produce, sources_for
    from pipelines.errors import BadUsage
    from pipelines.signals import StopSignal

    if app not in app_names():
        # raises an error that names the apps with a source
        sources_for(app, Options())
    if rate is None and not history:
        raise BadUsage("nothing to produce", fix="give --rate (records per second), --history (records), or both")
    if rate is None and (records is not None or duration is not None):
        raise BadUsage("--records and --duration limit live records, which need a rate", fix="add --rate")
    if density not in ("dense", "sparse"):
        raise BadUsage(f"unknown density {density!r}", fix="use dense or sparse")
    faults = Faults(
        out_of_order=out_of_order,
        late=late,
        too_late=too_late,
        duplicate=duplicate,
        malformed=malformed,
        tombstone=tombstone,
    )
    options = Options(
        seed=seed,
        faults=Faults.none() if clean else faults,
        density="sparse" if density == "sparse" else "dense",
        per_second=per_second,
        per_day=per_day,
        keys=keys,
        tickers=tuple(t.strip() for t in tickers.split(",") if t.strip()),
    )
    sources = sources_for(app, options)
    stop = StopSignal()
    stop.take_signals()
    produced = produce(
        load_settings(),
        sources,
        topic=topic,
        history=history,
        rate=rate,
        records=records,
        duration_s=duration,
        stopped=stop.is_set,
        report=_show if sys.stderr.isatty() and not as_json else None,
    )
    if sys.stderr.isatty() and not as_json:
        err()
    if as_json:
        print_json_line(produced.as_json())
    else:
        out(_line(produced))


def _show(produced: Produced) -> None:
    rewrite(_line(produced))


def _line(produced: Produced) -> str:
    rate = produced.records / produced.duration_s if produced.duration_s else 0.0
    until = "" if produced.last_ms is None else f", event time up to {_iso(produced.last_ms)}"
    return f"{produced.records:,} records to {produced.topic}, {rate:,.0f}/s{until}"


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(produce)
