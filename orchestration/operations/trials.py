"""Runs an app's code in a process of its own, before anything of it is staged. It needs no broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from expectations.names import require_suite
from pipelines.engine.code import FrozenCode, files_in, freeze
from pipelines.engine.known import Known
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.settings import Settings

Check = Callable[[Mapping[str, Any]], Known]
# what a command says before a trial: Spark takes seconds to start, on a busy machine longer
TRYING = "starting Spark to try the app"
# what an answer has one of
_ANSWERS = {"spec", "batches", "error"}


def default_code_dir() -> Path:
    """The folder of the apps that come with Switchyard."""
    import pipelines.apps

    return Path(pipelines.apps.__path__[0])


def probe(
    settings: Settings,
    code: FrozenCode,
    app: str,
    given: Mapping[str, Any],
    check: Check | None = None,
) -> dict[str, Any]:
    """What a release of `app` would be, see `pipelines.engine.probe`; its suites are tried, too. `given`: settings of the app.

    `check`: gets what the app's definition says, `sources`, `inputs`, `upstream`, `static` and `suites`, before Spark
    is used. The trial's time does not run meanwhile. What it raises ends the trial. None: only checks that its suites are
    there. Raises BadUsage and Refused as the trial does; SwitchyardError if it doesn't end in time, or can't run.
    """
    answer = _answer(settings, "expectations.trial", code, app, given, check=check or suites_of(code))
    facts: dict[str, Any] = answer["spec"]
    return facts


def try_rows(
    settings: Settings, app: str, code_dir: Path | None, given: Mapping[str, Any], batches: Sequence[Sequence[Any]]
) -> list[dict[str, Any]]:
    """What the function of `app` makes of `batches` of records, see `pipelines.testing.attempt`.

    Raises BadUsage for what is wrong with the app or a record, AppFailed for a batch that fails; else as `probe`.
    """
    code = freeze(code_dir or default_code_dir())
    answer = _answer(
        settings, "pipelines.testing.attempt", code, app, given, check=suites_of(code), text=json.dumps(batches)
    )
    found: list[dict[str, Any]] = answer["batches"]
    return found


def require_suites(definition: Mapping[str, Any], code: FrozenCode) -> None:
    """Raises BadUsage if a suite that an app's definition names is neither in its code nor here."""
    files = files_in(code)
    for suite in definition["suites"].values():
        require_suite(suite, files)


def suites_of(code: FrozenCode) -> Check:
    """Checks no more than the suites: all that can be known without a broker."""

    def check(definition: Mapping[str, Any]) -> Known:
        require_suites(definition, code)
        return Known()

    return check


def _answer(
    settings: Settings,
    module: str,
    code: FrozenCode,
    app: str,
    given: Mapping[str, Any],
    *,
    check: Check,
    text: str = "",
) -> dict[str, Any]:
    """Runs `python -m module ZIP DIGEST APP SETTINGS_JSON FOLDER`; the last JSON object that it prints.

    It first prints the app's definition. Its input is a line with what `check` says of that, then `text`.
    """
    answer: dict[str, Any] | None = None
    with (
        TemporaryDirectory(prefix="switchyard-trial-", ignore_cleanup_errors=True) as folder,
        TemporaryFile() as errors,
    ):
        path = Path(folder) / f"{code.digest}.zip"
        path.write_bytes(code.data)
        command = [
            sys.executable,
            "-m",
            module,
            str(path),
            code.digest,
            app,
            json.dumps(dict(given)),
            str(code.folder or ""),
        ]
        with _started(settings, app, command, folder, errors) as (process, limit):
            for found in _objects(process):
                if "definition" in found:
                    limit.stop()
                    known = check(found["definition"])
                    limit.start()
                    _send(process, json.dumps(asdict(known)) + "\n" + text)
                elif found.keys() & _ANSWERS:
                    answer = found
        if answer is None:
            errors.seek(0)
            last = "\n".join(errors.read().decode(errors="replace").strip().splitlines()[-8:])
            raise SwitchyardError(
                f"app {app} could not be tried:\n{last}", fix="fix the module, or run `switchyard jars`"
            )
    if "error" in answer:
        kind = {2: BadUsage, 3: Refused}.get(answer["error"]["exit_code"], SwitchyardError)
        raise kind(answer["error"]["what"], fix=answer["error"]["fix"])
    return answer


class _Limit:
    """Kills `process` when it has run for `seconds` since the last start."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self.passed = threading.Event()

    def start(self) -> None:
        self._timer = threading.Timer(self._seconds, self._kill)
        self._timer.start()

    def stop(self) -> None:
        self._timer.cancel()

    def _kill(self) -> None:
        self.passed.set()
        _kill(self._process)


@contextmanager
def _started(
    settings: Settings, app: str, command: Sequence[str], folder: str, errors: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[str], _Limit]]:
    """A process, which is killed if the block ends before it. Raises SwitchyardError if it takes longer than a trial may."""
    with subprocess.Popen(
        command,
        cwd=folder,
        # what Python leaves there if it is killed goes with the folder
        env={**settings.environment_of_trial(), "TMPDIR": folder},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        # with its JVM, which has the same standard output
        start_new_session=True,
    ) as process:
        limit = _Limit(process, settings.probe_timeout_s)
        limit.start()
        try:
            yield process, limit
        finally:
            limit.stop()
            _kill(process)
    if limit.passed.is_set():
        raise SwitchyardError(
            f"the trial of app {app} did not end within {settings.probe_timeout_s:g} s",
            fix="make sure that its module does not wait for anything; on a busy machine, raise SWITCHYARD_PROBE_TIMEOUT_S",
        )


def _kill(process: subprocess.Popen[str]) -> None:
    """Kills a process that nobody has waited for yet, and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _objects(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects that a process prints, one a line, until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        # an app, too, may write lines
        with suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                yield found


def _send(process: subprocess.Popen[str], text: str) -> None:
    """Gives a process its input. If the process has ended, its exit code says why."""
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(text)
