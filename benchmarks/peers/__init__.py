"""Apps as topologies of Kafka Streams: their results come from another engine, and from code that shares nothing with
the apps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.java import compile_java
from orchestration.local.jars import broker_jars, pyspark_jars, run_java
from pipelines.engine.jvm.jars import jar_set

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.java")))
HEAP_MB = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An app, the topics that it reads and those that it writes, which must exist. The order is the one in which the
    topology of the app names them.
    """

    app: str
    inputs: Sequence[str]
    outputs: Sequence[str]


def compile_to(folder: Path) -> None:
    """Writes the classes to `folder`. Raises SwitchyardError as `compile_java` does."""
    compile_java(folder, SOURCES, _jars(), doing="compiling the peers")


def run(bootstrap: str, peers: Sequence[Peer], *, classes: Path, folder: Path, name: str, timeout_s: int) -> None:
    """Runs `peers` in one JVM until each has read its inputs up to the ends that they have now.

    `classes`: see `compile_to`; `folder`: for states; the ids of their groups start with `name`. Raises SwitchyardError if
    one fails, or after `timeout_s` seconds.
    """
    topics = [part for each in peers for part in (each.app, ",".join(each.inputs), ",".join(each.outputs))]
    run_java(
        # it lives for seconds: the optimizing compiler would cost more than it gains
        *(f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=error"),
        # RocksDB unpacks its library there
        *(f"-Djava.io.tmpdir={folder}", "-cp", ":".join(map(str, [classes, *_jars()])), "peers.Peers"),
        *(bootstrap, str(folder), name, str(timeout_s), *topics),
        doing=f"running {', '.join(each.app for each in peers)} in Kafka Streams",
        # time to start and to end besides
        timeout_s=timeout_s + 60,
        fix="look at the error above; the sources are in benchmarks/peers",
    )


def _jars() -> Sequence[Path]:
    """Kafka Streams, the broker's jars, which have what else it needs, and RocksDB as Spark brings it."""
    return [*jar_set("peers"), *broker_jars(), *pyspark_jars().glob("rocksdbjni-*.jar")]
