"""`switchyard up | down | status`: the embedded broker, or the cluster that the settings name."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import Json, seconds
from orchestration.commands.terminal import out, print_facts, print_json, print_table, say
from pipelines.model.text import utc, visible

if TYPE_CHECKING:
    from orchestration.local.broker import BrokerStatus
    from orchestration.operations.supervising.overview import ReleaseStatus
    from pipelines.errors import Unavailable
    from pipelines.model.registry import RegistryState
    from pipelines.settings import Settings


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(up)
    app.command()(down)
    app.command()(status)


def up(
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Longest time until the broker answers.")] = "60s",
    all_: Annotated[
        bool, typer.Option("--all", help="Also start every release that should run, and wait until all run.")
    ] = False,
    start_timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="With --all: longest time until the releases run.")
    ] = "10m",
    as_json: Json = False,
) -> None:
    """Start the embedded broker and wait until it answers. Does nothing if it already runs.

    With --all, also start the releases that should run, for example after a reboot. Exit code 1 if one of them
    does not run.
    """
    settings = load_settings()
    until_up_s, until_run_s = seconds(timeout, least_s=1), seconds(start_timeout, least_s=1)
    value, text = _broker_up(settings, until_up_s)
    if not all_:
        _say(as_json, value, text)
        return
    from orchestration.operations.context import open_context
    from orchestration.operations.supervising import alerts
    from orchestration.operations.supervising.turns import bring_up

    if not as_json:
        out(text)
    found = bring_up(open_context(settings, say=say), timeout_s=until_run_s, alert=alerts.to_environment)
    lines = [
        f"{s.release.name}: {s.health if s.release.state != 'failed' else f'failed: {s.release.failure}'}"
        for s in found
    ]
    _say(
        as_json,
        {**value, "releases": [_as_json(each) for each in found]},
        "\n".join(lines) or "no release is set to run",
    )
    if any(s.holder is None or s.health == "starting" for s in found):
        raise typer.Exit(1)


def _broker_up(settings: Settings, timeout_s: float) -> tuple[dict[str, Any], str]:
    if not settings.embedded:
        from pipelines.kafka.client import require_broker

        require_broker(settings)
        return _cluster(settings, answering=True), f"nothing to start: the cluster at {settings.bootstrap} answers"
    from orchestration.local.broker import EmbeddedBroker

    found = EmbeddedBroker(settings).start(timeout_s)
    return asdict(found), f"broker up at {found.bootstrap} (process {found.pid})"


def down(
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", help="Longest time until the broker stops; then it is killed.")
    ] = "30s",
    as_json: Json = False,
) -> None:
    """Stop the embedded broker and keep its data. Does nothing if it is already down.

    Drivers keep running; the command lists them.
    """
    settings = load_settings()
    if not settings.embedded:
        _say(
            as_json,
            {"stopped": False, "drivers": []},
            f"nothing to stop: Switchyard did not start the cluster at {settings.bootstrap}",
        )
        return
    from orchestration.local.broker import EmbeddedBroker
    from orchestration.local.running import drivers_of_embedded

    stopped = EmbeddedBroker(settings).stop(seconds(timeout, least_s=1))
    drivers = drivers_of_embedded(settings.state_dir)
    said = "the broker is stopped; its data is kept" if stopped else "the broker was not running"
    if drivers:
        said += (
            f"\nthese drivers still run, without a broker: {', '.join(drivers)}"
            "\n  they wait for `switchyard up`; after that, `switchyard stop RELEASE --execute` stops one"
        )
    _say(as_json, {"stopped": stopped, "drivers": drivers}, said)


def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="RELEASE|APP", help="A release or an app; default: the broker and all releases."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the broker, and the releases with their drivers: state, lag, rates, memory.

    Exit code 1 if the broker does not answer, or not enough brokers of a cluster do.
    """
    settings = load_settings()
    cluster, facts = _cluster_status(settings, as_json)
    if not cluster["answering"]:
        _unknown(settings, name, cluster, facts, as_json)
    releases, state, unread_heartbeats, outage = _releases(settings, name)
    if as_json:
        unread = len(state.unread) + state.unread_before
        print_json(
            {
                **cluster,
                "releases": [_as_json(each) for each in releases],
                "unreadable_entries": unread,
                "unreadable_heartbeats": unread_heartbeats,
                **(outage.as_json() if outage is not None else {}),
            }
        )
        if outage is not None:
            raise typer.Exit(1)
        return
    from orchestration.operations.looking.unread import heartbeats_in_words, in_short

    if name is None:
        unread_entries = in_short(state)
        facts["registry"] = f"{unread_entries}; see `switchyard registry check`" if unread_entries else None
        facts["heartbeats"] = heartbeats_in_words(unread_heartbeats) if unread_heartbeats else None
        print_facts(facts)
    _table(releases)
    _tell_notes(releases, alone=name is not None)
    _tell_what_to_do(settings, releases)
    if name is not None and settings.bucket is not None:
        _tell_copies(settings, releases)
    if outage is not None:
        out(f"nothing is known of the drivers: {visible(outage.in_one_line)}")
        raise typer.Exit(1)


