"""`switchyard metrics`: serves what `status` shows, for Prometheus."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.terminal import say


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(metrics)


def metrics(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 picks a free one.")] = 9788,
    # it has no login: to expose it to other machines, put it behind a proxy that has one
    host: Annotated[str, typer.Option(help="Address to serve on; only this machine can reach the default.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Serve metrics of the releases over HTTP in the OpenMetrics format, until Ctrl-C."""
    import threading

    from prometheus_client import CollectorRegistry, start_http_server

    from orchestration.local.broker import refuse_another_s
    from orchestration.operations.supervising.metrics import KafkaReader, ReleaseCollector
    from pipelines.errors import SwitchyardError

    settings = load_settings()
    # otherwise another state folder's releases would be taken for this one's
    refuse_another_s(settings)
    collector = ReleaseCollector(KafkaReader(settings))
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SwitchyardError(
            f"can't serve metrics on {host} port {port}: {error.strerror or error}",
            "choose another with --port or --host",
        ) from error
    say(f"serving metrics on http://{host}:{server.server_port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        collector.close()
