"""What things are called in Dagster: asset keys, groups, partitions, tags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dagster import AssetKey, DynamicPartitionsDefinition

from pipelines.model.app import App

# tags on runs: the release and the app that they are about
RELEASE_TAG = "switchyard/release"
APP_TAG = "switchyard/app"
# on runs of `start`: the run, and the newest token of the release's lease before the run starts a driver
TOKEN_TAG = "switchyard/token"
# runs with a Spark session, of which a machine holds only some; those that consumers wait for are not in it
SPARK_POOL = "spark"
# runs that wait until a release has caught up
HYDRATION_POOL = "hydration"
# before other runs in the queue
URGENT = {"dagster/priority": "10"}
# orchestration/local/dagster.yaml limits how many runs with the same value of this tag there are at once
LIMITED = "switchyard/limited"
OWNERS = ["team:streaming"]


def name_of(app: str) -> str:
    """`stock-stats` -> `stock_stats`, because Dagster's names allow no hyphen."""
    return app.replace("-", "_")


def group_of(app: App) -> str:
    """The group of an app's assets: what it shows, such as `low_level`, or `apps`.

    Dagster allows only letters, digits and underscores there.
    """
    return re.sub(r"\W", "_", app.shows or "apps", flags=re.ASCII)


def input_key(topic: str) -> AssetKey:
    return AssetKey(["inputs", topic])


def results_key(app: str) -> AssetKey:
    return AssetKey(["results", app])


def live_key(app: str) -> AssetKey:
    return AssetKey(["live", app])


def check_name(check: str) -> str:
    """`lowest_ask not null` -> `lowest_ask_not_null`, because Dagster's names of checks are words."""
    return re.sub(r"\W", "_", check, flags=re.ASCII)


def verdict_name(suites: Mapping[str, str]) -> str:
    """The check that stands for the verdict of an app's suites (result name -> suite): that of the only suite."""
    return suites.get("", "verdict")


def partitions_name(app: str) -> str:
    """The name of an app's dynamic partitions. A partition key is a release's name, such as `stock-stats.v2`."""
    return f"releases_{name_of(app)}"


def releases_of(app: str) -> DynamicPartitionsDefinition:
    """An app's releases as partitions. They are added when releases are staged, from Dagster or elsewhere."""
    return DynamicPartitionsDefinition(name=partitions_name(app))
