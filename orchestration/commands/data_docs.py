"""`switchyard data-docs`: serves the Data Docs of checks to a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.commands.context import load_settings
from orchestration.commands.terminal import say


def register(app: typer.Typer) -> None:
    """Adds the commands of this module."""
    app.command(name="data-docs")(data_docs)


def data_docs(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to serve on, for this machine alone; 0 picks a free one.")
    ] = None,
    beside: Annotated[
        int | None,
        typer.Option(
            help="Id of the parent process: serve until it ends, and wait while the port is busy. For `switchyard ui`."
        ),
    ] = None,
) -> None:
    """Serve the Data Docs of checks over HTTP, until Ctrl-C. `switchyard ui` does this, too."""
    import contextlib

    from orchestration.local.data_docs import serve_beside, server_of
    from pipelines.errors import SwitchyardError

    settings = load_settings()
    if beside is not None:
        with contextlib.suppress(KeyboardInterrupt):
            serve_beside(settings, beside)
        return
    chosen = settings.data_docs_port if port is None else port
    try:
        server = server_of(settings, chosen)
    except OSError as error:
        raise SwitchyardError(
            f"can't serve Data Docs on port {chosen}: {error.strerror or error}",
            "`switchyard ui` may serve them already; choose another port with --port",
        ) from error
    say(f"serving Data Docs on http://127.0.0.1:{server.server_port}/")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
