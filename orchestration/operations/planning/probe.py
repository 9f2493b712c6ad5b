"""Tries an app's function on empty frames, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orchestration.operations.reading import Reading
from pipelines.engine.code import FrozenCode
from pipelines.errors import BadUsage, Refused, SwitchyardError


def probe(context: Reading, code: FrozenCode, app: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with TemporaryDirectory(prefix="switchyard-probe-", ignore_cleanup_errors=True) as folder:
            path = Path(folder) / f"{code.digest}.zip"
            path.write_bytes(code.data)
            command = [
                sys.executable,
                "-m",
                "pipelines.engine.probe",
                str(path),
                code.digest,
                app,
                json.dumps(dict(settings)),
            ]
            done = subprocess.run(
                command,
                cwd=folder,
                env=context.settings.environment_of_trial(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=context.settings.probe_timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise SwitchyardError(
            f"the trial of app {app} on empty frames did not end within {context.settings.probe_timeout_s:g} s",
            fix="make sure that its module does not wait for anything; on a busy machine, raise SWITCHYARD_PROBE_TIMEOUT_S",
        ) from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        last = "\n".join(done.stderr.strip().splitlines()[-8:])
        raise SwitchyardError(
            f"app {app} could not be tried on empty frames:\n{last}", fix="fix the module, or run `make setup`"
        )
    answer = json.loads(lines[-1])
    if "error" in answer:
        kind = {2: BadUsage, 3: Refused}.get(answer["error"]["exit_code"], SwitchyardError)
        raise kind(answer["error"]["what"], fix=answer["error"]["fix"])
    facts: dict[str, Any] = answer["spec"]
    return facts
