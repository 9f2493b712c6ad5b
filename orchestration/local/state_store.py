"""Compiles the state store by the Scala compiler that pyspark bundles: `python -m orchestration.local.state_store`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from orchestration.local.jars import one_at_a_time, pyspark_jars, run_java, up_to_date
from pipelines.engine.jars import STATE_STORE_SOURCE, jars_dir, state_store_jar
from pipelines.errors import SwitchyardError

COMPILE_TIMEOUT_S = 300


def compile_to(jar: Path, source: Path = STATE_STORE_SOURCE) -> None:
    """Writes the classes of `source` to `jar`, whole or not at all. Raises SwitchyardError with what the compiler says."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=jar.parent) as work:
        made = Path(work) / jar.name
        run_java(
            *("-Xmx512m", "-cp", str(pyspark_jars() / "*")),
            *("scala.tools.nsc.Main", "-usejavacp", "-Xfatal-warnings", "-d", str(made), str(source)),
            doing=f"compiling {source.name}",
            timeout_s=COMPILE_TIMEOUT_S,
            fix="is this the pyspark of the lock file? If so, run `make setup` again",
        )
        os.replace(made, jar)


def main() -> None:
    """Compiles what isn't compiled, or is older than the jars; says in one line what it did."""
    jar = state_store_jar()
    try:
        with one_at_a_time(jars_dir()):
            there = up_to_date(jar, jars_dir() / "spark")
            if not there:
                compile_to(jar)
    except SwitchyardError as error:
        print(error.told, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"state store {'already compiled' if there else 'compiled'}: {jar}")


if __name__ == "__main__":
    main()
