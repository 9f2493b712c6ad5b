"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipelines.errors import BadUsage

Execute = Annotated[bool, typer.Option("--execute/--dry-run", help="Do it; without it only the plan is shown.")]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for scripts.")]
Reason = Annotated[str | None, typer.Option(help="Why, for the audit trail.")]
Name = Annotated[str, typer.Argument(metavar="RELEASE", help="APP.vN, or APP where only one release of it is in use.")]
App = Annotated[str, typer.Argument(metavar="APP", help="As in stock-stats.")]
Version = Annotated[int | None, typer.Option(help="Version number; default: the next free one.")]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="CODE_DIR", help="Folder of the app's modules; default: the repository's apps."),
]
SameAs = Annotated[
    str | None,
    typer.Option(metavar="RELEASE", help="Take this release's frozen code and settings, instead of a folder's code."),
]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the app; repeatable.")]
VolumeTolerance = Annotated[
    float, typer.Option(min=0, help="Ratio by which the rows may differ from the live release's.", show_default=True)
]
MissingHistory = Annotated[
    Literal["refuse", "accept"],
    typer.Option(
        "--missing-history", help="Whether it may lack input that the live release has read, and Kafka has no more."
    ),
]
Correction = Annotated[str | None, typer.Option(help="Why unchanged code runs again.")]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "ms": 0.001}


def seconds(text: str, *, least_s: float = 0) -> float:
    """`90`, `10s`, `1.5m`, `24h`, `250ms` as seconds. Raises BadUsage for anything else, and for less than `least_s`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)?", text.strip())
    if match is None:
        raise BadUsage(f"{text!r} is not a duration", fix="as in 10s, 5m or 24h")
    found = float(match[1]) * _UNITS[match[2] or "s"]
    if found < least_s:
        raise BadUsage(f"{text} is too short: nothing could be done in it", fix=f"give {least_s:g}s or more")
    return found


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """`["a=1"]` -> `{"a": "1"}`. Raises BadUsage for what isn't KEY=VALUE or stands twice."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise BadUsage(f"--set {pair!r} is not KEY=VALUE", fix="as in --set window_s=5")
        if key in found:
            raise BadUsage(f"--set {key} stands twice", fix="leave one")
        found[key] = value
    return found
