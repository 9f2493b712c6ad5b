"""A bucket of this machine: a server that speaks S3's protocol."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.settings import Settings
from tests.shared.ports import port_of
from tests.shared.waiting import until

HERE, ANY = "127.0.0.1", "0.0.0.0"
# on busy cores
STARTS_WITHIN_S = 60.0
OPTIONS = {"access_key": "ada", "secret_key": "planted-word", "region": "eu-west-1", "scheme": "http"}


@dataclass(frozen=True)
class BucketServer:
    """`port`: where it listens. `bucket`: the name of one that is there."""

    port: int
    bucket: str

    def endpoint(self, host: str = HERE) -> str:
        return f"{host}:{self.port}"

    def settings(self, host: str = HERE) -> dict[str, Any]:
        """Settings whose store is the bucket. `host`: the address by which it is reached."""
        url, store = f"s3://{self.bucket}/a/store", {**OPTIONS, "endpoint_override": self.endpoint(host)}
        # as validated: `model_copy` takes values as they are
        made = Settings(store_url=url, store=store)
        return {"store_url": made.store_url, "store": made.store}


def make_bucket(endpoint: str) -> str:
    """Creates a bucket, and returns its name."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    ask(f"http://{endpoint}/{name}", "PUT")
    return name


def ask(url: str, method: str) -> None:
    """Sends the server a request without a body."""
    urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10).close()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/moto-api/data.json", timeout=5):
            return True
    except OSError:
        return False


@contextmanager
def bucket_server(folder: Path, host: str = HERE) -> Iterator[BucketServer]:
    """Runs the server while the block runs, with an empty bucket. It listens on the address `host`."""
    folder.mkdir(parents=True)
    port = port_of("bucket")
    command = [sys.executable, "-P", "-m", "moto.server", "-H", host, "-p", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    address = f"{HERE}:{port}"

    def up() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return _answers(address)

    try:
        until("the server of the bucket answers", up, STARTS_WITHIN_S)
        yield BucketServer(port, make_bucket(address))
    finally:
        process.kill()
        process.wait()
