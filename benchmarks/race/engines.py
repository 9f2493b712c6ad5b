"""The engines that take part: how each is started on a query, how far it has committed, and how it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from confluent_kafka import TopicPartition

from benchmarks.hydrating import Open
from benchmarks.java import compile_java
from benchmarks.race import flink, plain_spark
from benchmarks.race.inputs import PARTITIONS
from benchmarks.race.queries import Query
from orchestration.local.jars import broker_jars
from orchestration.local.preflight import find_java
from orchestration.operations.execute import execute
from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.planning.run import plan_start, plan_stop
from orchestration.operations.planning.stage import plan_stage
from pipelines.engine.jvm.jars import PROJECT_ROOT, jar_set
from pipelines.kafka.client import consumer
from pipelines.kafka.topics import RESULT_STREAM, delete_topics, ensure_topic, topic_names
from pipelines.model.names import result_topic
from pipelines.settings import Settings

HEAP_MB = 1024
_END_S = 60
# characters of a log
_LAST = 3_000
_STREAMS = Path(__file__).parent / "streams"

# partition -> offset up to which a query has committed what it read of the measured topic
Committed = Callable[[], Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A query that runs. `done`: whether it has ended by itself, with all committed; `failure`: its last words if it has
    failed, or None; `end` ends it. `result`: the topic of its results; `forget` deletes what it leaves.
    """

    committed: Committed
    done: Callable[[], bool]
    failure: Callable[[], str | None]
    end: Callable[[], None]
    result: str
    forget: Callable[[], None]


class Engine(Protocol):
    name: str

    def prepare(self, query: Query, number: int) -> Callable[[], Run]:
        """Makes everything ready for run `number` of a query. What it returns starts the run, and is measured."""
        ...


class Switchyard:
    """A release, staged before and then started, with the settings as they are shipped."""

    name = "switchyard"

    def __init__(self, opened: Open) -> None:
        self._open = opened

    def prepare(self, query: Query, number: int) -> Callable[[], Run]:
        context = self._open()
        plan = plan_stage(context, query.app, version=number, code_dir=query.code_dir)
        execute(context, plan)
        [release] = plan.releases

        def forget() -> None:
            execute(context, plan_retire(context, release))

        def start() -> Run:
            execute(context, plan_start(context, release))
            committed = _by_group(context.settings, release, query.measured)

            seen: list[Mapping[int, int]] = [{}, {}]

            def written() -> Mapping[int, int]:
                """What is committed but for the last batch, until one without records has written what has waited."""
                found, last = committed(), context.progress(release)
                if found != seen[-1]:
                    seen[:] = [seen[-1], found]
                return found if last is not None and not last.batch.rows_in else seen[0]

            return Run(
                committed=written if query.waits else committed,
                done=lambda: False,
                failure=lambda: context.registry.state().releases[release].failure,
                end=lambda: execute(context, plan_stop(context, release)),
                result=result_topic(release, 1),
                forget=forget,
            )

        return start


def _by_group(settings: Settings, group: str, topic: str) -> Committed:
    asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    # one client for all questions: a new one takes some hundredths of a second
    client = consumer(settings, group_id=group, isolation_level="read_uncommitted")

    def committed() -> Mapping[int, int]:
        found = client.committed(asked, timeout=settings.request_timeout_s)
        return {each.partition: max(each.offset, 0) for each in found}

    return committed


class Process:
    """An engine in a process of its own, which ends on SIGTERM. `command`: of a run of a query, with a name of its own, a
    folder and the topic of the results; `committed`: of such a run; None: the consumer group of that name says it.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        work: Path,
        command: Callable[[Query, str, Path, str], Sequence[str]],
        committed: Callable[[Path], Committed] | None = None,
    ) -> None:
        self.name = name
        self._settings = settings
        self._work = work
        self._command = command
        self._committed = committed

    def prepare(self, query: Query, number: int) -> Callable[[], Run]:
        name = f"{self.name}-{query.name}-{number}"
        result = f"{name}.result"
        folder = self._work / name
        folder.mkdir(parents=True)
        ensure_topic(self._settings, result, PARTITIONS, RESULT_STREAM)
        command = self._command(query, name, folder, result)

        def start() -> Run:
            with (folder / "log").open("wb") as log:
                process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=log, stderr=log, start_new_session=True)

            def end() -> None:
                # Flink ends by itself
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                process.wait(_END_S)

            return Run(
                committed=_by_group(self._settings, name, query.measured)
                if self._committed is None
                else self._committed(folder),
                done=lambda: process.poll() == 0,
                failure=lambda: None if process.poll() in (None, 0) else (folder / "log").read_text()[-_LAST:],
                end=end,
                result=result,
                forget=lambda: self._forget(name),
            )

        return start

    def _forget(self, name: str) -> None:
        """Deletes the run's topics: that of the results, and those that Kafka Streams made. Its group is left."""
        delete_topics(self._settings, [topic for topic in topic_names(self._settings) if topic.startswith(name)])


def engines(opened: Open, work: Path) -> Sequence[Engine]:
    """All engines. Fetches what they need, and compiles. Raises SwitchyardError if that can't be had."""
    settings = opened().settings
    flink.fetch()
    classes = work / "classes"
    flink.compile_to(classes / "flink")
    streams = [*jar_set("peers"), *broker_jars()]
    compile_java(classes / "streams", _STREAMS.glob("*.java"), streams, doing="compiling for Kafka Streams")
    path_of_streams = ":".join(map(str, [classes / "streams", *streams]))
    java = find_java().path

    def in_flink(query: Query, name: str, folder: Path, result: str) -> Sequence[str]:
        asked = flink.statements(query, settings.bootstrap, name, result)
        return [java, *flink.arguments(classes / "flink", folder, asked, HEAP_MB)]

    def in_streams(query: Query, name: str, folder: Path, result: str) -> Sequence[str]:
        return [
            *(java, f"-Xmx{HEAP_MB}m", "-Dlog4j2.level=error", f"-Djava.io.tmpdir={folder}"),
            *("-cp", path_of_streams, "race.RaceStreams"),
            *(settings.bootstrap, name, str(folder), query.name, result),
        ]

    def in_spark(query: Query, name: str, folder: Path, result: str) -> Sequence[str]:
        module = "benchmarks.race.plain_spark"
        return [sys.executable, "-m", module, query.name, settings.bootstrap, result, str(folder), str(HEAP_MB)]

    def of_spark(folder: Path) -> Committed:
        return lambda: plain_spark.committed(folder / "checkpoint")

    return (
        Switchyard(opened),
        Process("flink", settings, work, in_flink),
        Process("streams", settings, work, in_streams),
        Process("spark", settings, work, in_spark, of_spark),
    )
