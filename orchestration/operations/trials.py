"""Runs an app's code in a process of its own, before anything of it is staged. It needs no broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pipelines.engine.code import FrozenCode, freeze
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.settings import Settings


def default_code_dir() -> Path:
    """The folder of the repository's own apps."""
    import pipelines.apps

    return Path(pipelines.apps.__path__[0])


def probe(settings: Settings, code: FrozenCode, app: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a release of `app` would be, see `pipelines.engine.probe`. `given`: settings of the app.

    Raises BadUsage and Refused as it does; SwitchyardError if it doesn't end in time, or can't run.
    """
    facts: dict[str, Any] = _answer(settings, "pipelines.engine.probe", code, app, given, "")["spec"]
    return facts


def try_rows(
    settings: Settings, app: str, code_dir: Path | None, given: Mapping[str, Any], batches: Sequence[Sequence[Any]]
) -> list[dict[str, Any]]:
    """What the function of `app` makes of `batches` of records, see `pipelines.testing.attempt`.

    Raises BadUsage for what is wrong with the app or a record, AppFailed for a batch that fails; else as `probe`.
    """
    code = freeze(code_dir or default_code_dir())
    answer = _answer(settings, "pipelines.testing.attempt", code, app, given, json.dumps(batches))
    found: list[dict[str, Any]] = answer["batches"]
    return found


def _answer(
    settings: Settings, module: str, code: FrozenCode, app: str, given: Mapping[str, Any], text: str
) -> dict[str, Any]:
    """Runs `python -m module ZIP DIGEST APP SETTINGS_JSON` with `text` as its input; the JSON object that it prints."""
    try:
        with TemporaryDirectory(prefix="switchyard-trial-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / f"{code.digest}.zip"
            path.write_bytes(code.data)
            done = subprocess.run(
                [sys.executable, "-m", module, str(path), code.digest, app, json.dumps(dict(given))],
                cwd=folder,
                env=settings.environment_of_trial(),
                input=text,
                capture_output=True,
                text=True,
                timeout=settings.probe_timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise SwitchyardError(
            f"the trial of app {app} did not end within {settings.probe_timeout_s:g} s",
            fix="make sure that its module does not wait for anything; on a busy machine, raise SWITCHYARD_PROBE_TIMEOUT_S",
        ) from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise SwitchyardError(f"app {app} could not be tried:\n{last}", fix="fix the module, or run `make setup`")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        kind = {2: BadUsage, 3: Refused}.get(answer["error"]["exit_code"], SwitchyardError)
        raise kind(answer["error"]["what"], fix=answer["error"]["fix"])
    return answer
