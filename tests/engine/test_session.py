"""How Spark shares the cores with other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pipelines.engine
from pipelines.engine.expressions import INTERPRETED
from pipelines.engine.spark_conf import session_conf
from pipelines.settings import Settings
from tests.shared.ports import port_of
from tests.shared.sockets import is_local

pytestmark = [pytest.mark.spark]

OWN = Path("/proc/self/autogroup")
# also empty for a process in the machine's first session
GROUP = OWN.read_text() if OWN.exists() else ""
ROOT = Path(__file__).resolve().parents[2]
SWITCH = Path("/proc/sys/kernel/sched_autogroup_enabled")
# whether Linux groups processes by session
GROUPS = SWITCH.exists() and SWITCH.read_text().strip() == "1"
NICE = 7
LOGGING = Path(pipelines.engine.__file__).parent / "jvm"
STARTS = """
import json, os
from pathlib import Path
from pyspark import SparkContext
from pipelines.engine.session import build_session
from pipelines.settings import get_settings
from tests.shared.sockets import listening
spark = build_session(get_settings(), "yielding", heap_mb=512, cores=1, brief=True)
again = build_session(get_settings(), "yielding", heap_mb=512, cores=1)

def of(pid):
    group = Path(f"/proc/{pid}/autogroup")
    named = group.read_text() if group.exists() else ""
    return [pid, os.getsid(pid), os.getpriority(os.PRIO_PROCESS, pid), named, sorted(listening(pid))]

told = {"count": spark.range(3).count(), "same": again is spark, "own": of(os.getpid())}
print(json.dumps({**told, "jvm": of(SparkContext._gateway.proc.pid)}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    pid: int
    session: int
    nice: int
    group: str
    listening: list[tuple[str, int]]

    @property
    def group_nice(self) -> int:
        """In the form `/autogroup-12 nice 7`."""
        return int(self.group.split()[2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """What a process reports that built a Spark session twice. `leads`: whether the process leads its own session."""

    leads: bool
    count: int
    same: bool
    said: str
    own: Process
    jvm: Process


IDS = {True: "its own session", False: "another's session"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Started]:
    """A process that leads a session and one in our session, side by side: each starts a JVM. The first one inherits an
    address on which Spark's UI would be open to all; without any, it would be, too.
    """
    with ExitStack() as stack:
        running = {}
        for leads, name in IDS.items():
            settings = Settings(
                state_dir=tmp_path_factory.mktemp("session"), driver_nice=NICE, spark_ui_port=port_of(f"UI of {name}")
            )
            environment = {**settings.child_environment(), "SPARK_LOCAL_IP": "0.0.0.0"}
            if not leads:
                del environment["SPARK_LOCAL_IP"]
            running[leads] = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", STARTS], env=environment, start_new_session=leads, cwd=ROOT,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
            stack.callback(running[leads].kill)
        return {leads: _started(leads, process) for leads, process in running.items()}


def _started(leads: bool, process: subprocess.Popen[str]) -> Started:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    own, jvm = (Process(**dict(zip(Process.__slots__, told[who], strict=True))) for who in ("own", "jvm"))
    return Started(leads=leads, count=told["count"], same=told["same"], said=err, own=own, jvm=jvm)


@pytest.fixture(params=list(IDS), ids=list(IDS.values()))
def started(both: dict[bool, Started], request: pytest.FixtureRequest) -> Started:
    return both[request.param]


def test_a_session_is_built_once_and_nothing_is_said_of_it(started: Started) -> None:
    assert started.same and "existing Spark session" not in started.said, started.said


def test_spark_yields_the_cores_and_the_session_of_others_does_not(started: Started) -> None:
    assert started.count == 3
    own, jvm = started.own, started.jvm
    assert (own.nice, jvm.nice) == (os.getpriority(os.PRIO_PROCESS, 0), NICE)
    # in a session that others use, the JVM gets a session of its own
    assert jvm.session == (own.pid if started.leads else jvm.pid)
    if GROUPS:
        assert jvm.group_nice == NICE
        assert own.group == (jvm.group if started.leads else GROUP)
        assert OWN.read_text() == GROUP
    else:
        assert own.group == jvm.group == ""


def test_spark_and_its_ui_listen_on_this_machine_only(started: Started) -> None:
    ports = {port for _, port in started.jvm.listening}
    assert port_of(f"UI of {IDS[started.leads]}") in ports and len(ports) > 1
    for address, port in [*started.jvm.listening, *started.own.listening]:
        assert is_local(address), (address, port)


def compiles(spark: SparkSession) -> bool:
    return "WholeStageCodegen" in spark.range(3).selectExpr("id + 1")._jdf.queryExecution().executedPlan().toJSON()


def test_expressions_are_compiled_except_for_some_rows(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    assert not compiles(spark)
    request.getfixturevalue("compiled")
    assert compiles(spark)
    few, many = (session_conf(Settings(), heap_mb=512, cores=1, few_rows=each) for each in (True, False))
    assert few == many | INTERPRETED


def logged(spark: SparkSession, name: str, text: str) -> str:
    """A line as a driver's JVM would log it, with the layout of that file."""
    pattern = (LOGGING / name).read_text().split("layout.pattern = ")[1].splitlines()[0].replace("\\\\", "\\")
    log4j = spark._jvm.org.apache.logging.log4j.core  # type: ignore[union-attr]
    message = spark._jvm.org.apache.logging.log4j.message.SimpleMessage(text)  # type: ignore[union-attr]
    event = log4j.impl.Log4jLogEvent.newBuilder().setLoggerName("a.B").setMessage(message).build()
    line: str = log4j.layout.PatternLayout.newBuilder().withPattern(pattern).build().toSerializable(event)
    return line


def test_the_jvm_s_log_obeys_no_control_character_of_a_record(spark: SparkSession) -> None:
    text = "failed on \x1b]52;c;aGk=\x07\x9b31m\u202e[red]\r\n\tat a frame"
    line = logged(spark, "log4j2.properties", text)
    assert line.rstrip("\n").endswith("B: failed on ?]52;c;aGk=??31m?[red]?\n\tat a frame")
    line = logged(spark, "log4j2-json.properties", text)
    assert line.endswith("\n") and line[:-1].isprintable()
    assert json.loads(line)["message"] == "failed on \x1b]52;c;aGk=\x07\x9b31m?[red]\r\n\tat a frame"


def test_a_python_worker_starts_with_the_modules_of_an_app_loaded(spark: SparkSession) -> None:
    def loaded(_: int) -> list[str]:
        import sys

        return [name for name in ("pandas", "pyarrow") if name in sys.modules]

    assert spark.sparkContext.parallelize([0], 1).map(loaded).collect() == [["pandas", "pyarrow"]]
