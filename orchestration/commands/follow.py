"""`switchyard follow`: prints the results of an alias as they arrive, from release to release."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import Json, seconds
from orchestration.commands.terminal import out, print_json_line, say
from pipelines.errors import Unavailable
from pipelines.model.text import visible

if TYPE_CHECKING:
    from pipelines.follow import LiveRecord

# how often the group's offsets are committed while records arrive
_COMMIT_S = 1.0


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(follow)


def follow(
    app: Annotated[str, typer.Argument(metavar="APP", help="The app whose live result to print.")],
    group: Annotated[
        str | None,
        typer.Option(help="Consumer group, to continue where it stopped. Without one, the position is not kept."),
    ] = None,
    result: Annotated[str | None, typer.Option(metavar="NAME", help="Which result, if the app has several.")] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start a new group at the oldest result that is still kept, and cross every switch from there.",
        ),
    ] = False,
    max_records: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after this many records.")] = None,
    idle_exit: Annotated[
        str | None,
        typer.Option("--idle-exit", metavar="DURATION", help="Stop when no record has arrived for this long."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the result of the live release, and continue across each switch, until Ctrl-C."""
    import os
    import time

    from pipelines.follow import LiveConsumer

    idle_s = seconds(idle_exit) if idle_exit is not None else None
    name = group or f"switchyard-follow-{os.getpid()}"
    printed, number, last_s, committed_s = 0, None, time.monotonic(), time.monotonic()
    with LiveConsumer(
        app, group=name, result=result, settings=load_settings(), earliest=from_beginning, register=group is not None
    ) as consumer:
        # only printed records count: the position of a record in hand is not committed
        done = consumer.position
        try:
            while max_records is None or printed < max_records:
                record = consumer.poll(0.2)
                now_s = time.monotonic()
                if group is not None and now_s - committed_s >= _COMMIT_S:
                    committed_s = now_s
                    # during an outage, a later turn commits
                    with suppress(Unavailable):
                        consumer.commit(done)
                if record is None:
                    done = consumer.position
                    if idle_s is not None and now_s - last_s >= idle_s:
                        break
                    continue
                if record.number != number:
                    number = record.number
                    say(f"switch {number}: {record.release}")
                if as_json:
                    print_json_line(as_object(record))
                else:
                    out(_line(record), flush=True)
                printed, last_s, done = printed + 1, now_s, record.position
        except KeyboardInterrupt:
            pass
        if group is not None:
            consumer.commit(done)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _value(record: LiveRecord) -> str | None:
    """A record's value as text; of Avro, as JSON."""
    if record.value is None or record.schema is None:
        return _text(record.value)
    import io
    import json

    from fastavro import schemaless_reader

    found = schemaless_reader(io.BytesIO(record.value), json.loads(record.schema), None)
    return json.dumps(found, default=str, separators=(",", ":"))


def _line(record: LiveRecord) -> str:
    value = _value(record)
    mark = "~" if record.phase == "delta" else " "
    replay = "  (replay)" if record.replay else ""
    # `visible` escapes line feeds and tabs, so that they can't end the line or the key
    key, shown = visible(str(_text(record.key))), "(gone)" if value is None else visible(value)
    return f"{record.number}{mark} {key}\t{shown}{replay}"


def as_object(record: LiveRecord) -> dict[str, Any]:
    """A record as `follow --json` prints it: origin, key, value, headers, and delivery time in ms since the epoch."""
    import time

    return {
        "switch": record.number,
        "release": record.release,
        "phase": record.phase,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": _text(record.key),
        "value": _value(record),
        "replay": record.replay,
        "headers": {name: _text(value) for name, value in record.headers},
        "at_ms": time.time_ns() // 1_000_000,
    }
