"""Drivers as threads of the test's process, in its one Spark session: each starts in a second.

Everything else is real: the broker, the registry, the drivers' code, their checkpoints. A test that kills or freezes a
driver, or needs an interpreter of its own for it, names its release in `Threads.processes` and gets a process instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.launchers.local import LocalLauncher
from orchestration.operations import trials
from orchestration.operations.planning import stage
from pipelines.engine.code import FrozenCode
from pipelines.engine.driver import Driver
from pipelines.engine.known import Known
from pipelines.engine.probe import probe
from pipelines.settings import Settings
from pipelines.signals import StopSignal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# how the names of drivers' threads start
_DRIVER = "driver of "


def patient(seconds: float) -> None:
    """Sleeps for at least a tenth of a second: frequent questions to Kafka would slow down what the test waits for."""
    time.sleep(max(seconds, 0.1))


def drives() -> bool:
    """Whether the calling thread is that of a driver."""
    return threading.current_thread().name.startswith(_DRIVER)


class Threads:
    """A launcher whose drivers are threads, or processes for the releases in `processes`. `end` ends them all."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._threads: list[tuple[str, threading.Thread, StopSignal]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self.processes: set[str] = set()

    def with_settings(self, settings: Settings) -> Threads:
        """The same launcher; its next drivers get other settings."""
        found = type(self)(settings)
        found._threads, found._started, found.processes = self._threads, self._started, self.processes
        return found

    def launch(self, release: str, *, force: bool = False, settle: bool = False) -> str:
        if release in self.processes:
            process = LocalLauncher(self._settings).spawn(release, force=force, settle=settle)
            self._started.append(process)
            return f"process {process.pid}"
        stop = StopSignal()
        driver = Driver(self._settings.for_driver(), release, force=force, settle=settle, signalled=stop)
        thread = threading.Thread(target=_run, args=(driver,), name=f"{_DRIVER}{release}")
        thread.start()
        self._threads[:] = [*(each for each in self._threads if each[1].is_alive()), (release, thread, stop)]
        return "a thread"

    def log_path(self, release: str) -> Path | None:
        return LocalLauncher(self._settings).log_path(release) if release in self.processes else None

    def running(self, release: str) -> tuple[threading.Thread, StopSignal]:
        """The last thread that drives or drove `release`, and the event that stops it."""
        return next((thread, stop) for name, thread, stop in reversed(self._threads) if name == release)

    def alive(self, release: str) -> bool:
        """Whether a thread drives `release`."""
        return any(name == release and thread.is_alive() for name, thread, _ in self._threads)

    def end(self) -> None:
        """Stops every driver at a boundary. Kills a process that doesn't end; fails if a thread doesn't."""
        for _, _, stop in self._threads:
            stop.set()
        for process in self._started:
            process.terminate()
        for _, thread, _ in self._threads:
            thread.join(60)
        for process in self._started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        left = [thread.name for _, thread, _ in self._threads if thread.is_alive()]
        assert not left, f"still alive a minute after it was told to stop: {', '.join(left)}"


def _run(driver: Driver) -> None:
    """Runs a driver, then ends what the end of a process would end; a superseded driver leaves that to its process."""
    driver.run()
    if driver._query is not None:
        driver._query.stop()
        driver._member.close()


# (module of tests, code, app, settings) -> what a trial was told of the app, what it knew of the world, and what it found
_TRIED: dict[tuple[str, ...], tuple[Mapping[str, Any], Known, dict[str, Any]]] = {}


@contextmanager
def trials_in(spark: SparkSession) -> Iterator[None]:
    """While the block runs, `stage` and `show` try apps in `spark` instead of starting a JVM.

    A module of tests tries the same code once with the same settings, unless it reads a static table, or what the trial is
    told of the world differs.
    """
    # Spark's Python workers read the code when a task first needs it, so it must outlive the trial
    folder = Path(mkdtemp(prefix="switchyard-trials-"))

    def trial(
        _: Settings, code: FrozenCode, app: str, settings: Mapping[str, Any], check: trials.Check | None = None
    ) -> dict[str, Any]:
        check = check or trials.suites_of(code)
        module = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
        what = module, code.digest, app, json.dumps(settings, sort_keys=True)
        if what in _TRIED:
            definition, known, facts = _TRIED[what]
            if not known.records and check(definition) == known:
                return deepcopy(facts)
        told: list[tuple[Mapping[str, Any], Known]] = []

        def checked(definition: Mapping[str, Any]) -> Known:
            told.append((deepcopy(definition), check(definition)))
            return told[-1][1]

        path = folder / f"{code.digest}.zip"
        path.write_bytes(code.data)
        facts = probe(path, code.digest, app, settings, lambda: spark, checked, folder=str(code.folder or ""))
        _TRIED[what] = *told[-1], deepcopy(facts)
        return facts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "probe", trial)
        patch.setattr(trials, "probe", trial)
        yield