def _tell_notes(releases: list[ReleaseStatus], *, alone: bool) -> None:
    """Prints what there is to say about each release, one note a line. `alone`: the user asked for this one."""
    from orchestration.operations.looking.platform import staged_by_another

    for each in releases:
        said = each.beat.error if alone and each.beat and not each.release.failure else None
        # its driver may have said the same
        notes = [note for note in each.notes if said is None or note not in said]
        staged_by = staged_by_another(each.release.spec) if alone else None
        tables = each.release.spec.static_tables if alone else {}
        told = [f"static table {table}: {spec.in_words()}" for table, spec in tables.items()]
        for note in (*notes, said, staged_by and f"staged by {staged_by}", *told):
            if note:
                out(f"{each.release.name}: {visible(note)}")


def _tell_what_to_do(settings: Settings, releases: list[ReleaseStatus]) -> None:
    """Prints how each release that failed, or that should run and doesn't, gets a driver again."""
    from orchestration.local.presence import is_supervised
    from orchestration.operations.lifecycle import after_failure, comes_back

    for each in releases:
        if each.health == "down":
            since = f" since {utc(each.beat.at_ms)} UTC" if each.beat else ""
            out(f"{each.release.name}: no driver runs it{since}; {comes_back(each.release, is_supervised(settings))}")
        elif each.release.state == "failed" and not each.lost:
            out(f"{each.release.name}: {after_failure(each.release)}")


def _tell_copies(settings: Settings, releases: list[ReleaseStatus]) -> None:
    from pipelines.engine.copies import copied
    from pipelines.errors import SwitchyardError

    for each in releases:
        if each.beat is None or each.beat.batch_id < 0:
            continue
        try:
            told = copied(settings, each.release.name, each.beat.generation, each.beat.batch_id)
        except SwitchyardError as error:
            told = f"it is unknown how old the copy of its checkpoint is: {error.what}"
        out(f"{each.release.name}: {told}")


def _unknown(
    settings: Settings, name: str | None, cluster: dict[str, Any], facts: dict[str, str | None], as_json: bool
) -> NoReturn:
    """Says that the releases are unknown, which does not mean that there are none. Raises Unavailable if a name is
    given.
    """
    from pipelines.kafka.failures import unavailable

    error = unavailable(settings, None)
    if as_json:
        print_json({**cluster, "releases": None, **error.as_json()})
    elif name is None:
        print_facts({**facts, "releases": "unknown, because the broker does not answer"})
    if name is None:
        raise typer.Exit(1)
    raise error


def _cluster_status(settings: Settings, as_json: bool) -> tuple[dict[str, Any], dict[str, str | None]]:
    if settings.embedded:
        from orchestration.local.broker import EmbeddedBroker, refuse_another_s

        refuse_another_s(settings)
        found = EmbeddedBroker(settings).status()
        return asdict(found), _facts(found)
    from pipelines.errors import Unavailable
    from pipelines.kafka.client import require_broker

    try:
        require_broker(settings)
    except Unavailable as error:
        if as_json:
            print_json({**_cluster(settings, answering=False), "releases": None, **error.as_json()})
        raise
    return _cluster(settings, answering=True), {"cluster": settings.bootstrap, "state": "answers"}


