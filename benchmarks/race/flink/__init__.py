"""A query as SQL of Flink, in a cluster of one JVM. Its jars are fetched when they are first needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.java import compile_java
from benchmarks.race.queries import Query
from orchestration.local.jars import ensure, one_at_a_time, read_list
from pipelines.engine.jvm.jars import jar_set, jars_dir
from pipelines.errors import SwitchyardError

HERE = Path(__file__).parent
SLOTS = 2
_FETCH_TIMEOUT_S = 900
_OPENED = ("lang", "net", "io", "nio", "lang.reflect", "text", "time", "util", "util.concurrent")
# what Flink's own start script gives to a Java of modules
_MODULES = (
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.atomic=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent.locks=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
)
# the topics of the queries, without how they are read
_COLUMNS = {
    "trades": "`ticker` STRING, `side` STRING, `price` DECIMAL(8, 2), `size` INT",
    "visits": "`member` STRING, `page` INT",
    "members": "`member` STRING, `level` INT",
}
_KEYS = {"trades": None, "visits": "member", "members": "member"}


def fetch() -> None:
    """Fetches Flink's jars from PyPI and its connector from Maven Central, each with its checksum, unless they are there.
    Raises SwitchyardError if they can't be had.
    """
    with one_at_a_time(jars_dir()):
        ensure(jars=read_list(HERE / "jars.toml"))
        if any((jars_dir() / "flink").glob("*.jar")):
            return
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=jars_dir()) as work:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary=:all:",
                       "--no-build-isolation", "--require-hashes", "-d", work, "-r", str(HERE / "requirements.txt")]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
            if done.returncode:
                raise SwitchyardError(
                    f"fetching Flink failed:\n{done.stderr.strip()}", "check the network, then try again"
                )
            [package] = Path(work).glob("*.tar.gz")
            unpacked = Path(work) / "flink"
            unpacked.mkdir()
            with tarfile.open(package) as files:
                for member in files:
                    if Path(member.name).parent.match("deps/lib") and (source := files.extractfile(member)) is not None:
                        with (unpacked / Path(member.name).name).open("wb") as target:
                            shutil.copyfileobj(source, target)
            os.replace(unpacked, jars_dir() / "flink")


def compile_to(folder: Path) -> None:
    """Writes the class that runs statements to `folder`. Raises SwitchyardError as `compile_java` does."""
    compile_java(folder, [HERE / "RunSql.java"], _jars(), doing="compiling for Flink")


def arguments(classes: Path, folder: Path, statements: str, heap_mb: int) -> Sequence[str]:
    """The arguments of a Java that runs `statements`. Writes them to `folder`, which gets the checkpoints, too."""
    file = folder / "query.sql"
    file.write_text(statements)
    return [
        f"-Xmx{heap_mb}m",
        *_MODULES,
        "-Dlog4j2.level=error",
        f"-Djava.io.tmpdir={folder}",
        *(
            "-cp",
            ":".join(map(str, [classes, *_jars()])),
            "race.RunSql",
            str(file),
            str(folder / "checkpoints"),
            str(SLOTS),
        ),
    ]


def statements(query: Query, bootstrap: str, name: str, result: str) -> str:
    """Flink's SQL for a query: it reads, as the consumer group `name`, up to the present ends of its topics, and writes
    to the topic `rows_out`, which exists.
    """
    sources = [
        _source(topic, bootstrap, name, table=topic in query.tables) for topic in (query.measured, *query.tables)
    ]
    columns = ", ".join(f"`{column}` {kind}" for column, kind in query.columns.items())
    options = {
        "topic": result,
        "properties.bootstrap.servers": bootstrap,
        "key.format": "json",
        "value.format": "json",
        "value.json.encode.decimal-as-plain-number": "true",
        "value.fields-include": "EXCEPT_KEY",
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": name,
        "properties.transaction.timeout.ms": "600000",
        "properties.compression.type": "lz4",
        "properties.batch.size": "262144",
        "properties.linger.ms": "5",
    }
    # what changes a row needs the connector of tables; windows are told once
    if query.table and not query.views:
        primary = f", PRIMARY KEY ({_names(query.key)}) NOT ENFORCED"
        sink = f"CREATE TABLE rows_out ({columns}{primary}) WITH ({_options({'connector': 'upsert-kafka', **options})})"
    else:
        keyed = {"connector": "kafka", "key.fields": ";".join(query.key), **options}
        sink = f"CREATE TABLE rows_out ({columns}) WITH ({_options(keyed)})"
    return "\n\n".join([*sources, sink, *query.views, f"INSERT INTO rows_out {query.select.strip()}"])


def _source(topic: str, bootstrap: str, group: str, *, table: bool) -> str:
    options = {
        "topic": topic,
        "properties.bootstrap.servers": bootstrap,
        "properties.group.id": group,
        "properties.isolation.level": "read_committed",
        "scan.bounded.mode": "latest-offset",
        "value.format": "json",
    }
    time = "`event_time` TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL"
    watermark = "WATERMARK FOR `event_time` AS `event_time` - INTERVAL '10' SECOND"
    key = _KEYS[topic]
    if key is not None:
        options |= {"key.format": "raw", "value.fields-include": "EXCEPT_KEY"}
    if table:
        columns = f"{_COLUMNS[topic]}, {time}, {watermark}, PRIMARY KEY (`{key}`) NOT ENFORCED"
        return f"CREATE TABLE {topic} ({columns}) WITH ({_options({'connector': 'upsert-kafka', **options})})"
    options |= {"connector": "kafka", "scan.startup.mode": "earliest-offset"}
    if key is not None:
        options["key.fields"] = key
    return f"CREATE TABLE {topic} ({_COLUMNS[topic]}, {time}, {watermark}) WITH ({_options(options)})"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{column}`" for column in columns)


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


def _jars() -> Sequence[Path]:
    return [*jar_set("flink"), *jar_set("flink-connector")]
