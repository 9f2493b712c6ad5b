"""`switchyard supervise`: keeps releases running, in the foreground, as Dagster's sensor does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import seconds
from pipelines.errors import SwitchyardError

if TYPE_CHECKING:
    from orchestration.operations.reading import Say
    from pipelines.settings import Settings


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(supervise)


def supervise(
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to look at the releases.")] = "2s",
    stop_drivers: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="When it ends, stop the drivers of this host at a boundary, and wait this long for them. For containers.",
        ),
    ] = None,
) -> None:
    """Start every release that should run and keep it running, until SIGTERM or Ctrl-C.

    Restarts drivers that died, replaces drivers that hang, and ends operations past their deadline. Runs in the
    foreground, for systemd; drivers keep running when it stops. In a container they would be killed then: with
    --stop-drivers they stop first, so that another host can take over at once. A driver that keeps dying is restarted after longer and
    longer pauses. After SWITCHYARD_RESTART_LIMIT starts in a row, the supervisor sets the release to failed and sends
    an alert to SWITCHYARD_ALERT_WEBHOOK.
    """
    import logging

    from orchestration.operations.context import open_context
    from orchestration.operations.supervising import alerts
    from orchestration.operations.supervising.turns import take_turns
    from pipelines.logs import configure_command, configure_service
    from pipelines.signals import StopSignal

    settings, every_s = load_settings(), seconds(every, least_s=0.1)
    stop_within_s = None if stop_drivers is None else seconds(stop_drivers, least_s=1)
    configure_service(settings.log_format)
    log, stopped = logging.getLogger("switchyard.supervise"), StopSignal()
    restore_handlers = stopped.take_signals()
    try:
        log.info("supervising the releases on %s", settings.bootstrap)
        take_turns(
            settings,
            lambda: open_context(settings, say=log.info),
            stopped=stopped,
            every_s=every_s,
            alert=alerts.to_environment,
            say=log.warning,
        )
        if stop_within_s is None:
            log.info("supervisor stops; drivers keep running")
        else:
            _stop_drivers(settings, stop_within_s, say=log.info)
    finally:
        configure_command(settings.log_format)
        restore_handlers()


def _stop_drivers(settings: Settings, within_s: float, *, say: Say) -> None:
    """Raises SwitchyardError if drivers still run after `within_s` seconds."""
    from orchestration.local.running import stop_drivers

    say(f"supervisor stops; so do the drivers of this host, within {within_s:g} s")
    left = stop_drivers(settings.state_dir, within_s=within_s)
    if left:
        raise SwitchyardError(
            f"after {within_s:g} s, the supervisor has not seen the end of {', '.join(map(str, left))}",
            "give them longer with --stop-drivers; `switchyard status` shows whether another host has taken over",
        )
    say("the drivers of this host have stopped")
