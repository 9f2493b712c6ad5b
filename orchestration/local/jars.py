"""Fetches the jars of `jars.toml` with the Ivy that pyspark bundles, and verifies them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from orchestration.local.network import MIRROR, arguments_file, ivy_settings, java_properties
from orchestration.local.preflight import find_java
from pipelines.engine.jvm.jars import jar_set, jars_dir, pyspark_jars
from pipelines.errors import SwitchyardError

LIST = Path(__file__).with_name("jars.toml")
FETCH_TIMEOUT_S = 900


@dataclass(frozen=True, kw_only=True, slots=True)
class Jar:
    """One jar of one set: its coordinate, and the SHA-256 of its file."""

    set_name: str
    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def broker_jars() -> list[Path]:
    """The jars of the embedded broker and of Kafka's own tools."""
    return jar_set("broker")


def read_list(path: Path = LIST) -> list[Jar]:
    """The jars that the project needs, in the order of the file."""
    jars = []
    for set_name, entries in tomllib.loads(path.read_text()).items():
        for coordinate, sha256 in entries.items():
            organisation, name, version = coordinate.split(":")
            jars.append(Jar(set_name=set_name, organisation=organisation, name=name, version=version, sha256=sha256))
    return jars


def verify(jars: Iterable[Jar], folder: Path) -> None:
    """Raises SwitchyardError unless `folder/<set>/` holds exactly `jars`, each with its checksum."""
    expected = {folder / jar.set_name / jar.file_name: jar for jar in jars}
    for path, jar in expected.items():
        if not path.is_file():
            raise SwitchyardError(
                f"jar {jar.organisation}:{jar.name}:{jar.version} was not fetched",
                "check the network and run `switchyard jars` again",
            )
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
        if actual != jar.sha256:
            raise SwitchyardError(
                f"jar {path.name} has the wrong checksum: SHA-256 {actual}, expected {jar.sha256}",
                "do not use it; run `switchyard jars` again; if that does not help, find out who changed the jar repository",
            )
    for extra in {path for jar in jars for path in (folder / jar.set_name).glob("*.jar")} - expected.keys():
        raise SwitchyardError(f"jar {extra.name} is not on the list", f"remove it, or list it in {LIST.name}")


def complete(folder: Path, jars: Iterable[Jar] | None = None) -> bool:
    """Whether `verify` finds nothing wrong."""
    try:
        verify(jars or read_list(), folder)
    except SwitchyardError:
        return False
    return True


def ivy_file(jars: Iterable[Jar]) -> str:
    """An ivy.xml that asks for exactly `jars`, with a configuration per set."""
    jars = list(jars)
    sets = "".join(f"<conf name={quoteattr(name)}/>" for name in dict.fromkeys(jar.set_name for jar in jars))
    rows = "".join(
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)}"
        f' conf="{jar.set_name}-&gt;master" transitive="false"/>\n'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="switchyard" module="jars"/>\n'
        f"<configurations>{sets}</configurations>\n<dependencies>\n{rows}</dependencies></ivy-module>\n"
    )


def ensure(folder: Path | None = None, jars: list[Jar] | None = None) -> bool:
    """Puts the jars in place and verifies them. Returns whether anything was fetched. Needs a network only if a jar is
    missing or wrong. A set appears whole or not at all.
    """
    folder, jars = folder or jars_dir(), jars or read_list()
    try:
        verify(jars, folder)
    except SwitchyardError:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
            _retrieve(jars, Path(work))
            verify(jars, Path(work))
            for name in dict.fromkeys(jar.set_name for jar in jars):
                shutil.rmtree(folder / name, ignore_errors=True)
                os.replace(Path(work) / name, folder / name)
        return True
    return False


def _retrieve(jars: list[Jar], work: Path) -> None:
    (work / "ivy.xml").write_text(ivy_file(jars))
    # files, as each may hold a password; `work` is readable by its user alone
    (work / "java").write_text(arguments_file(java_properties()))
    first = jars[0]
    settings = ivy_settings(f"{first.organisation.replace('.', '/')}/{first.name}/{first.version}/{first.file_name}")
    if settings is not None:
        (work / "settings.xml").write_text(settings)
    run_java(
        *(f"@{work / 'java'}", "-Xmx256m", "-jar", str(_ivy_jar()), "-error"),
        *(("-settings", str(work / "settings.xml")) if settings is not None else ()),
        *("-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache")),
        *("-retrieve", str(work / "[conf]" / "[artifact]-[revision].[ext]"), "-confs"),
        *dict.fromkeys(jar.set_name for jar in jars),
        doing="fetching the jars",
        timeout_s=FETCH_TIMEOUT_S,
        fix="check the network and run `switchyard jars` again; behind a proxy set HTTPS_PROXY, and for a mirror "
        f"{MIRROR}: see docs/deploying.md",
    )


def run_java(*arguments: str, doing: str, timeout_s: float, fix: str) -> None:
    """Runs Java to its end. Raises SwitchyardError without a suitable Java, after `timeout_s` seconds, and if it fails,
    with its last lines.
    """
    java = find_java()
    if java.problem is not None:
        raise SwitchyardError(java.problem.what, java.problem.fix)
    command = [java.path, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise SwitchyardError(f"{doing} took longer than {timeout_s:g} s", fix) from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise SwitchyardError(f"{doing} failed:\n{said}", fix)


def _ivy_jar() -> Path:
    return sorted(pyspark_jars().glob("ivy-*.jar"))[-1]


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Makes other set-ups that write to `folder` wait: several installations may share it, and be set up at the same time.
    Raises SwitchyardError if it can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # no child inherits the lock, so it ends with this process, however that ends
        lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise SwitchyardError(
            f"the folder of the jars can't be written, {folder}: {error.strerror}",
            "choose another: SWITCHYARD_JARS_DIR=<folder>",
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another set-up that writes to {folder}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def up_to_date(made: Path, *sources: Path) -> bool:
    """Whether `made` exists and no source is newer, as make sees it."""
    if not made.is_file():
        return False
    time_ns = made.stat().st_mtime_ns
    return all(source.stat().st_mtime_ns <= time_ns for source in sources if source.exists())
