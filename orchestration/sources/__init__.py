"""Input for `switchyard produce`: real data where there is some, generated with a fixed seed where there is none."""

from __future__ import annotations

from orchestration.sources.base import Faults, Options, Record, Source
from orchestration.sources.catalog import app_names, source_for
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
]
