"""The JVM of this process: its start, early or late, and its end."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

from py4j.java_gateway import java_import  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from pipelines.engine.spark_conf import session_conf
from pipelines.private import private
from pipelines.secrets import withheld, without_secrets
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

_LOCAL_IP = "SPARK_LOCAL_IP"
# Spark's own command line names this module, and Java has no option to be silent about it
_INCUBATOR = b"WARNING: Using incubator modules: jdk.incubator.vector"
_LINE_BYTES = 65_536
# how long its last lines may take to be shown
_LAST_WORDS_S = 1.0
# PySpark calls these by their last names only, and imports just their packages. Unless they are imported by name, each
# call looks for them in one package after the other, in all of Spark's jars
_OFTEN_CALLED = ("org.apache.spark.api.python.PythonUtils", "org.apache.spark.sql.api.python.PythonSQLUtils")


def start_jvm_early(settings: Settings, **options: Any) -> None:
    """Starts the JVM of a session while this process does other things. Whatever needs the JVM waits for it.

    `options`: those of `session_conf`.
    """
    conf = session_conf(settings, **options)

    def started() -> None:
        try:
            need_jvm(settings, conf)
        except Exception as error:
            # whoever needs it tries again, and raises
            log.info("the JVM did not start early: %s", error)

    threading.Thread(target=started, name="spark", daemon=True).start()


def start_jvm(settings: Settings) -> None:
    """Starts the JVM of a driver's session, if it doesn't run yet. Returns when it does."""
    with ThreadPoolExecutor(1, "spark") as pool:
        pool.submit(need_jvm, settings, session_conf(settings)).result()


_starting = threading.Lock()


def need_jvm(settings: Settings, conf: dict[str, str]) -> None:
    """Starts the JVM of this process, unless it has one. Call it on a thread of its own, whose priority it changes."""
    (private(settings.state_dir) / "spark").mkdir(exist_ok=True)
    # workers must run the interpreter that the driver runs
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # where the UI listens; what an operator has set for other programs doesn't open it, only what is set for drivers
    if _LOCAL_IP not in settings.driver_environment:
        os.environ[_LOCAL_IP] = "127.0.0.1"
    # changes this thread only; the JVM inherits it
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(settings.driver_nice, os.getpriority(os.PRIO_PROCESS, thread)))
    with _starting:
        if SparkContext._gateway is None:
            _yield_session(_start_jvm(conf, settings.driver_environment), settings.driver_nice)


@contextmanager
def without_warning() -> Iterator[int]:
    """A file descriptor for the standard error of a JVM. Its lines go to what is now this process's standard error, except
    for the warning of `_INCUBATOR`.
    """
    come, go = os.pipe()
    # as a JVM would inherit it
    own = os.dup(2)

    def forward() -> None:
        with open(come, "rb") as lines:
            # a line without an end must not fill the memory
            for line in iter(lambda: lines.readline(_LINE_BYTES), b""):
                left = b"" if line.rstrip() == _INCUBATOR else line
                # a JVM must not wait for a reader, even if nobody reads ours any more
                with suppress(OSError):
                    while left:
                        left = left[os.write(own, left) :]
        os.close(own)

    forwarding = threading.Thread(target=forward, name="errors of the JVM", daemon=True)
    forwarding.start()
    try:
        yield go
    except BaseException:
        # what it said about why it did not start comes before the error
        os.close(go)
        forwarding.join(_LAST_WORDS_S)
        raise
    os.close(go)
    # what a JVM says while it ends; one that still runs ends with this process, and is not waited for
    atexit.register(_await_last_words, forwarding)


def _await_last_words(forwarding: threading.Thread) -> None:
    if jvm_exit_code(0.0) is not None:
        forwarding.join(_LAST_WORDS_S)


def _start_jvm(conf: dict[str, str], environment: tuple[str, ...]) -> int:
    """Starts the JVM of this process. Returns the pid of its session leader.

    Secrets are not on its command line, which any user can see; they are set once it runs. The environment of the JVM and
    of its Python workers holds no secret either. A driver leads its own session; elsewhere the JVM gets a new session. It
    still ends with this process.
    """
    leads = os.getsid(0) == os.getpid()
    # a driver's standard error is its log, which keeps all that a JVM says, even if the driver has been killed
    with withheld(environment), nullcontext() if leads else without_warning() as errors:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            SparkConf(loadDefaults=False).setAll([*without_secrets(conf).items()]),
            {"start_new_session": not leads, "stderr": errors},
        )
    for name in _OFTEN_CALLED:
        java_import(gateway.jvm, name)
    SparkContext._ensure_initialized(gateway=gateway)
    return os.getpid() if leads or gateway.proc is None else int(gateway.proc.pid)


def _yield_session(pid: int, nice: int) -> None:
    """Gives other sessions preference over that of `pid`, if Linux groups processes by session.

    Then a thread's nice value only counts within its session (autogroups, sched(7)). The JVM has its own session so that
    this does not slow down an operator's shell.
    """
    # the file is missing without autogroups
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _jvm() -> Popen[bytes] | None:
    """The JVM's process; None if this process has no JVM."""
    return SparkContext._gateway.proc if SparkContext._gateway is not None else None


def jvm_exit_code(timeout_s: float) -> int | None:
    """The exit code of this process's JVM, if it ends by itself within `timeout_s`; None: it runs, or there is none."""
    proc = _jvm()
    if proc is None:
        return None
    try:
        return int(proc.wait(timeout_s))
    except TimeoutExpired:
        return None


def stop_jvm(timeout_s: float) -> None:
    """Ends the JVM of this process, if it has one. Kills it after `timeout_s`. Returns when it has ended.

    Otherwise the JVM would outlive this process for a moment, and could write a snapshot into a checkpoint that another
    driver has taken over.
    """
    proc = _jvm()
    if proc is None:
        return
    # its shutdown hooks delete its temporary files
    proc.terminate()
    try:
        proc.wait(timeout_s)
    except TimeoutExpired:
        proc.kill()
        proc.wait()
