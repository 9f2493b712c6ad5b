"""Input for `switchyard produce`: real data if there is some, otherwise data generated from a fixed seed."""

from __future__ import annotations

from orchestration.sources.base import Faults, Options, Record, Source
from orchestration.sources.catalog import app_names, source_for, sources_for
from orchestration.sources.run import Produced, last_timestamp_ms, produce

__all__ = [
    "Faults",
    "Options",
    "Produced",
    "Record",
    "Source",
    "app_names",
    "last_timestamp_ms",
    "produce",
    "source_for",
    "sources_for",
]
