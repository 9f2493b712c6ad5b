"""Starts Dagster's UI for this machine alone, as `make ui` and the demo do: `python -m orchestration.local.ui`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestration.local.memory import machine_mib, spark_runs
from pipelines.errors import SwitchyardError
from pipelines.private import keep_private, private
from pipelines.settings import get_settings

_YAML = Path(__file__).with_name("dagster.yaml")
# pool -> its limit, None: by the memory. The names are in orchestration.defs.names, too, which loads Dagster
POOLS: dict[str, int | None] = {"spark": None, "hydration": 3}
_SET_S = 300.0


def prepare(home: Path) -> None:
    """Makes `home` a Dagster instance, readable by its user alone. One that is there stays as it is."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        shutil.copyfile(_YAML, home / "dagster.yaml")


def limit(environment: dict[str, str], pool: str, runs: int) -> None:
    """Has the Dagster instance of `environment` run at most `runs` runs of `pool` at once. Raises SwitchyardError if its
    database doesn't take that.
    """
    command = [_program("dagster"), "instance", "concurrency", "set", pool, str(runs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SET_S, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise SwitchyardError(
            f"the limit of the pool {pool} can't be set in {environment['DAGSTER_HOME']}:\n{said}",
            "check its dagster.yaml; an instance from an older Dagster needs `dagster instance migrate`",
        )


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepares the instance, starts the server of the Data Docs, and becomes Dagster."""
    parser = argparse.ArgumentParser(prog="python -m orchestration.local.ui", description=__doc__)
    parser.add_argument("--home", type=Path, help="Dagster's instance; default: `dagster` in the state folder")
    parser.add_argument("--port", type=int, default=3000)
    parser.add_argument("--read-only", action="store_true", help="without buttons that change anything")
    parser.add_argument("--spark-runs", type=int, help="runs with a Spark session at once; default: by the memory")
    asked = parser.parse_args(arguments)
    keep_private()
    try:
        settings = get_settings()
        home = (asked.home or private(settings.state_dir) / "dagster").absolute()
        prepare(home)
        environment = {**os.environ, "DAGSTER_HOME": str(home)}
        if not asked.read_only:
            runs = asked.spark_runs if asked.spark_runs is not None else spark_runs(machine_mib(), settings)
            for pool, most in POOLS.items():
                limit(environment, pool, runs if most is None else most)
            print(f"at most {runs} runs with a Spark session at once", flush=True)
    except SwitchyardError as error:
        print(error.told, file=sys.stderr)
        sys.exit(error.exit_code)
    if settings.data_docs_port:
        # ends with the process that this one becomes
        command = [_program("switchyard"), "data-docs", "--beside", str(os.getpid())]
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    program = ["webserver", "--read-only"] if asked.read_only else ["dev"]
    command = [sys.executable, "-m", "orchestration.defs.guarded", *program, "-h", "127.0.0.1", "-p", str(asked.port)]
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
