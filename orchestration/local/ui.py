"""Starts Dagster's UI for this machine alone: `switchyard ui`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from orchestration.local.memory import machine_mib
from orchestration.local.memory import spark_runs as spark_runs_of
from orchestration.local.preflight import check_port
from pipelines.errors import SwitchyardError
from pipelines.private import keep_private, private
from pipelines.settings import Settings

_YAML = Path(__file__).with_name("dagster.yaml")
_WORKSPACE = Path(__file__).with_name("workspace.yaml")
# a module, but nothing from the working folder: that may have a package of the same name
_PYTHON = (sys.executable, "-P", "-m")
# pool -> its limit, None: by the memory. The names are in orchestration.defs.names, too, which loads Dagster
POOLS: dict[str, int | None] = {"spark": None, "hydration": 3}
_SET_S = 300.0
# a run starts an interpreter with Dagster and Spark in it: on two busy cores that takes longer than Dagster's 60 s
_START_LIMIT, _START_S = "DAGSTER_GRPC_TIMEOUT_SECONDS", 300


def prepare(home: Path) -> None:
    """Makes `home` a Dagster instance, readable by its user alone. One that is there stays as it is."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "dagster.yaml").exists():
        shutil.copyfile(_YAML, home / "dagster.yaml")


def limit(environment: dict[str, str], pool: str, runs: int) -> None:
    """Has the Dagster instance of `environment` run at most `runs` runs of `pool` at once. Raises SwitchyardError if its
    database doesn't take that.
    """
    command = [*_PYTHON, "dagster", "instance", "concurrency", "set", pool, str(runs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SET_S, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
        raise SwitchyardError(
            f"the limit of the pool {pool} can't be set in {environment['DAGSTER_HOME']}:\n{said}",
            "check its dagster.yaml; an instance from an older Dagster needs `dagster instance migrate`",
        )


def become_dagster(
    settings: Settings, *, home: Path | None, port: int, read_only: bool, spark_runs: int | None
) -> None:
    """Prepares the instance, starts the server of the Data Docs, and becomes Dagster: it never returns.

    `home`: of the instance; None: `dagster` in the state folder. `spark_runs`: how many runs may have a Spark session at
    once; None: by the memory. Raises SwitchyardError if the port is busy, and as `limit` does.
    """
    keep_private()
    problem = check_port(port, "--port")
    if problem is not None:
        raise SwitchyardError(problem.what, problem.fix)
    home = (home or private(settings.state_dir) / "dagster").absolute()
    prepare(home)
    environment = {_START_LIMIT: str(_START_S), **os.environ, "DAGSTER_HOME": str(home)}
    if not read_only:
        runs = spark_runs if spark_runs is not None else spark_runs_of(machine_mib(), settings)
        for pool, most in POOLS.items():
            limit(environment, pool, runs if most is None else most)
        print(f"at most {runs} runs with a Spark session at once", flush=True)
    if settings.data_docs_port:
        # ends with the process that this one becomes
        command = [*_PYTHON, "orchestration.cli", "data-docs", "--beside", str(os.getpid())]
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    program = ["webserver", "--read-only"] if read_only else ["dev"]
    workspace = [] if Path(_WORKSPACE.name).exists() else ["-w", str(_WORKSPACE)]
    command = [*_PYTHON, "orchestration.defs.guarded", *program, *workspace, "-h", "127.0.0.1", "-p", str(port)]
    os.execve(command[0], command, environment)
