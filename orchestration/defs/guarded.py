"""Dagster, whose web server obeys no page of another site: `python -m orchestration.defs.guarded dev | webserver ...`

Dagster's server checks neither who asks nor by which name. So any page in a browser on this machine could launch runs by a
link to 127.0.0.1, or read everything by a name of its own that leads there (DNS rebinding). Listening on this machine alone
doesn't help against that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestration.local.data_docs import LOCAL, OTHER_NAME, names_of
from pipelines.private import keep_private
from pipelines.settings import get_settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_MODULE = "orchestration.defs.guarded"
# what another site's page may not even follow a link to: `GET /graphql` changes things, too
_ACTS = ("/graphql", "/report_")
_OWN = ("same-origin", "none")


def why_not(path: str, headers: Mapping[str, str], names: Set[str]) -> str | None:
    """Why a request is refused; None: it isn't. `headers`: by their names in lower case. `names`: of this server.

    Browsers say which page asks (`Sec-Fetch-Site`, `Origin`), and a page can't change that. Other programs say nothing, and
    may ask.
    """
    if _host(f"//{headers.get('host', '')}") not in names:
        return OTHER_NAME
    if not path.startswith(_ACTS):
        return None
    origin = headers.get("origin")
    # a proxy may ask by another name than its own, but another port of this machine is another program
    own = origin is None or _authority(origin) == headers["host"] or _host(origin) in names - LOCAL
    if own and headers.get("sec-fetch-site", "none") in _OWN:
        return None
    return "refused: a page of another site sent this request"


def _authority(url: str) -> str:
    return url.partition("://")[2]


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class OwnPages:
    """Lets requests through that `why_not` doesn't refuse. A page's websocket is a request like any other."""

    def __init__(self, app: ASGIApp, names: Set[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        why = why_not(scope["path"], headers, self._names)
        if why is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            from starlette.responses import PlainTextResponse

            await PlainTextResponse(why, status_code=403)(scope, receive, send)


def guard_server() -> None:
    """Makes Dagster's web server in this process refuse what `why_not` does."""
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.middleware import Middleware

    made, names = DagsterWebserver.build_middleware, names_of(get_settings())

    def build_middleware(server: Any) -> list[Middleware]:
        return [Middleware(OwnPages, names=names), *made(server)]

    DagsterWebserver.build_middleware = build_middleware  # type: ignore[method-assign, assignment]


def guard_dev() -> None:
    """Makes `dagster dev` in this process start its web server by this module."""
    from dagster._cli import dev

    start = dev.open_ipc_subprocess  # type: ignore[attr-defined]

    def started(parts: Sequence[str], **how: Any) -> Any:
        return start(guarded(parts), **how)

    dev.open_ipc_subprocess = started  # type: ignore[attr-defined]


def guarded(command: Sequence[str]) -> list[str]:
    """The command of `dagster dev` for its web server, by this module; any other as it is."""
    words = list(command)
    if words[1:3] != ["-m", "dagster_webserver"]:
        return words
    # not from the working folder: that may have a package of the same name
    return [words[0], "-P", "-m", _MODULE, "webserver", *words[3:]]


def main() -> None:
    """Becomes `dagster dev` or `dagster-webserver`, with the arguments after that word."""
    keep_private()
    program = sys.argv.pop(1)
    if program == "webserver":
        from dagster_webserver.cli import main as serve

        guard_server()
        serve()  # type: ignore[no-untyped-call]
    else:
        from dagster._cli import main as run

        guard_dev()
        sys.argv.insert(1, program)
        run()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
