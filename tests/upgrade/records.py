"""Writes what an archive of `make_state.sh` has in the registry and in the progress topics as JSON lines.

`python -m tests.upgrade.records tests/upgrade/state-0.1.tar.xz`, with the version that made it, makes `records-0.1.jsonl` beside it:
the very bytes, so that a test without a broker can hold each later version against them.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.ledger.reader import read
from orchestration.local import server_config
from orchestration.local.broker import EmbeddedBroker
from pipelines.kafka.topics import topic_names
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC
from pipelines.settings import Settings

# Kafka forgets the offsets of a group that is away for longer; an archive is older than that one day
_FOR_EVER = "\noffsets.retention.minutes=2147483647\n"


class OldBroker(EmbeddedBroker):
    """The embedded broker on the data of an archive, however old that is."""

    def _write_configuration(self) -> None:
        super()._write_configuration()
        with server_config.properties_file(self._home).open("a") as properties:
            properties.write(_FOR_EVER)


@contextmanager
def opened(archive: Path, folder: Path, port: int) -> Iterator[Settings]:
    """The settings of a broker on a copy of the archive in `folder`, which runs while the block does."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    settings = Settings(state_dir=folder, broker_port=port, broker_heap_mb=512)
    broker = OldBroker(settings)
    broker.start(300)
    try:
        yield settings
    finally:
        broker.stop()


def spoken(topics: list[str]) -> list[str]:
    """Topics in which drivers and operators speak, of those given."""
    return [t for t in sorted(topics) if t in (REGISTRY_TOPIC, HEARTBEATS_TOPIC) or t.endswith(".progress")]


def main(archive: Path, port: int) -> None:
    into = archive.with_name(archive.name.replace("state-", "records-").removesuffix(".tar.xz") + ".jsonl")
    with TemporaryDirectory() as folder, opened(archive, Path(folder), port) as settings:
        lines = [
            json.dumps({"topic": record.topic, "value": record.value.decode()})
            for topic in spoken(list(topic_names(settings)))
            for record in read(settings.bootstrap, topic)
            if record.value is not None
        ]
    into.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} records in {into}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ.get("PORT", "19592")))
