"""A bucket of this machine: a server that speaks S3's protocol."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines import objects
from pipelines.objects import ObjectStore
from pipelines.settings import Settings
from tests.shared.ports import port_of
from tests.shared.waiting import until

# on busy cores
STARTS_WITHIN_S = 60.0
OPTIONS = {"access_key": "ada", "secret_key": "planted-word", "region": "eu-west-1", "scheme": "http"}

Host = Callable[..., Settings]


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/moto-api/data.json", timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server listens: HOST:PORT."""
    folder, port = tmp_path_factory.mktemp("moto"), port_of("bucket")
    command = [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    address = f"127.0.0.1:{port}"

    def up() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return answers(address)

    try:
        until("the server of the bucket answers", up, STARTS_WITHIN_S)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(endpoint: str) -> str:
    """The name of an empty bucket."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"http://{endpoint}/{name}", method="PUT"), timeout=10).close()
    return name


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
