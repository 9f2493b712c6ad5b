"""Where the jars are. They belong to an installation or to a user, not to a state folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from importlib.metadata import version
from pathlib import Path

from pipelines.errors import SwitchyardError

# the folder of the package `pipelines`: that of a checkout, or site-packages
PROJECT_ROOT = Path(__file__).resolve().parents[3]
# what is beside `pipelines` in a checkout, and in no other installation
_CHECKOUT = ("Makefile", "requirements.lock")
# our own classes for Spark
SCALA_SOURCES = tuple(sorted(Path(__file__).parent.glob("*.scala")))


def in_checkout(root: Path = PROJECT_ROOT) -> bool:
    """Whether Switchyard runs from a checkout of its repository. `root`: the folder of the package `pipelines`."""
    return all((root / name).is_file() for name in _CHECKOUT)


def jars_dir(root: Path = PROJECT_ROOT) -> Path:
    """The folder that holds a folder per set of jars: `SWITCHYARD_JARS_DIR`; otherwise the checkout's own, or that of the
    user, as an installed package may not be writable. Versions may need other jars. `root`: as `in_checkout`.

    Raises SwitchyardError if the user has no home folder.
    """
    given = os.environ.get("SWITCHYARD_JARS_DIR")
    if given:
        return Path(given).absolute()
    return (
        root / ".switchyard" / "jars" if in_checkout(root) else _cache() / "switchyard" / version("switchyard") / "jars"
    )


def _cache() -> Path:
    """The user's folder for what can be fetched again (XDG Base Directory Specification)."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # by the specification, a relative path is ignored
    if given.is_absolute():
        return given
    try:
        return Path.home() / ".cache"
    except RuntimeError as error:
        raise SwitchyardError(
            "there is no folder for the jars: this user has no home folder", "set SWITCHYARD_JARS_DIR=<folder>"
        ) from error


def jar_set(name: str) -> list[Path]:
    """The jars of one set, sorted. A set is verified and then put in place whole, so it is complete if it is there."""
    jars = sorted((jars_dir() / name).glob("*.jar"))
    if not jars:
        raise SwitchyardError(
            f"the {name} jars are not in {jars_dir() / name}",
            "run `switchyard jars`, or point SWITCHYARD_JARS_DIR at a folder that has them",
        )
    return jars


def class_archive(pyspark: Path | None = None) -> Path:
    """The archive of Spark's classes that a JVM maps. `switchyard jars` writes it; without it drivers start more slowly.

    `pyspark`: the folder of the jars that come with pyspark; None: the one that Python imports. Java takes an archive only
    for the same jars at the same place, so each environment that shares the folder has its own.
    """
    place = hashlib.sha256(str(pyspark or pyspark_jars()).encode()).hexdigest()[:8]
    return jars_dir() / f"spark-classes-{_digest()}-{place}.jsa"


def broker_archive() -> Path:
    """The archive of the embedded broker's classes. `switchyard jars` writes it; without it the broker starts more slowly."""
    names = "\n".join(jar.name for jar in jar_set("broker"))
    return jars_dir() / f"broker-classes-{hashlib.sha256(names.encode()).hexdigest()[:12]}.jsa"


def mapping(archive: Path) -> list[str]:
    """Options of a JVM that maps an archive of classes. If it is for another Java or other jars, Java silently ignores it.

    It is mapped at the address that it was written for. By default (since JDK-8294323) it would be mapped at a random one.
    Then each JVM rewrites its pages, which takes 0.1 s, and no two JVMs share them.
    """
    if not archive.is_file():
        return []
    return [
        *(f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"),
        *("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"),
    ]


def archiving(archive: Path) -> list[str]:
    """Options of a JVM that writes the classes which it has loaded to `archive` when it ends."""
    return [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off"]


def pyspark_jars() -> Path:
    """The folder of Spark's own jars. Raises SwitchyardError without pyspark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SwitchyardError(
            "pyspark is not installed, but the set-up needs its jars",
            "install Switchyard with its dependencies: `pip install` with its wheel, or `make setup` in a checkout",
        )
    jars = Path(spec.origin).parent / "jars"
    if not any(jars.glob("ivy-*.jar")):
        raise SwitchyardError(
            f"this pyspark has no jars of its own in {jars}", "install the pyspark version of the lock file"
        )
    return jars


def scala_jar() -> Path:
    """The jar of the Scala classes, compiled from exactly these sources for exactly this pyspark."""
    return jars_dir() / "compiled" / f"switchyard-{_digest()}.jar"


def spark_jars() -> list[Path]:
    """The jars that Spark needs besides its own: the Kafka source, Avro, what those two need, and our own classes."""
    compiled = scala_jar()
    if not compiled.is_file():
        raise SwitchyardError(
            f"the Scala classes are not compiled: there is no {compiled}",
            "run `switchyard jars`",
        )
    return [*jar_set("spark"), compiled]


def _digest() -> str:
    """A hash of the sources and pyspark's version; the Makefile has the same as KEY.

    Files named after it don't collide with those of another checkout or another pyspark in the same folder.
    """
    sources = b"".join(source.read_bytes() for source in SCALA_SOURCES)
    return hashlib.sha256(sources + version("pyspark").encode()).hexdigest()[:12]
