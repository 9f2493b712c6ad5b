"""Fixtures for all tests: a broker of the test run, a Spark session, topics that are deleted after the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException
from hypothesis import settings as hypothesis_settings

from orchestration.local.process import ProcessRef
from pipelines import secrets
from pipelines.settings import Settings, get_settings
from tests.shared.ports import port_of
from tests.shared.shares import Shares, in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER_HEAP_MB = 512
# variables of a test run that its tests keep
KEPT = (
    "SWITCHYARD_BROKER_KILLS",
    "SWITCHYARD_EXECUTOR_KILLS",
    "SWITCHYARD_JARS_DIR",
    "SWITCHYARD_KILLS",
    "SWITCHYARD_KILLS_SEED",
    "SWITCHYARD_OUTAGES",
    "SWITCHYARD_RUNBOOK",
)
# the JVMs of tests live for minutes: the optimizing compiler would cost more than it gains
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
# whether this is one of several processes of a run (`pytest -n`)
WORKER = "PYTEST_XDIST_WORKER" in os.environ
# every process that a test starts inherits it; the end of the run finds leftover processes by it
MARK = "SWITCHYARD_TEST_SESSION"
SESSION = os.environ[MARK] if WORKER else uuid.uuid4().hex

FreshTopic = Callable[..., str]


def pytest_configure(config: pytest.Config) -> None:
    # the time of an example depends on how busy the machine is
    hypothesis_settings.register_profile("untimed", deadline=None)
    hypothesis_settings.load_profile("untimed")
    # a test sees only what it sets itself: no developer's cluster, no broker of `switchyard up`
    for name in [name for name in os.environ if name.startswith("SWITCHYARD_") and name not in KEPT]:
        del os.environ[name]
    os.environ[MARK] = SESSION
    os.environ["JDK_JAVA_OPTIONS"] = SHORT_LIVED
    # ended by a time limit, say: fixtures still clean up
    signal.signal(signal.SIGTERM, _interrupt)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [items[n] for n in in_order([i.path.relative_to(config.rootpath / "tests").as_posix() for i in items])]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return Shares(config, log)


@pytest.hookimpl(trylast=True)  # after the fixtures are torn down
def pytest_sessionfinish(session: pytest.Session) -> None:
    _end_spark()
    if "tests.shared.operators" in sys.modules:
        from tests.shared.operators import end_server

        end_server()
    if WORKER:  # processes of the other workers still run
        return
    left = [(process, command) for process, command in _started_by_tests() if process.alive()]
    for process, _ in left:
        process.terminate(timeout_s=5.0)
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    for process, command in left:
        print(f"\nERROR: left running by a test, ended now: {process.pid} {command}")


@pytest.fixture(autouse=True)
def _settings_of_this_test() -> Iterator[None]:
    """Clears the cached settings and their secrets, which `masked` would remove from the messages of later tests.

    Also restores SIGTERM's handler.
    """
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()
    secrets._known.clear()
    secrets._pattern = None
    # Dagster gives SIGTERM the handler of SIGINT. A background process ignores SIGINT, and what it starts then would
    # ignore SIGTERM, too
    signal.signal(signal.SIGTERM, _interrupt)


@pytest.fixture(scope="session")
def running_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings of a broker that runs for the whole session."""
    from tests.shared.login import BrokerWithLogin

    settings = Settings(
        state_dir=tmp_path_factory.mktemp("broker"), broker_port=port_of("broker"), broker_heap_mb=BROKER_HEAP_MB,
        # on busy cores most batches take long, and would be followed by long pauses
        target_latency_s=0.0,
    )  # fmt: skip
    embedded = BrokerWithLogin(settings)
    # the other processes of a run on the same cores can make it this slow
    embedded.start(180)
    yield settings
    embedded.stop()


@pytest.fixture(scope="module")
def broker(running_broker: Settings) -> Iterator[Settings]:
    """The settings of the session's broker. After each module, all topics, groups and files are deleted."""
    yield running_broker
    sweep(running_broker)


@pytest.fixture
def fresh_topic(broker: Settings, request: pytest.FixtureRequest) -> Iterator[FreshTopic]:
    """`fresh_topic(partitions=1, **config)` creates a topic named after the test and returns its name.

    It is deleted after the test. Underscores in a config's name stand for dots.
    """
    from confluent_kafka.admin import NewTopic

    from pipelines.kafka.client import admin

    client = admin(broker)
    made: list[str] = []

    def make(partitions: int = 1, **config: str) -> str:
        test = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:80]
        name = f"{test}-{uuid.uuid4().hex[:8]}"
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        client.create_topics([topic])[name].result(timeout=10)
        made.append(name)
        return name

    yield make
    if made:
        for future in client.delete_topics(made).values():
            future.result(timeout=10)


def sweep(settings: Settings) -> None:
    """Deletes every topic and group of a broker, and the files of its releases."""
    from pipelines.kafka.client import admin
    from pipelines.kafka.topics import delete_topics

    client = admin(settings)
    topics = [name for name in client.list_topics(timeout=30).topics if not name.startswith("__")]
    # the list may still name what the last test has deleted
    delete_topics(settings, topics, client=client)
    groups = [group.group_id for group in client.list_consumer_groups().result(timeout=30).valid]
    for future in (client.delete_consumer_groups(groups) if groups else {}).values():
        with suppress(KafkaException):  # a member that was not closed stays until its session times out
            future.result(timeout=30)
    _unload_states()
    # frozen code stays: its name is its digest, and Spark's Python workers read it when a task first needs it
    for name in ("checkpoints", "evidence", "data-docs", "run"):
        shutil.rmtree(settings.state_dir / name, ignore_errors=True)


def _unload_states() -> None:
    """Makes Spark unload the states of ended queries.

    It would still write snapshots of them, into folders that may then belong to another test.
    """
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        from pipelines.testing.session import unload_states

        unload_states()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where nothing listens: its port is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session, configured like a driver's. All drivers, checks and trials of this process share it."""
    from tests.shared.session import shared_session

    session = shared_session(tmp_path_factory.mktemp("spark"), heap_mb=2_048, young_mb=768)
    yield session
    left = [query.name or str(query.id) for query in session.streams.active]
    session.stop()
    # one that a test forgot takes CPU time from all that follow
    assert left == [], f"queries that no test stopped: {left}"


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Makes Spark compile expressions, as it does for a driver; the tests' session interprets them."""
    from pipelines.engine.expressions import INTERPRETED

    for name in INTERPRETED:
        spark.conf.unset(name)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def _end_spark() -> None:
    """Ends the JVM of this process's Spark, which otherwise lives until the interpreter has ended."""
    if "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()
    process.wait(timeout=120)


def _started_by_tests(grace_s: float = 5.0) -> list[tuple[ProcessRef, str]]:
    """The processes that carry this session's mark and have not ended after `grace_s`, with their commands."""
    deadline = time.monotonic() + grace_s
    while (found := _marked()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _marked() -> list[tuple[ProcessRef, str]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) == os.getpid() or f"{MARK}={SESSION}".encode() not in (folder / "environ").read_bytes():
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:160]
        except OSError:
            continue  # it has just ended, or belongs to another user
        process = ProcessRef.of(int(folder.name))
        if process is not None:
            found.append((process, command))
    return found
