"""`switchyard metrics`: what `status` shows, for Prometheus."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.terminal import say


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command()(metrics)


def metrics(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0: a free one.")] = 9788,
    # it has no login: what is to be read from elsewhere goes through a proxy that has
    host: Annotated[str, typer.Option(help="Address to serve on; the default is reached from this machine only.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Serve metrics of the releases over HTTP, in the OpenMetrics format, until told to end."""
    import threading

    from prometheus_client import CollectorRegistry, start_http_server

    from orchestration.local.broker import refuse_another_s
    from orchestration.operations.supervising.metrics import KafkaReader, ReleaseCollector
    from pipelines.errors import SwitchyardError

    settings = load_settings()
    # else its releases would be taken for those of this state directory
    refuse_another_s(settings)
    collector = ReleaseCollector(KafkaReader(settings))
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SwitchyardError(
            f"nothing can be served on {host} port {port}: {error.strerror or error}",
            "choose another: --port, --host",
        ) from error
    say(f"metrics are served on http://{host}:{server.server_port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        collector.close()
