"""Where the jars are. They belong to the installation, not to a state directory."""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.errors import SwitchyardError

PROJECT_ROOT = Path(__file__).resolve().parents[2]


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
    return jars_dir() / "spark-classes.jsa"


def spark_jars() -> list[Path]:
    """The jars that Spark needs beside its own: the Kafka source, Avro, and what they need."""
    return jar_set("spark")
