"""A `dagster dev` of the tests' own, driven as the UI does it: by GraphQL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.shared.ports import port_of

ROOT = Path(__file__).resolve().parents[2]
_BOOT_TIMEOUT_S = 300.0
_POLL_S = 0.5
# its SQLite is written by daemons and runs, too
ANSWER_TIMEOUT_S = 120.0
_SELECTOR = {"repositoryLocationName": "switchyard", "repositoryName": "__repository__"}

_LAUNCH = """
mutation ($parameters: ExecutionParams!) {
  launchRun(executionParams: $parameters) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on InvalidSubsetError { message }
  }
}"""
_RUN = """
query ($id: ID!) {
  runOrError(runId: $id) { ... on Run { status tags { key value } } }
  logsForRun(runId: $id) { ... on EventConnection { events {
    __typename
    ... on MessageEvent { message }
    ... on ExecutionStepFailureEvent { error { message } failureMetadata { metadataEntries { label
      ... on TextMetadataEntry { text } } } }
    ... on ExecutionStepOutputEvent { metadataEntries { label
      ... on MarkdownMetadataEntry { mdStr } ... on BoolMetadataEntry { boolValue } } }
  } } }
}"""
_ADD_PARTITION = """
mutation ($selector: RepositorySelector!, $name: String!, $key: String!) {
  addDynamicPartition(repositorySelector: $selector, partitionsDefName: $name, partitionKey: $key) { __typename }
}"""
_MATERIALIZATIONS = """
query ($key: AssetKeyInput!) {
  assetOrError(assetKey: $key) { ... on Asset { assetMaterializations(limit: 50) {
    partition metadataEntries { label ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue }
      ... on TextMetadataEntry { text } }
  } } }
}"""
_CHECKS = """
query ($key: AssetKeyInput!, $check: String!) {
  assetCheckExecutions(assetKey: $key, checkName: $check, limit: 20) {
    status partition evaluation { success description }
  }
}"""

_TICKS = """
query ($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) { ... on Sensor { sensorState { ticks(limit: 5) { timestamp status } } } }
}"""


class RunFailed(AssertionError):
    """A run ended otherwise than expected."""


class Dagster(ABC):
    """A running Dagster, asked as its UI asks."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """What it says; its end is shown when a wait fails."""

    @abstractmethod
    def answer_to(self, body: bytes) -> bytes:
        """The body of a GraphQL answer. Raises OSError without a server."""

    def ask(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer. Raises AssertionError for an error in it, OSError without a server."""
        answer = json.loads(self.answer_to(json.dumps({"query": query, "variables": variables}).encode()))
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def loaded(self) -> bool:
        """Whether it answers, and has loaded the definitions."""
        try:
            answer = self.ask("{ repositoriesOrError { ... on RepositoryConnection { nodes { name } } } }")
        except OSError:
            return False
        return bool(answer["repositoriesOrError"].get("nodes"))

    def until(self, what: str, probe: Callable[[], object], *, timeout_s: float) -> None:
        """Waits until `probe()` is true; fails naming `what`, with the end of the log."""
        deadline = time.monotonic() + timeout_s
        while not probe():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s:g} s\n{self.log.read_text()[-4000:]}")
            time.sleep(_POLL_S)

    def add_partition(self, name: str, key: str) -> None:
        answer = self.ask(_ADD_PARTITION, selector=_SELECTOR, name=name, key=key)["addDynamicPartition"]
        assert answer["__typename"] in ("AddDynamicPartitionSuccess", "DuplicateDynamicPartitionError"), answer

    def materialize(
        self, *key: str, config: dict[str, Any], partition: str | None = None, timeout_s: float, ok: bool = True
    ) -> Any:
        """Launches the run that the UI's button does, without its checks, and waits for its end."""
        return self.events_of(self.queue_asset(*key, config=config, partition=partition), timeout_s=timeout_s, ok=ok)

    def queue_asset(self, *key: str, config: dict[str, Any], partition: str | None = None) -> str:
        """Launches the run that the UI's button does, without its checks. Returns the run's id."""
        selector = {**_SELECTOR, "pipelineName": "__ASSET_JOB", "assetSelection": [{"path": list(key)}],
                    "assetCheckSelection": []}  # fmt: skip
        tags = [{"key": "dagster/partition", "value": partition}] if partition else []
        # Dagster names the op of an asset so
        op = "__".join(part.replace("-", "_") for part in key)
        return self._launched(selector, {"ops": {op: {"config": config}}}, tags)

    def check(self, *key: str, check: str, partition: str, timeout_s: float) -> Any:
        """Launches a check alone, as the UI's button does, and waits for its end."""
        chosen = {"assetKey": {"path": list(key)}, "name": check}
        selector = {**_SELECTOR, "pipelineName": "__ASSET_JOB", "assetSelection": [], "assetCheckSelection": [chosen]}
        return self._launch(selector, {}, [{"key": "dagster/partition", "value": partition}], timeout_s, True)

    def run_job(self, job: str, *, config: dict[str, Any], timeout_s: float, ok: bool = True) -> Any:
        """Launches a job with one op of its name, and waits for its end."""
        selector = {**_SELECTOR, "pipelineName": job}
        return self._launch(selector, {"ops": {job: {"config": config}}}, [], timeout_s, ok)

    def queue(self, job: str, *, config: dict[str, Any] | None = None) -> str:
        """Launches a job with one op of its name. Returns the run's id."""
        ops = {} if config is None else {"ops": {job: {"config": config}}}
        return self._launched({**_SELECTOR, "pipelineName": job}, ops, [])

    def status(self, run: str) -> str:
        """The status of a run, as Dagster calls it."""
        found: str = self.ask(_RUN, id=run)["runOrError"]["status"]
        return found

    def _launched(self, selector: Any, config: Any, tags: Any) -> str:
        parameters = {"selector": selector, "runConfigData": config, "mode": "default",
                      "executionMetadata": {"tags": tags}}  # fmt: skip
        answer = self.ask(_LAUNCH, parameters=parameters)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        run: str = answer["run"]["runId"]
        return run

    def _launch(self, selector: Any, config: Any, tags: Any, timeout_s: float, ok: bool) -> Any:
        return self.events_of(self._launched(selector, config, tags), timeout_s=timeout_s, ok=ok)

    def events_of(self, run: str, *, timeout_s: float, ok: bool = True) -> Any:
        """Waits for the end of a run. Returns its events. Raises RunFailed if it ends otherwise than expected."""
        ended = {"SUCCESS", "FAILURE", "CANCELED"}
        found: dict[str, Any] = {}

        def over() -> bool:
            found.update(self.ask(_RUN, id=run))
            return found["runOrError"]["status"] in ended

        self.until(f"run {run} has not ended", over, timeout_s=timeout_s)
        status = found["runOrError"]["status"]
        events = found["logsForRun"]["events"]
        if status != ("SUCCESS" if ok else "FAILURE"):
            said = "\n".join(str(e.get("error") or e.get("message")) for e in events)
            raise RunFailed(f"run {run} ended with {status}:\n{said[-6000:]}")
        return events

    def materializations(self, *key: str) -> list[dict[str, Any]]:
        """The newest first: partition, and metadata by name."""
        found = self.ask(_MATERIALIZATIONS, key={"path": list(key)})["assetOrError"]
        return [{"partition": m["partition"], **_by_label(m["metadataEntries"])}
                for m in found.get("assetMaterializations", [])]  # fmt: skip

    def checks(self, *key: str, check: str) -> list[dict[str, Any]]:
        """Executions of a check, the newest first."""
        found: list[dict[str, Any]] = self.ask(_CHECKS, key={"path": list(key)}, check=check)["assetCheckExecutions"]
        return found

    def turns(self, sensor: str, *, since_s: float) -> int:
        """How many of a sensor's last evaluations began after `since_s`, seconds since the epoch, and went well."""
        selector = {**_SELECTOR, "sensorName": sensor}
        ticks = self.ask(_TICKS, selector=selector)["sensorOrError"]["sensorState"]["ticks"]
        return sum(t["timestamp"] > since_s and t["status"] in ("SKIPPED", "SUCCESS") for t in ticks)


