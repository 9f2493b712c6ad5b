"""The positions of a reset's plan, as a file has them."""

from __future__ import annotations

from collections.abc import Mapping

from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.reading import Reading
from pipelines.errors import Refused
from pipelines.model.positions import SourcePosition


def new_positions(context: Reading, plan: Plan) -> dict[str, dict[int, int]]:
    """Topic -> partition -> offset that a reset goes to.

    Raises Refused where two sources of one topic go to different ones, and where it goes nowhere, but leaves a record out.
    """
    begin = next(s for s in plan.stages if isinstance(s, BeginGeneration))
    if begin.then is not None:
        raise Refused(
            "a file of positions can't say that a record is left out: read back, it would leave out all before it, or nothing",
            fix="leave out --export",
        )
    start = begin.start
    return by_topic(context.registry.known.releases[plan.releases[0]].spec.topics, start)


def by_topic(topics: Mapping[str, str], position: SourcePosition) -> dict[str, dict[int, int]]:
    """Topic -> partition -> offset of a position. `topics`: source name -> topic.

    Raises Refused where two sources of one topic stand at different offsets of a partition.
    """
    found: dict[str, dict[int, int]] = {}
    for source, offsets in sorted(position.sources.items()):
        for partition, offset in offsets.items():
            other = found.setdefault(topics[source], {}).setdefault(partition, offset)
            if other != offset:
                raise Refused(
                    f"a file of positions can't say that {topics[source]}[{partition}] is at {other} for one source and at {offset} for {source}",
                    fix="leave out --export; the plan shows both",
                )
    return found
