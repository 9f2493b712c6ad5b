"""YARN on hosts: Hadoop's own ResourceManager and NodeManagers, each a process of a host."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from orchestration.local.jars import ensure, one_at_a_time, pyspark_jars, read_list
from pipelines.engine.jvm.jars import jar_set, jars_dir
from tests.cluster.cluster import SHORT_LIVED, Cluster
from tests.cluster.hosts import Host
from tests.shared.waiting import until

_JARS = Path(__file__).with_name("yarn_jars.toml")
_START_S = 90.0
_DAEMONS = "org.apache.hadoop.yarn.server"
# MiB and cores of each NodeManager: more than there are
_NODE_MB, _NODE_CORES = 8192, 8
# a queue in which not even Spark's own container fits
FULL = "full"
# parts of the cluster in percent, and the most that each may take
_QUEUES = {"default": (95, 100), FULL: (5, 5)}
EXECUTOR = "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"


def fetch() -> None:
    """Fetches what the daemons need, unless it is there. `make test-cluster` does so, as its hosts can't. Raises SwitchyardError
    if it can't be had.
    """
    with one_at_a_time(jars_dir()):
        ensure(jars=read_list(_JARS))


class YarnCluster(Cluster):
    """`one` is the host of drivers; `three` has the ResourceManager and a NodeManager, `four` another NodeManager.

    The variable HADOOP_CONF_DIR of this process must name `configuration_of(folder)`, so that its settings fit.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("one", "three", "four"))
        self.one, self.three, self.four = self.named.values()
        self.configuration = configuration_of(folder)
        try:
            self._start_yarn()
        except BaseException:
            self.close()
            raise

    def settings(self, host: Host, **changes: Any) -> Any:
        given: Mapping[str, Any] = {
            "store_shared": True,
            "spark_master": "yarn",
            "driver_host": host.address,
            "executors": 1,
            "executor_cores": 1,
            "executor_heap_mb": 512,
            # busy cores are not what is tested
            "executor_timeout_s": 200,
            "driver_nice": 0,
        }
        spark = {
            "spark.driver.defaultJavaOptions": SHORT_LIVED,
            "spark.executor.defaultJavaOptions": SHORT_LIVED,
            "spark.yarn.am.extraJavaOptions": SHORT_LIVED,
            **changes.pop("spark", {}),
        }
        return super().settings(host, **{**given, **changes, "spark": spark})

    # -- YARN's own processes

    def _start_yarn(self) -> None:
        write_configuration(self.configuration, self.three.address, self.hosts.disk)
        self._daemon(self.three, "resourcemanager.ResourceManager")
        for host in (self.three, self.four):
            self._daemon(host, "nodemanager.NodeManager")
        until("no NodeManager has registered", lambda: self._registered() == 2, _START_S, poll_s=0.5)

    def _java(self, *arguments: str) -> list[str]:
        wanted = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "log4j-", "jcl-over-slf4j", "bcprov")
        own = [path for path in sorted(pyspark_jars().glob("*.jar")) if path.name.startswith(wanted)]
        path = ":".join(map(str, [self.configuration, *jar_set("yarn"), *own]))
        # its pages need the opened package
        opened = "--add-opens=java.base/java.lang=ALL-UNNAMED"
        return ["java", "-Xmx256m", *SHORT_LIVED.split(), opened, "-Dlog4j2.level=info", "-cp", path, *arguments]

    def _daemon(self, host: Host, name: str) -> None:
        java = shutil.which("java")
        assert java is not None
        # containers take their Java from there
        home = {"JAVA_HOME": str(Path(java).resolve().parents[1])}
        host.start(self._java(f"{_DAEMONS}.{name}"), {**self.plain_environment, **home})

    def _registered(self) -> int:
        return self.three.log.read_text(errors="replace").count("NodeManager from node ")

    # -- what an operator of YARN does

    def applications(self) -> list[str]:
        """The ids of applications that are not over."""
        said = self._yarn("application", "-list")
        return [line.split()[0] for line in said.splitlines() if line.startswith("application_")]

    def kill(self, application: str) -> None:
        """Kills an application as `yarn application -kill` does."""
        self._yarn("application", "-kill", application)

    def _yarn(self, *arguments: str) -> str:
        command = self._java("org.apache.hadoop.yarn.client.cli.ApplicationCLI", *arguments)
        done = self.three.run(command, self.plain_environment, 120)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def executors(self) -> dict[int, str]:
        """The processes of executors, as seen from here, and the id of the application of each."""
        found = {}
        for pid in (pid for host in (self.three, self.four) for pid in host.pids_of(EXECUTOR)):
            with suppress(OSError, ValueError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                found[pid] = words[words.index("--app-id") + 1]
        return found


def configuration_of(folder: Path) -> Path:
    """The folder of YARN's configuration. `folder`: of the test run."""
    return folder / "hadoop"


def write_configuration(folder: Path, manager: str, disk: Path) -> None:
    """Writes the configuration of a cluster. `manager`: address of its ResourceManager; `disk`: where hosts write."""
    names = ",".join(_QUEUES)
    queues = {f"{name}.capacity": part for name, (part, _) in _QUEUES.items()}
    queues |= {f"{name}.maximum-capacity": most for name, (_, most) in _QUEUES.items()}
    # each driver has a container of Spark's own, and by default they may take a tenth of a queue
    files: Mapping[str, Mapping[str, object]] = {
        "yarn-site.xml": {
            "yarn.resourcemanager.hostname": manager,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.nodemanager.resource.memory-mb": _NODE_MB,
            "yarn.nodemanager.resource.cpu-vcores": _NODE_CORES,
            "yarn.nodemanager.local-dirs": disk / "yarn-local",
            "yarn.nodemanager.log-dirs": disk / "yarn-logs",
            # the limit for memory counts here, too: by default, NodeManagers leave it to control groups, which need more rights
            "yarn.nodemanager.resource.memory.enforced": "false",
            # of addresses, which a JVM only reserves: 2.8 GiB with a heap of 512 MiB
            "yarn.nodemanager.vmem-check-enabled": "false",
            # a test machine with a full disk still runs containers
            "yarn.nodemanager.disk-health-checker.enable": "false",
            # by default 250 ms: on a busy host, what a container does at its end is often cut short
            "yarn.nodemanager.sleep-delay-before-sigkill.ms": "1",
        },
        "capacity-scheduler.xml": {
            "yarn.scheduler.capacity.maximum-am-resource-percent": 1,
            "yarn.scheduler.capacity.root.queues": names,
            **{f"yarn.scheduler.capacity.root.{name}": value for name, value in queues.items()},
        },
    }
    folder.mkdir(exist_ok=True)
    for name, properties in files.items():
        lines = (f"<property><name>{key}</name><value>{escape(str(value))}</value></property>" for key, value in properties.items())  # fmt: skip
        (folder / name).write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")


if __name__ == "__main__":
    fetch()