class DagsterDev(Dagster):
    """What `switchyard ui` starts, in a process group of its own.

    `options`: those of the command.
    """

    def __init__(self, home: Path, environment: dict[str, str], options: Sequence[str] = ()) -> None:
        self._options = options
        # another one may run beside it
        self._port = port_of(f"dagster in {home}")
        self.url = f"http://127.0.0.1:{self._port}"
        self._home = home
        self._environment = {**os.environ, **environment, "DAGSTER_DISABLE_TELEMETRY": "yes",
                             # a run's start is a Python process with all imports: on busy cores over its 60 s
                             "DAGSTER_GRPC_TIMEOUT_SECONDS": "300"}  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)

    @property
    def log(self) -> Path:
        return self._home / "dev.log"

    def start(self) -> None:
        """Starts it, unless it runs, and waits until its code location is loaded."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "orchestration.cli", "ui", "--home", str(self._home), "--port", str(self._port),
                   *self._options]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.until("Dagster has not loaded the definitions", self._loaded, timeout_s=_BOOT_TIMEOUT_S)

    def _loaded(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"it ended:\n{self.log.read_text()[-4000:]}")
        return self.loaded()

    def kill(self) -> None:
        """Ends all of its processes at once, without a word: web server, daemon, code server, runs."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)
        self._process = None

    def processes(self) -> set[int]:
        """Its processes, those of its runs included."""
        assert self._process is not None
        return {pid for pid in _all_pids() if _group(pid) == self._process.pid}

    def answer_to(self, body: bytes) -> bytes:
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as response:
                found: bytes = response.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{error}: {error.read().decode()[:2000]}") from error
        return found


def metadata_of(events: list[dict[str, Any]], kind: str = "ExecutionStepOutputEvent") -> dict[str, Any]:
    """The metadata of a run's output, by name."""
    found: dict[str, Any] = {}
    for event in events:
        if event["__typename"] == kind:
            found |= _by_label(event["metadataEntries"])
    return found


def failure_of(events: list[dict[str, Any]]) -> str:
    """What the failed step of a run says."""
    return "\n".join(str(e["error"]["message"]) for e in events if e["__typename"] == "ExecutionStepFailureEvent")


def _by_label(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {e["label"]: next((v for k, v in e.items() if k != "label"), None) for e in entries}


def _all_pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
