"""Hosts whose store is a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines import objects
from pipelines.objects import ObjectStore
from pipelines.settings import Settings
from tests.shared.bucket import OPTIONS, bucket_server, make_bucket

Host = Callable[..., Settings]


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server listens: HOST:PORT."""
    with bucket_server(tmp_path_factory.mktemp("server") / "bucket") as server:
        yield server.endpoint()


@pytest.fixture
def bucket(endpoint: str) -> str:
    """The name of an empty bucket."""
    return make_bucket(endpoint)


@pytest.fixture
def host(endpoint: str, bucket: str, tmp_path: Path) -> Host:
    """`host(name, **changes)`: the settings of a host with a state folder of its own and the bucket as its store."""

    def make(name: str, **changes: str) -> Settings:
        store = {**OPTIONS, "endpoint_override": endpoint, **changes}
        return Settings(
            state_dir=tmp_path / name, store_url=f"s3://{bucket}/a/store", store=store, bootstrap_servers="127.0.0.1:1"
        )

    return make


@pytest.fixture
def store(host: Host) -> ObjectStore:
    return store_of(host("any"))


def store_of(settings: Settings) -> ObjectStore:
    found = objects.object_store(settings)
    assert found is not None
    return found
