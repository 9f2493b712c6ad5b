"""Operators that die: commands in processes that are forked from one with all imports, and killed by SIGKILL.

The drivers that they start run on as threads of the test. They check in the test's Spark session.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from pipelines.errors import Refused
from pipelines.settings import Settings
from tests.shared.terminal import Said
from tests.shared.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from orchestration.operations.plans.stages.base import Stage, StageId
    from pipelines.model.entries import Entry

# seeds the moments at which operators die
SEED = int(os.environ.get("SWITCHYARD_KILLS_SEED", "1"))
_ROOT = Path(__file__).resolve().parents[2]
# an operator can be killed at any line of these packages
_PRODUCT = tuple(str(_ROOT / package) for package in ("orchestration", "pipelines"))
_PRELOAD = (
    "orchestration.cli", "orchestration.operations.execute", "orchestration.operations.planning.reset.plan", "pyspark.sql", __name__,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """When an operator is killed. It kills itself, so it never misses the moment.

    `line`: at the `line`-th line of the product that it runs after it has opened its operation. In each stage, a line
    counts once. `stage`: before the stage of that id, or the first of that kind. `entry`: as soon as an entry of that kind
    is committed.
    """

    line: int | None = None
    stage: type[Stage] | StageId | None = None
    entry: type[Entry] | None = None


@dataclass
class Operator:
    """`switchyard` in a process of its own."""

    process: Any
    out: Path
    err: Path
    _launches: threading.Thread = field(repr=False)

    def end(self, timeout_s: float = 240) -> Said:
        """Waits for its end. The exit code is -9 if it was killed. Fails if it printed a traceback."""
        self.process.join(timeout_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise AssertionError(f"an operator has not ended within {timeout_s:g} s:\n{self.err.read_text()}")
        self._launches.join()
        said = Said(self.process.exitcode, self.out.read_text(), self.err.read_text())
        assert "Traceback" not in said.text, said.text
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self._launches.join()


class Operators:
    """Starts operators on one cluster. `launcher`: starts their drivers."""

    def __init__(self, settings: Settings, folder: Path, launcher: Threads, spark: Callable[[], SparkSession]) -> None:
        self._settings, self._folder, self._launcher, self._spark = settings, folder, launcher, spark
        self._all: list[Operator] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOAD))

    def start(self, *arguments: object, death: Death | None = None, **environment: str) -> Operator:
        number = len(self._all)
        out, err = (self._folder / f"operator-{number}.{name}" for name in ("out", "err"))
        ours, theirs = self._context.Pipe()
        java = self._spark().sparkContext._gateway.java_parameters  # type: ignore[union-attr]
        given = {
            **os.environ, **self._settings.environment(), "COLUMNS": "200", **environment,
            "PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.auth_token,
        }  # fmt: skip
        process = self._context.Process(
            target=_operate, args=(list(map(str, arguments)), given, self._folder, out, err, theirs, death)
        )
        process.start()
        theirs.close()
        launches = threading.Thread(target=self._serve, args=(ours,), name=f"launches of operator {number}")
        launches.start()
        self._all.append(found := Operator(process, out, err, launches))
        return found

    def end(self) -> None:
        """Kills those that still run."""
        for operator in self._all:
            operator.kill()
            operator.process.close()

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            while True:
                values, release, options = connection.recv()
                try:
                    answer: Any = self._launcher.with_settings(Settings(**values)).launch(release, **options)
                except Refused as refusal:
                    # a driver's process would start, see this, and end
                    answer = refusal.what
                connection.send(answer)


def end_server() -> None:
    """Ends the process that operators are forked from. It would outlive the tests for a moment."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


# -- in the operator's process


class _Asking:
    """Makes the test start a driver."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings, self._connection = settings, connection

    def launch(self, release: str, **options: Any) -> str:
        self._connection.send((self._settings.model_dump(), release, options))
        return str(self._connection.recv())

    def log_path(self, release: str) -> Path | None:
        return None


def _operate(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, out: Path, err: Path,
    connection: Connection, death: Death | None,
) -> None:  # fmt: skip
    from orchestration import cli
    from orchestration.operations import context
    from pipelines.settings import get_settings

    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    get_settings.cache_clear()
    launcher: Any = partial(_Asking, connection=connection)
    context.LocalLauncher = launcher  # type: ignore[misc]
    context.Context.session_soon = lambda _, records=None: _session  # type: ignore[method-assign, assignment]
    if death is not None:
        _die_at(death)
    code = cli.run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _session() -> Any:
    """The test's own Spark session, through another connection to its JVM."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
        java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
            gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        )
        SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jvm=gateway.jvm, _jconf=java.getConf()))
    return SparkSession.builder.getOrCreate()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(death: Death) -> None:
    from orchestration.operations import journal
    from orchestration.operations.applying.applier import Applier
    from pipelines.kafka.registry import Registry
    from tests.shared.stages import acting_before

    if death.stage is not None:
        Applier.apply = acting_before(death.stage, _die)  # type: ignore[method-assign, assignment]
    if (kind := death.entry) is not None:
        step = Registry.step

        def stepped(self: Registry, decide: Any, **more: Any) -> Any:
            written: list[Any] = []

            def noted(state: Any) -> Any:
                written[:] = decide(state)
                return written

            state = step(self, noted, **more)
            if any(isinstance(e, kind) for e in written):
                _die()
            return state

        Registry.step = stepped  # type: ignore[method-assign]
    if death.line is not None:
        begin, apply, left, seen = journal.begin, Applier.apply, death.line, set[tuple[str, int]]()

        def applied(self: Applier, stage: Stage) -> None:
            seen.clear()
            apply(self, stage)

        Applier.apply = applied  # type: ignore[method-assign]

        def traced(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            # librdkafka's client calls this with an error pending, which any call made here would raise
            if frame.f_code.co_name == "delivered":
                return None
            if not frame.f_code.co_filename.startswith(_PRODUCT):
                return None
            if event == "line" and (at := (frame.f_code.co_filename, frame.f_lineno)) not in seen:
                seen.add(at)
                left -= 1
                if left <= 0:
                    _die()
            return traced

        def begun(*given: Any, **more: Any) -> Any:
            state = begin(*given, **more)
            threading.settrace(traced)
            sys.settrace(traced)
            frame = sys._getframe(1)
            while frame is not None:
                frame.f_trace = traced
                frame = frame.f_back  # type: ignore[assignment]
            return state

        journal.begin = begun
