"""One cluster for the tests of comparison, switch and bad input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without a Spark session: for what only asks, plans and is refused."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def cluster(bare_cluster: Cluster, spark: SparkSession) -> Cluster:
    """The cluster, with a session for diffs and checks."""
    bare_cluster.spark = lambda: spark
    return bare_cluster
