"""Runs the preflight of a driver: `python -m tests.cluster.preflight`. Prints its error as JSON; `{}`: nothing is wrong."""

from __future__ import annotations

import json
import os
from functools import partial

from pipelines.engine.checkpoint import release_folder
from pipelines.engine.elsewhere import end_jvm, session_elsewhere
from pipelines.engine.jvm_process import start_jvm, stop_jvm
from pipelines.errors import SwitchyardError
from pipelines.private import keep_private
from pipelines.settings import get_settings

RELEASE = "looked-at.v1"


def main() -> None:
    keep_private()
    settings = get_settings()
    release_folder(settings, RELEASE).mkdir(parents=True, exist_ok=True)
    told = {}
    try:
        start_jvm(settings)
        session_elsewhere(settings, RELEASE, lambda: None)
    except SwitchyardError as error:
        told = {"what": error.what, "fix": error.fix}
    print(json.dumps(told), flush=True)
    end_jvm(settings, partial(stop_jvm, 5))
    os._exit(0)


if __name__ == "__main__":
    main()
