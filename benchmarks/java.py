"""Compiles Java."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestration.local.jars import run_java

_TIMEOUT_S = 120


def compile_java(folder: Path, sources: Iterable[Path], jars: Iterable[Path], *, doing: str) -> None:
    """Writes the classes of `sources` to `folder`. Raises SwitchyardError with the compiler's output, also for a warning."""
    run_java(
        *("-Xmx256m", "--module", "jdk.compiler/com.sun.tools.javac.Main"),
        *("-proc:none", "-Xlint:all,-classfile,-path", "-Werror"),
        *("-d", str(folder), "-cp", ":".join(map(str, jars)), *map(str, sources)),
        doing=doing,
        timeout_s=_TIMEOUT_S,
        fix="use a Java that has the module jdk.compiler: `java --list-modules` says so",
    )
