"""The embedded broker: one real Kafka node (KRaft) in a process of its own. Its data survives restarts."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from orchestration.local import server_config
from orchestration.local.jars import broker_jars
from orchestration.local.preflight import check_disk, check_port, find_java, listening
from orchestration.local.process import POLL_S, ProcessRef, spawn
from pipelines.engine.jvm.jars import archiving, broker_archive, mapping
from pipelines.errors import BadUsage, SwitchyardError, Unavailable
from pipelines.private import private
from pipelines.settings import Settings

FORMAT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 2.0
# below this, writes of Kafka's segment and index files would soon fail
START_FREE_GIB = 0.5
# the first errors tell more than the stack traces that follow
LOG_LINES_SHOWN = 8
# how an entry of the log starts
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?P<level>[A-Z]+) ")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerStatus:
    """What is known about the embedded broker; None: unknown."""

    running: bool
    # it runs, and it is the broker that answers on the port
    answering: bool
    bootstrap: str
    pid: int | None = None
    uptime_s: float | None = None
    heap_mb: int
    resident_bytes: int | None = None
    data_bytes: int
    data: Path
    log: Path


def refuse_another_s(settings: Settings) -> None:
    """Raises BadUsage if the embedded broker of another state folder is on the port of the settings. Code and states of
    its releases are not in this state folder, and would be taken for lost.
    """
    if not settings.embedded:
        return
    here = settings.state_dir.resolve() / "broker"
    own = ProcessRef.read(here / "broker.pid")
    if own is not None and own.alive() and server_config.port(here) == settings.broker_port:
        return
    found = listening(settings.broker_port)
    home = server_config.home_of(found[1]) if found is not None else None
    if home is not None and home.resolve() != here:
        raise BadUsage(
            f"the broker on port {settings.broker_port} belongs to the state folder {home.parent}, but the state folder here is {here.parent}",
            f"to use that broker, run commands in {home.parent.parent}, or set SWITCHYARD_STATE_DIR={home.parent}; for a broker of your own, choose another port: SWITCHYARD_BROKER_PORT=<port>",
        )


class EmbeddedBroker:
    """Starts, stops and inspects the broker of one state folder. Several processes may use it at once."""

    def __init__(self, settings: Settings, *, archive_to: Path | None = None) -> None:
        """Starts nothing. `archive_to`: where the broker writes the archive of its classes when it is stopped."""
        if not settings.embedded:
            raise BadUsage(
                f"the settings name a cluster, {settings.bootstrap}, so there is no embedded broker",
                "to use the embedded broker, unset SWITCHYARD_BOOTSTRAP_SERVERS",
            )
        self._settings = settings
        self._archive_to = archive_to
        self._home = settings.state_dir / "broker"
        self._data = self._home / "data"
        self._pid_file = self._home / "broker.pid"
        self._output = settings.state_dir / "logs" / "broker.out"
        self._log = settings.state_dir / "logs" / "broker.log"

    def start(self, timeout_s: float = 60.0) -> BrokerStatus:
        """Starts the broker unless it runs, and waits until it answers. Its data and topics are unchanged.

        Raises SwitchyardError if there is no Java, the port is busy, the disk is full, or the broker dies; Unavailable
        if it does not answer within `timeout_s` seconds, and then stops it again. Another broker that answers on the
        port is never taken for this one.
        """
        with self._locked():
            running = self._process()
            if running is not None:
                self._check_same_port()
                # if it ends while this waits, a new one is started
                if self._answers_within(timeout_s, running):
                    return self.status()
            refuse_another_s(self._settings)
            java = self._java()
            self._check_machine()
            self._write_configuration()
            if not self._data.exists():
                self._format(java)
            log_begins = self._log.stat().st_size if self._log.exists() else 0
            process = spawn(self._command(java), self._output, _environment())
            process.write(self._pid_file)
            try:
                if not self._answers_within(timeout_s, process):
                    raise self._died(log_begins)
            except BaseException:
                process.terminate(timeout_s=5.0)
                self._pid_file.unlink(missing_ok=True)
                raise
        return self.status()

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Stops the broker, and kills it after `timeout_s` seconds; its data stays. Returns whether it ran."""
        if not self._home.exists():
            return False
        with self._locked():
            process = self._process()
            if process is not None:
                process.terminate(timeout_s)
            self._pid_file.unlink(missing_ok=True)
        return process is not None

    def status(self) -> BrokerStatus:
        """The current status. Never raises for a broker that is down."""
        process = self._process()
        return BrokerStatus(
            running=process is not None,
            answering=process is not None and self._answers(),
            bootstrap=self._settings.bootstrap,
            pid=process.pid if process else None,
            uptime_s=process.uptime_s() if process else None,
            heap_mb=(server_config.heap_mb(process.pid) if process else None) or self._settings.broker_heap_mb,
            resident_bytes=process.resident_bytes() if process else None,
            data_bytes=sum(path.lstat().st_blocks * 512 for path in _files(self._data)),
            data=self._data,
            log=self._log,
        )

    def _process(self) -> ProcessRef | None:
        process = ProcessRef.read(self._pid_file)
        return process if process is not None and process.alive() else None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Allows one start or stop at a time in this state folder; a second one waits for the first."""
        try:
            private(self._settings.state_dir)
            self._home.mkdir(parents=True, exist_ok=True)
            self._log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SwitchyardError(
                f"the state folder {self._settings.state_dir} can't be written: {error.strerror}",
                "choose another: SWITCHYARD_STATE_DIR=<folder>",
            ) from error
        with open(self._home / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _java(self) -> str:
        java = find_java()
        if java.problem is not None:
            raise SwitchyardError(java.problem.what, java.problem.fix)
        return java.path

    def _check_machine(self) -> None:
        port = self._settings.broker_port
        if port >= 65535:
            raise BadUsage(f"broker_port {port} leaves no next port for the controller", "choose a port below 65535")
        for problem in (*map(check_port, server_config.ports(port)), check_disk(self._home, START_FREE_GIB)):
            if problem is not None:
                raise SwitchyardError(problem.what, problem.fix)

    def _check_same_port(self) -> None:
        """Raises BadUsage unless the settings name the port that the running broker was started with."""
        started_with = server_config.port(self._home)
        if started_with is not None and started_with != self._settings.broker_port:
            raise BadUsage(
                f"the broker of {self._settings.state_dir} already runs on port {started_with}, "
                f"but the settings say {self._settings.broker_port}",
                "run `switchyard down` first, or choose another SWITCHYARD_STATE_DIR",
            )

    def _write_configuration(self) -> None:
        server_config.write(self._home, data=self._data, log=self._log, port=self._settings.broker_port)

    def _format(self, java: str) -> None:
        """Makes the data folder, whole or not at all, so that an interrupted start does no harm."""
        fresh = self._home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        # Kafka's tool takes an id that starts with "-" for an option
        cluster_id = "-"
        while cluster_id.startswith("-"):
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        properties = server_config.write(self._home, data=fresh, log=self._log, port=self._settings.broker_port)
        command = [
            *self._java_command(java, heap_mb=128),
            *mapping(broker_archive()),
            "kafka.tools.StorageTool",
            "format",
        ]
        command += ["-t", cluster_id, "-c", str(properties)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=_environment(), timeout=FORMAT_TIMEOUT_S, check=False
            )
            said = (done.stdout + done.stderr).strip()
        except subprocess.TimeoutExpired:
            done, said = None, f"it took longer than {FORMAT_TIMEOUT_S:.0f} s"
        if done is None or done.returncode != 0:
            raise SwitchyardError(f"the broker's data folder could not be created:\n{said}", f"look at {self._home}")
        self._write_configuration()
        fresh.replace(self._data)

    def _java_command(self, java: str, heap_mb: int) -> list[str]:
        return [
            java,
            *server_config.jvm_options(self._home, self._log.parent, heap_mb),
            *("-cp", ":".join(map(str, broker_jars()))),
        ]

    def _command(self, java: str) -> list[str]:
        properties = server_config.properties_file(self._home)
        archived = mapping(broker_archive()) if self._archive_to is None else archiving(self._archive_to)
        return [*self._java_command(java, self._settings.broker_heap_mb), *archived, "kafka.Kafka", str(properties)]

    def _answers_within(self, timeout_s: float, process: ProcessRef) -> bool:
        """Waits until the broker answers: True. False: it has died. Raises Unavailable if it does neither in time."""
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if not process.alive():
                return False
            if time.monotonic() > deadline:
                another = ": another broker answers there" if self._cluster_there() is not None else ""
                raise Unavailable(
                    f"the broker (process {process.pid}) does not answer on port {self._settings.broker_port} "
                    f"after {timeout_s:.0f} s{another}",
                    f"see its log, {self._log}; `switchyard down` stops it",
                )
            time.sleep(POLL_S)
        return True

    def _answers(self) -> bool:
        """Whether the broker that answers has this data. Another one may have taken the port."""
        own = server_config.cluster_id(self._data)
        return own is not None and own == self._cluster_there()

    def _cluster_there(self) -> str | None:
        """The id of the cluster that answers on the port; None: none answers."""
        # tries the port first, because a Kafka client takes a while to give up
        if check_port(self._settings.broker_port) is None:
            return None
        from confluent_kafka import KafkaException

        from pipelines.kafka.client import require_broker

        try:
            client = require_broker(self._settings, timeout_s=ANSWER_TIMEOUT_S)
            found: str | None = client.describe_cluster(request_timeout=ANSWER_TIMEOUT_S).result().cluster_id
        except (Unavailable, KafkaException):
            return None
        return found

    def _died(self, log_begins: int) -> SwitchyardError:
        """The error for a broker that died while starting. Names a busy port first: it may have been taken since the
        check.
        """
        busy = next(filter(None, map(check_port, server_config.ports(self._settings.broker_port))), None)
        return SwitchyardError(
            f"the broker died while starting{f': {busy.what}' if busy else ''}; "
            f"its last messages:\n{self._last_words(log_begins)}",
            f"{f'{busy.fix}; ' if busy else ''}the whole log is {self._log}",
        )

    def _last_words(self, log_begins: int) -> str:
        """The first warnings and errors in its log, and the end of its output, where Java's own errors are."""
        lines = []
        with contextlib.suppress(FileNotFoundError), open(self._log, errors="replace") as log:
            log.seek(log_begins)
            lines = list(islice(_warnings(log), LOG_LINES_SHOWN))
        with contextlib.suppress(FileNotFoundError):
            lines += self._output.read_text(errors="replace").strip().splitlines()[-LOG_LINES_SHOWN:]
        return "\n".join(f"  {line[:240]}" for line in lines) or "  nothing"


def _warnings(log: Iterable[str]) -> Iterator[str]:
    """The lines of logged warnings and errors. A message may have several lines, as the one with the configuration has."""
    shown = True
    for line in log:
        first = _LOGGED.match(line)
        shown = first["level"] != "INFO" if first else shown
        if shown:
            yield line.rstrip()


def _environment() -> dict[str, str]:
    # Kafka's start scripts and Java read these; only the settings must decide
    ours = {"KAFKA_OPTS", "KAFKA_HEAP_OPTS", "CLASSPATH"}
    return {name: value for name, value in os.environ.items() if name not in ours}


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            # a segment may be deleted in the meantime
            if path.exists():
                yield path
