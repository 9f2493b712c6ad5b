"""Input topics: external assets, which others fill. The supervisor observes their offsets."""

from __future__ import annotations

from collections.abc import Sequence

from dagster import AssetSpec

from orchestration.catalog import readers, tables_of
from orchestration.defs.names import group_of, input_key
from pipelines.model.app import App


def input_assets(apps: Sequence[App]) -> list[AssetSpec]:
    """An asset per topic, in its app's group; in the group `inputs` if several apps read it."""
    tables = set().union(*map(tables_of, apps))
    return [
        AssetSpec(
            input_key(topic),
            group_name=group_of(names[0]) if len(names) == 1 else "inputs",
            description=f"Kafka topic `{topic}`, read by {', '.join(names)}. The supervisor observes its offsets once a minute.",
            kinds={"kafka", "source"} | ({"table"} if topic in tables else set()),
            metadata={"topic": topic},
        )
        for topic, names in sorted(readers(apps).items())
    ]
