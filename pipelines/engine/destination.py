"""What a driver writes for: one generation of a release."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.model.app import App, Oversized, Table
from pipelines.model.positions import SourcePosition, Span
from pipelines.model.progress import Progress
from pipelines.model.registry import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One generation of a release.

    `results`: result name -> topic; the only result has an empty name. `inputs`: source name -> topic. `processed`:
    input whose results consumers may already have; its results are marked as a replay. `seed`: the generation's first
    progress record, if it continues an earlier one. `oversized`: what becomes of a row that is too large for a record.
    `tables`: whether a result is a table. Then the last row of a key counts, so rows keep the order of Spark's partitions.
    """

    release: str
    generation: int
    token: int
    results: dict[str, str]
    inputs: dict[str, str]
    start: SourcePosition
    watermarked: bool
    processed: tuple[Span, ...] = ()
    seed: Progress | None = None
    oversized: Oversized = "stop"
    tables: bool = False


def destination_of(release: Release, app: App, start: SourcePosition, token: int) -> Destination:
    """The present generation of `release`, which starts at `start`, for the driver with lease token `token`."""
    return Destination(
        release=release.name,
        generation=release.generation,
        token=token,
        results=release.result_topics,
        inputs=app.topics,
        start=start,
        watermarked=app.watermark is not None,
        processed=release.under.processed if release.under else (),
        seed=release.under.seed if release.under else None,
        oversized=app.oversized,
        tables=any(isinstance(result, Table) for result in app.results.values()),
    )
