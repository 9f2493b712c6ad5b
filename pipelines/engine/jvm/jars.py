"""Where the jars are. They belong to the installation, not to a state directory."""

from __future__ import annotations

import hashlib
import os
from importlib.metadata import version
from pathlib import Path

from pipelines.errors import SwitchyardError

PROJECT_ROOT = Path(__file__).resolve().parents[3]
# what of Spark is ours, in the language that it has to be in
SCALA_SOURCES = tuple(sorted(Path(__file__).parent.glob("*.scala")))


def jars_dir() -> Path:
    """The folder with one folder of jars per set: `SWITCHYARD_JARS_DIR`, or the project's own."""
    return Path(os.environ.get("SWITCHYARD_JARS_DIR") or PROJECT_ROOT / ".switchyard" / "jars").absolute()


def jar_set(name: str) -> list[Path]:
    """The jars of one set, sorted. A set is put in place whole and verified, so what is there is complete."""
    jars = sorted((jars_dir() / name).glob("*.jar"))
    if not jars:
        raise SwitchyardError(
            f"the {name} jars are not in {jars_dir() / name}",
            "run `make setup`, or point SWITCHYARD_JARS_DIR at a folder that has them",
        )
    return jars


def class_archive() -> Path:
    """Where Spark's classes lie as a JVM maps them: an archive of `make setup`. Without it a driver starts slower."""
    return jars_dir() / f"spark-classes-{_digest()}.jsa"


def scala_jar() -> Path:
    """Where the compiled Scala classes are, of these very sources and for this very pyspark."""
    return jars_dir() / "compiled" / f"switchyard-{_digest()}.jar"


def spark_jars() -> list[Path]:
    """The jars that Spark needs beside its own: the Kafka source, Avro, and what they need; and our own classes."""
    compiled = scala_jar()
    if not compiled.is_file():
        raise SwitchyardError(
            f"the Scala classes are not compiled: there is no {compiled}",
            "run `make setup`, or `python -m orchestration.jvm.scala` where there is no Makefile",
        )
    return [*jar_set("spark"), compiled]


def _digest() -> str:
    """What goes by it may lie beside that of another checkout, and of another pyspark. The Makefile has it, too (KEY)."""
    sources = b"".join(source.read_bytes() for source in SCALA_SOURCES)
    return hashlib.sha256(sources + version("pyspark").encode()).hexdigest()[:12]
