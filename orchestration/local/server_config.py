"""The configuration files of the embedded broker."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

NODE_ID = 1

# Each line that is not Kafka's default has its reason.
_SERVER = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={node_id}@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
# this machine only: it has no login
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}

# a misspelt topic is an error, not a new topic
auto.create.topics.enable=false
num.partitions=1

# one node: every internal topic has one copy
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# 50 each by default, which costs seconds at the first start and thousands of files; one machine has few groups
offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
share.coordinator.state.topic.num.partitions=1

# longer than the sink's transaction timeout, which is longer than the longest batch
transaction.max.timeout.ms=900000
# a release stopped for a holiday must find its offsets: a year
offsets.retention.minutes=525600
# a release's group has one member, so there is no one to wait for
group.initial.rebalance.delay.ms=0

# after a kill, the node waits until its earlier session has expired: 9 s by default
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=1000

# memory and threads of a small machine; the cleaner's buffer is 128 MiB of heap by default
log.cleaner.dedupe.buffer.size=33554432
num.network.threads=2
num.io.threads=4
background.threads=4
"""

_LOGGING = """\
status=warn
# otherwise log lines from the shutdown are lost
shutdownHook=disable
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={log}
appender.file.filePattern={log}.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c)%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""


def properties_file(home: Path) -> Path:
    """The path of the broker's own configuration."""
    return home / "server.properties"


def home_of(command: list[str]) -> Path | None:
    """The home folder of the embedded broker that a command runs; None: it runs something else."""
    if "kafka.Kafka" not in command or Path(command[-1]).name != "server.properties":
        return None
    return Path(command[-1]).parent


def ports(port: int) -> tuple[int, int]:
    """The ports of a broker on `port`: that one, and the next one for its controller."""
    return port, port + 1


def write(home: Path, *, data: Path, log: Path, port: int) -> Path:
    """Writes both files for a broker on `port`. Returns the path of the first."""
    own, controllers = ports(port)
    properties_file(home).write_text(
        _SERVER.format(node_id=NODE_ID, port=own, controller_port=controllers, data=_escaped(data))
    )
    (home / "log4j2.properties").write_text(_LOGGING.format(log=_escaped(log)))
    return properties_file(home)


def port(home: Path) -> int | None:
    """The port in the existing configuration; None without one."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search(r"^listeners=PLAINTEXT://[^:]+:(\d+)", properties_file(home).read_text(), re.MULTILINE)
        return int(found[1]) if found else None
    return None


def cluster_id(data: Path) -> str | None:
    """The cluster id of a broker with this data, which each data folder has its own of; None without one."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search(r"^cluster\.id=(\S+)$", (data / "meta.properties").read_text(), re.MULTILINE)
        return found[1] if found else None
    return None


def jvm_options(home: Path, logs: Path, heap_mb: int) -> list[str]:
    """The options of a JVM with at most `heap_mb` MiB of heap, and a quarter of that outside the heap."""
    return [
        f"-Xmx{heap_mb}m",
        f"-Xms{min(heap_mb, 256)}m",
        f"-XX:MaxDirectMemorySize={max(heap_mb // 4, 64)}m",
        # one large request must not keep its buffer for the life of a thread
        "-Djdk.nio.maxCachedBufferSize=262144",
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={logs / 'broker-crash.log'}",
        "-Djava.awt.headless=true",
        "-Dlog4j2.disable.jmx=true",
        f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
    ]


def heap_mb(pid: int) -> int | None:
    """The heap that a running broker was started with, in MiB; None if that can't be seen."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = [argument for argument in arguments if re.fullmatch(r"-Xmx\d+m", argument)]
    return int(found[-1][4:-1]) if found else None


def _escaped(path: Path) -> str:
    # a backslash starts an escape in a properties file
    return str(path).replace("\\", "\\\\")
