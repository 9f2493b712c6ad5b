"""The package as a user installs it: a wheel in an environment of its own, without the checkout, in an empty folder.

It uses processes, as another interpreter is what it tests. The packages that Switchyard needs are those of this
environment; a line in the new one names their folder. Python then finds no checkout: an editable installation is found
by files that it reads only in an environment's own folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestration.local.ports import claim
from orchestration.local.running import end_all
from pipelines.engine.jvm.jars import jars_dir

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipelines", "expectations", "orchestration")
TOLD = ("pyproject.toml", "README.md", "LICENSE")
APP, TOPIC = "my-sums", "my-orders"
# a driver here lives for seconds: the optimizing compiler costs more than it gains
QUICK = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
PRODUCE = """
import json, sys
from pipelines.kafka.client import producer
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.settings import get_settings
settings = get_settings()
ensure_topic(settings, sys.argv[1], 2, INPUT)
client = producer(settings)
for number in range(100):
    client.produce(sys.argv[1], json.dumps({"amount": number}), f"k{number % 7}", timestamp=1_600_000_000_000)
assert client.flush(30) == 0
"""


def sources() -> list[str]:
    """The files of the packages, as paths in the checkout."""
    return sorted(
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: what an earlier build has left in the checkout would get in."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*sources(), *TOLD):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "build", "-q", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable,
         "--out-dir", folder / "dist", folder / "source"], check=True, timeout=120,
    )  # fmt: skip
    [built] = (folder / "dist").glob("*.whl")
    return built


@pytest.mark.e2e
@pytest.mark.long
def test_the_wheel_holds_every_file_of_the_packages_and_no_path_of_this_machine(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert sorted(names) == sources()
        assert {name.partition("/")[0] for name in names} == set(PACKAGES)
        here = (str(ROOT).encode(), str(wheel.parents[1]).encode())
        assert [name for name in archive.namelist() if any(path in archive.read(name) for path in here)] == []


class Installed:
    """A user with the wheel in an environment of their own, in an empty folder with an empty home."""

    def __init__(self, folder: Path, wheel: Path, port: int) -> None:
        self.wheel = wheel
        self.work, self.venv, self.cache = folder / "work", folder / "venv", folder / "cache"
        self.home, self.scratch = folder / "home", folder / "scratch"
        for each in (self.work, self.home, self.scratch):
            each.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.venv], check=True, timeout=60)
        self.packages = self.venv / "lib" / "python3.11" / "site-packages"
        uv = Path(sys.executable).with_name("uv")
        subprocess.run(
            [uv, "pip", "install", "-q", "--offline", "--no-deps", "--compile-bytecode",
             "--python", self.venv / "bin" / "python", wheel], check=True, timeout=120,
        )  # fmt: skip
        (self.packages / "others.pth").write_text(sysconfig.get_path("purelib"))
        # for whoever isn't root
        for path in (*self.packages.rglob("*"), self.packages):
            path.chmod(path.stat().st_mode & ~0o222)
        kept = ("PATH", "JAVA_HOME", "LANG", "JDK_JAVA_OPTIONS", *(name for name in os.environ if "_TEST_" in name))
        self.environment = {name: os.environ[name] for name in kept if name in os.environ} | {
            "HOME": str(self.home), "XDG_CACHE_HOME": str(self.cache), "TMPDIR": str(self.scratch),
            "SWITCHYARD_BROKER_PORT": str(port), "SWITCHYARD_BROKER_HEAP_MB": "512",
            "SWITCHYARD_DRIVER_HEAP_MB": "512", "SWITCHYARD_BOOT_TIMEOUT_S": "300",
            "SWITCHYARD_SPARK": json.dumps(QUICK), "GX_ANALYTICS_ENABLED": "false",
        }  # fmt: skip

    def run(self, program: str, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [self.venv / "bin" / program, *arguments], cwd=self.work, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"$ {program} {' '.join(arguments)}\n{done.stdout}"
        return done.stdout

    def switchyard(self, *arguments: str, code: int = 0) -> str:
        return self.run("switchyard", *arguments, code=code)

    def copy_jars(self) -> Path:
        """The jars that were fetched, but nothing that was made of them. Returns their folder."""
        folder = self.cache / "switchyard" / version("switchyard") / "jars"
        for name in ("spark", "broker", "peers"):
            shutil.copytree(jars_dir() / name, folder / name)
        return folder

    def outside(self) -> dict[str, str]:
        """What is in the environment, the home and the folder of temporary files: path -> a digest."""
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            for folder in (self.venv, self.home, self.scratch)
            for path in folder.rglob("*")
            if not path.is_symlink()
        }


@pytest.fixture
def installed(tmp_path: Path, wheel: Path) -> Iterator[Installed]:
    with claim() as own:
        made = Installed(tmp_path, wheel, own.port)
        try:
            yield made
        finally:
            end_all([made.work / ".switchyard"])
            made.switchyard("down")
            for path in (made.packages, *made.packages.rglob("*")):
                path.chmod(path.stat().st_mode | 0o200)


@pytest.mark.e2e
@pytest.mark.long
# on busy cores it takes four times as long as on quiet ones
@pytest.mark.timeout(600)
def test_the_wheel_does_all_that_a_checkout_does(installed: Installed) -> None:
    before = installed.outside()
    found = installed.run(
        "python", "-c", "import pipelines, orchestration, sys; print(pipelines.__path__[0], sys.path)"
    )
    assert found.startswith(str(installed.packages)) and str(ROOT) not in found.replace(
        sysconfig.get_path("purelib"), ""
    )
    assert installed.switchyard("--version") == "0.1.0\n"

    # without jars, what needs them names the command, which then does only what is left
    assert "`switchyard jars`" in installed.switchyard("up", code=1)
    jars = installed.copy_jars()
    said = installed.switchyard("jars", "--no-archive")
    assert "already there, checksums right" in said and "Scala classes compiled" in said and str(jars) in said
    assert "Scala classes already compiled" in installed.switchyard("jars", "--no-archive")

    refused = installed.switchyard("new", APP, "--topic", TOPIC, code=3)
    assert f"`switchyard new {APP} --topic {TOPIC} --in {APP}`" in refused
    installed.switchyard("new", APP, "--topic", TOPIC, "--in", APP)
    installed.switchyard("up", "--timeout", "180s")
    installed.run("python", "-P", "-c", PRODUCE, TOPIC)
    installed.switchyard("produce", "word-count", "--history", "100")

    installed.switchyard("stage", APP, "--from", APP, "--execute")
    installed.switchyard("start", f"{APP}.v1", "--execute")
    installed.switchyard("wait", f"{APP}.v1", "--unread", "0", "--for", "1s", "--timeout", "240s")
    assert "7 rows" in installed.switchyard("check", f"{APP}.v1")
    installed.switchyard("promote", f"{APP}.v1", "--execute")
    [release] = json.loads(installed.switchyard("status", "--json"))["releases"]
    assert (release["release"], release["live"], release["driver"]) == (f"{APP}.v1", True, "running")
    assert "reset" in installed.switchyard("reset", f"{APP}.v1", "--to-earliest", "--stop")
    # an app that comes with Switchyard is read from the installed package
    assert "word" in installed.switchyard("show", "word-count")
    installed.switchyard("stop", f"{APP}.v1", "--execute")
    installed.switchyard("down")

    assert {path.name for path in installed.work.iterdir()} == {APP, ".switchyard"}
    assert {path.name for path in jars.iterdir()} == {"spark", "broker", "peers", "compiled", ".lock"}
    assert installed.outside() == before, "something was written outside the working folder"


@pytest.mark.e2e
@pytest.mark.long
def test_dagster_finds_the_jobs_in_the_wheel(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        assert "module_name: orchestration.definitions" in archive.read("orchestration/local/workspace.yaml").decode()
    before = installed.outside()
    found = installed.run("python", "-m", "dagster", "job", "list", "-m", "orchestration.definitions")
    assert "Job: reprocess" in found
    assert installed.outside() == before
