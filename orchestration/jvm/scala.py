"""Compiles our Scala extensions of Spark with the compiler that pyspark bundles: `python -m orchestration.jvm.scala`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestration.local.jars import one_at_a_time, run_java, up_to_date
from pipelines.engine.jvm.jars import SCALA_SOURCES, jars_dir, pyspark_jars, scala_jar
from pipelines.errors import SwitchyardError

COMPILE_TIMEOUT_S = 300


def compile_to(jar: Path, sources: Sequence[Path] = SCALA_SOURCES) -> None:
    """Writes the classes of `sources` to `jar`, atomically. Raises SwitchyardError with the compiler's output."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=jar.parent) as work:
        made = Path(work) / jar.name
        run_java(
            *("-Xmx512m", "-cp", ":".join(str(folder / "*") for folder in (pyspark_jars(), jars_dir() / "spark"))),
            *("scala.tools.nsc.Main", "-usejavacp", "-Xfatal-warnings", "-d", str(made), *map(str, sources)),
            doing=f"compiling {', '.join(source.name for source in sources)}",
            timeout_s=COMPILE_TIMEOUT_S,
            fix="make sure that this is the pyspark of the lock file, then run `make setup` again",
        )
        os.replace(made, jar)


def main() -> None:
    """Compiles the classes if they are missing or older than the jars, and prints in one line what it did."""
    jar = scala_jar()
    try:
        with one_at_a_time(jars_dir()):
            there = up_to_date(jar, jars_dir() / "spark")
            if not there:
                compile_to(jar)
    except SwitchyardError as error:
        print(error.told, file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"Scala classes {'already compiled' if there else 'compiled'}: {jar}")


if __name__ == "__main__":
    main()
