"""What every command needs: the settings, read with errors that name the setting; and how to print."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipelines.errors import BadUsage

if TYPE_CHECKING:
    from rich.console import Console

    from pipelines.settings import Settings


def load_settings() -> Settings:
    """The settings of this process; BadUsage naming each that is wrong."""
    import tomllib

    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from pipelines.settings import get_settings

    try:
        return get_settings()
    except ValidationError as error:
        found = [
            f"{'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise BadUsage(
            "wrong settings: " + "; ".join(found),
            "each is SWITCHYARD_<NAME> in the environment, or a line of switchyard.toml",
        ) from error
    except SettingsError as error:
        # of an environment variable that should be JSON; the reason is in its cause
        reason = str(error).replace("EnvSettingsSource", "the environment").replace('"', "")
        raise BadUsage(
            f"wrong settings: {reason}: {error.__cause__}", """as in SWITCHYARD_KAFKA='{"security.protocol": "SSL"}'"""
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise BadUsage(f"switchyard.toml can't be read: {error}", "correct that line") from error


def console() -> Console:
    """A terminal for tables and progress bars; plain text when the output is no terminal."""
    from rich.console import Console

    # a file or a pipe has no width of its own; tables need one
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 160)


def print_json(value: Any) -> None:
    """One JSON document on stdout; a path or a date in it as text."""
    print(json.dumps(value, indent=2, default=str))


def print_facts(facts: Mapping[str, str | None]) -> None:
    """Names and values under each other, without the ones that are None."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts.items():
        if value is not None:
            # Text: a bracket in a value is no markup
            table.add_row(name, Text(value))
    console().print(table)
