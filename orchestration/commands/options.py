"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipelines.errors import BadUsage

Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Carry out the plan; without it, the plan is only shown.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Reason = Annotated[str | None, typer.Option(help="Why you do this, for the audit trail.")]
Name = Annotated[
    str, typer.Argument(metavar="RELEASE", help="APP.vN, or just APP if only one release of it is in use.")
]
App = Annotated[str, typer.Argument(metavar="APP", help="Name of the app, for example stock-stats.")]
Version = Annotated[int | None, typer.Option(help="Version number; default: the next free one.")]
From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="CODE_DIR", help="Folder with the app's modules; default: the apps that come with Switchyard."
    ),
]
SameAs = Annotated[
    str | None,
    typer.Option(
        metavar="RELEASE", help="Use the frozen code and settings of this release instead of a folder's code."
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the app; repeatable.")]
VolumeTolerance = Annotated[
    float,
    typer.Option(
        min=0,
        help="Share by which the number of rows may differ from the live release's; 0.1 is 10%.",
        show_default=True,
    ),
]
MissingHistory = Annotated[
    Literal["refuse", "accept"],
    typer.Option(
        "--missing-history",
        metavar="CHOICE",
        help="What to do if Kafka no longer keeps input that the live release has read: refuse, or accept a result without it.",
    ),
]
Upstream = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream", metavar="RELEASE", help="Read this release of another app instead of the live one; repeatable."
    ),
]
Correction = Annotated[str | None, typer.Option(help="Reason to run unchanged code again.")]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "ms": 0.001}


def seconds(text: str, *, least_s: float = 0) -> float:
    """Seconds of `90`, `10s`, `1.5m`, `24h` or `250ms`. Raises BadUsage for anything else, and for less than `least_s`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?", text.strip())
    if match is None:
        raise BadUsage(f"{text!r} is not a duration", fix="write it like 10s, 5m or 24h")
    found = float(match[1]) * _UNITS[match[2] or "s"]
    if found < least_s:
        raise BadUsage(f"{text} is too short", fix=f"give {least_s:g}s or more")
    return found


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """`["a=1"]` -> `{"a": "1"}`. Raises BadUsage for a pair that isn't KEY=VALUE, and for a key given twice."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise BadUsage(f"--set {pair!r} is not KEY=VALUE", fix="write it like --set window_s=5")
        if key in found:
            raise BadUsage(f"--set {key} is given twice", fix="give it once")
        found[key] = value
    return found
