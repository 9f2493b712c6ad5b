"""Compiles our Scala extensions of Spark with the compiler that pyspark bundles."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestration.local.jars import run_java, up_to_date
from pipelines.engine.jvm.jars import SCALA_SOURCES, jars_dir, pyspark_jars, scala_jar

COMPILE_TIMEOUT_S = 300


def compiled() -> bool:
    """Whether the jar of our classes exists and is not older than the jars that it was compiled with."""
    return up_to_date(scala_jar(), jars_dir() / "spark")


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
            fix="make sure that this is the pyspark that Switchyard asks for, then run `switchyard jars` again",
        )
        os.replace(made, jar)
