"""Input topics: external assets, which others fill. The supervisor observes their offsets."""

from __future__ import annotations

from collections.abc import Sequence

from dagster import AssetSpec

from orchestration.catalog import readers, tables_of
from orchestration.defs.names import group_of, input_key
from pipelines.model.app import App


def input_assets(apps: Sequence[App]) -> list[AssetSpec]:
    """An asset per topic, in the group of the apps that read it; in the group `inputs` if they are of several groups."""
    tables = set().union(*map(tables_of, apps))
    groups = {app.name: group_of(app) for app in apps}
    return [
        AssetSpec(
            input_key(topic),
            group_name=groups[names[0]] if len({groups[name] for name in names}) == 1 else "inputs",
            description=f"Kafka topic `{topic}`, read by {', '.join(names)}. The supervisor observes its offsets once a minute.",
            kinds={"kafka", "source"} | ({"table"} if topic in tables else set()),
            metadata={"topic": topic},
        )
        for topic, names in sorted(readers(apps).items())
    ]
