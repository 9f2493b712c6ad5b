"""`switchyard supervise`: keeps releases running, in the foreground, as Dagster's sensor does."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.options import seconds


def register(app: typer.Typer) -> None:
    """Adds the command of this module."""
    app.command()(supervise)


def supervise(
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to look at the releases.")] = "2s",
) -> None:
    """Start every release that should run and keep it running, until SIGTERM or Ctrl-C.

    Restarts drivers that died, replaces drivers that hang, and ends operations past their deadline. Runs in the
    foreground, for systemd; drivers keep running when it stops. A driver that keeps dying is restarted after longer and
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
        log.info("supervisor stops; drivers keep running")
    finally:
        configure_command(settings.log_format)
        restore_handlers()
