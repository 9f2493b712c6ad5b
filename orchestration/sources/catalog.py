"""Which app has which source."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestration.sources.base import Options, Source
from orchestration.sources.lines import ReferenceLines
from orchestration.sources.orders import Orders
from orchestration.sources.trades import DenseTrades, SparseTrades
from pipelines.errors import BadUsage

SOURCES: Mapping[str, Callable[[Options], Source]] = {
    "large-orders": Orders,
    "stock-stats": DenseTrades,
    "word-count": ReferenceLines,
}


def app_names() -> list[str]:
    """The apps that have a source."""
    return sorted(SOURCES)


def source_for(app: str, options: Options) -> Source:
    """The source of `app`'s input. Raises BadUsage for an app without one, and for options that do not fit it."""
    if app not in SOURCES:
        raise BadUsage(
            f"there is no source of input for {app!r}", fix=f"the apps with a source are: {', '.join(app_names())}"
        )
    if app != "stock-stats" and (options.density != "dense" or options.tickers):
        raise BadUsage(f"--density and --tickers do not apply to {app}", fix="leave them out; they are for stock-stats")
    if options.density == "sparse":
        if options.per_second is not None:
            raise BadUsage("--per-second does not apply to --density sparse", fix="use --per-day")
        return SparseTrades(options)
    return SOURCES[app](options)
