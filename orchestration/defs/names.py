"""What things are called in Dagster: asset keys, groups, partitions, tags."""

from __future__ import annotations

from dagster import AssetKey, DynamicPartitionsDefinition

# on runs: which release, or which app, they are about
RELEASE_TAG = "switchyard/release"
APP_TAG = "switchyard/app"
OWNERS = ["team:streaming"]


def group_of(app: str) -> str:
    """`stock-stats` -> `stock_stats`: Dagster's groups know no hyphen."""
    return app.replace("-", "_")


def input_key(topic: str) -> AssetKey:
    return AssetKey(["inputs", topic])


def results_key(app: str) -> AssetKey:
    return AssetKey(["results", app])


def live_key(app: str) -> AssetKey:
    return AssetKey(["live", app])


def partitions_name(app: str) -> str:
    """The name of an app's dynamic partitions; a key is a release's name, as in `stock-stats.v2`."""
    return f"releases_{group_of(app)}"


def releases_of(app: str) -> DynamicPartitionsDefinition:
    """An app's releases as partitions. They are added as releases are staged, from wherever."""
    return DynamicPartitionsDefinition(name=partitions_name(app))
