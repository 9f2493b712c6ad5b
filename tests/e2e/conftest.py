"""A cluster for each module that compares, switches and resets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pipelines.settings import Settings
from tests.e2e.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def cluster(broker: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a session for drivers, diffs and checks."""
    cluster = Cluster(broker, tmp_path_factory.mktemp("cluster"), lambda: spark)
    yield cluster
    cluster.close()