def _releases(
    settings: Settings, name: str | None
) -> tuple[list[ReleaseStatus], RegistryState, int, Unavailable | None]:
    """The releases, the registry, how many heartbeats can't be read, and why nothing is known of drivers."""
    from orchestration.operations.context import open_context
    from orchestration.operations.supervising.overview import statuses_in_outage
    from pipelines.errors import BadUsage

    context = open_context(settings, say=say)
    every, outage = statuses_in_outage(context)
    found = [s for s in every if s.release.state != "retired" or name is not None]
    unread = context.registry.heartbeats.unread
    if name is None:
        return found, context.registry.known, unread, outage
    named = [s for s in found if name in (s.release.name, s.release.spec.app)]
    if not named:
        known = sorted({s.release.name for s in found})
        raise BadUsage(
            f"there is no release or app {name}",
            f"the releases are: {', '.join(known) or 'none; `switchyard stage APP --execute` makes one'}",
        )
    return named, context.registry.known, unread, outage


def _table(releases: list[ReleaseStatus]) -> None:
    if not releases:
        out("no release is staged; `switchyard stage APP --execute` stages one")
        return
    columns = ("release", "state", "driver", "batch", "unread", "lag", "records/s", "late", "dead", "memory", "heap")
    rows = []
    for each in releases:
        beat = each.beat
        heap = "" if beat is None or not beat.heap_max_bytes else (
            f"{_mebibytes(beat.heap_used_bytes)} of {_mebibytes(beat.heap_max_bytes)}"
        )  # fmt: skip
        cells = ["", "", "", "", "", "", "", ""] if beat is None else [
            # before the first batch, it is -1
            str(beat.batch_id) if beat.batch_id >= 0 else "",
            _count(beat.behind_records),
            _count(beat.lag_records),
            f"{beat.processed_records_per_s:,.0f}",
            _count(beat.total.late_dropped),
            _count(beat.total.dead_lettered),
            _mebibytes(beat.rss_bytes),
            heap,
        ]  # fmt: skip
        rows.append([each.release.name, each.release.state + (" *" if each.live else ""), each.health, *cells])
    print_table(columns, rows)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _as_json(each: ReleaseStatus) -> dict[str, Any]:
    return {
        "release": each.release.name,
        "state": each.release.state,
        "live": each.live,
        "wanted": each.release.wanted,
        "driver": each.health,
        "holder": each.holder,
        "generation": each.release.generation,
        "staged_by": each.release.spec.platform or None,
        "static_tables": {n: t.model_dump(mode="json") for n, t in each.release.spec.static_tables.items()},
        "failure": each.release.failure,
        "notes": list(each.notes),
        "heartbeat": each.beat.model_dump(mode="json") if each.beat else None,
    }


def _facts(found: BrokerStatus) -> dict[str, str | None]:
    state = "up" if found.answering else "running, but does not answer" if found.running else "down: `switchyard up`"
    resident = "" if found.resident_bytes is None else f", resident {_mebibytes(found.resident_bytes)}"
    return {
        "broker": found.bootstrap,
        "state": state,
        "process": None if found.pid is None else f"{found.pid}, for {_duration(found.uptime_s)}",
        "memory": f"heap up to {found.heap_mb} MiB{resident}",
        "data": f"{_mebibytes(found.data_bytes)} in {found.data}",
        "log": str(found.log),
    }


def _cluster(settings: Settings, *, answering: bool) -> dict[str, Any]:
    return {"embedded": False, "bootstrap": settings.bootstrap, "answering": answering}


def _say(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        out(text)


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _duration(uptime_s: float | None) -> str:
    if uptime_s is None:
        return "an unknown time"
    minutes, left = divmod(int(uptime_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"
