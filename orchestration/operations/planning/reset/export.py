"""The positions of a reset's plan, for a file."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.positions import SourcePosition


def new_positions(context: Reading, plan: Plan) -> dict[str, dict[int, int]]:
    """Topic -> partition -> offset that a reset goes to.

    Raises Refused if two sources of one topic go to different offsets, and if the reset only skips a record.
    """
    begin = next(s for s in plan.stages if isinstance(s, BeginGeneration))
    if begin.left_out is not None:
        raise Refused(
            "a file of positions can't hold a skipped record: --from-file would skip everything before it, or nothing",
            fix="leave out --export",
        )
    start = begin.start
    return by_topic(context.registry.known.releases[plan.releases[0]].spec.topics, start)


def by_topic(topics: Mapping[str, str], position: SourcePosition) -> dict[str, dict[int, int]]:
    """Topic -> partition -> offset of a position. `topics`: source name -> topic.

    Raises Refused if two sources of one topic are at different offsets of a partition.
    """
    found: dict[str, dict[int, int]] = {}
    for source, offsets in sorted(position.sources.items()):
        for partition, offset in offsets.items():
            other = found.setdefault(topics[source], {}).setdefault(partition, offset)
            if other != offset:
                raise Refused(
                    f"a file of positions can't hold two offsets for {topics[source]}[{partition}]: {other} for one source and {offset} for {source}",
                    fix="leave out --export; the plan shows both",
                )
    return found
