from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestration.local import jars
from pipelines.engine.jvm.jars import in_checkout, jars_dir, spark_jars
from pipelines.errors import SwitchyardError


def jar(name: str, content: bytes, set_name: str = "spark") -> jars.Jar:
    return jars.Jar(
        set_name=set_name, organisation="org", name=name, version="1", sha256=hashlib.sha256(content).hexdigest()
    )


def put(folder: Path, name: str, content: bytes) -> None:
    (folder / "spark").mkdir(parents=True, exist_ok=True)
    (folder / "spark" / f"{name}-1.jar").write_bytes(content)


def test_the_right_files_pass(tmp_path: Path) -> None:
    put(tmp_path, "a", b"aa")
    jars.verify([jar("a", b"aa")], tmp_path)
    assert jars.ensure(tmp_path, [jar("a", b"aa")]) is False


def test_a_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "a", b"tampered")
    with pytest.raises(SwitchyardError, match=r"a-1\.jar has the wrong checksum"):
        jars.verify([jar("a", b"aa")], tmp_path)


def test_a_missing_and_an_unlisted_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SwitchyardError, match="org:a:1 was not fetched"):
        jars.verify([jar("a", b"aa")], tmp_path)
    put(tmp_path, "a", b"aa")
    put(tmp_path, "b", b"bb")
    with pytest.raises(SwitchyardError, match=r"b-1\.jar is not on the list"):
        jars.verify([jar("a", b"aa")], tmp_path)


def test_a_fetched_jar_with_a_wrong_checksum_never_gets_into_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a", b"old")
    monkeypatch.setattr(jars, "_retrieve", lambda wanted, work: put(work, "a", b"tampered"))
    with pytest.raises(SwitchyardError, match="has the wrong checksum"):
        jars.ensure(tmp_path, [jar("a", b"aa")])
    assert (tmp_path / "spark" / "a-1.jar").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["spark"]


def test_a_wrong_set_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a", b"damaged")
    put(tmp_path, "left-over", b"x")
    monkeypatch.setattr(jars, "_retrieve", lambda wanted, work: put(work, "a", b"aa"))
    assert jars.ensure(tmp_path, [jar("a", b"aa")]) is True
    assert [path.name for path in (tmp_path / "spark").iterdir()] == ["a-1.jar"]


def test_a_failing_fetch_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "17.0.1"\' && exit\necho no route\nexit 1\n'
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with pytest.raises(SwitchyardError, match="no route") as caught:
        jars.ensure(tmp_path / "jars", [jar("a", b"aa")])
    assert "check the network" in caught.value.fix


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that is no checkout, of a user whose home is beside it."""
    monkeypatch.delenv("SWITCHYARD_JARS_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "site-packages").mkdir()
    return tmp_path / "site-packages"


def test_a_checkout_keeps_its_own_jars(package: Path) -> None:
    for name in ("Makefile", "requirements.lock"):
        assert not in_checkout(package)
        (package / name).touch()
    assert jars_dir(package) == package / ".switchyard" / "jars"
    assert in_checkout()


def test_the_jars_of_an_installed_package_are_the_user_s(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = package.parent / "home"
    assert jars_dir(package) == home / ".cache" / "switchyard" / version("switchyard") / "jars"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "own"))
    assert jars_dir(package) == home / "own" / "switchyard" / version("switchyard") / "jars"
    # as the specification says
    monkeypatch.setenv("XDG_CACHE_HOME", "own")
    assert jars_dir(package) == home / ".cache" / "switchyard" / version("switchyard") / "jars"
    monkeypatch.setenv("SWITCHYARD_JARS_DIR", str(home / "jars"))
    assert jars_dir(package) == home / "jars"


def test_a_user_without_a_home_is_told_what_to_set(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(SwitchyardError, match="no home folder") as caught:
        jars_dir(package)
    assert "SWITCHYARD_JARS_DIR" in caught.value.fix


HOLDS = """
import sys
from pathlib import Path
from orchestration.local.jars import one_at_a_time
with one_at_a_time(Path(sys.argv[1])):
    print("has it", flush=True)
    sys.stdin.read()
"""
WAITS = HOLDS.replace("    sys.stdin.read()", "")


def test_set_ups_that_share_a_folder_take_turns(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "has it\n"
        with subprocess.Popen(
            [sys.executable, "-c", WAITS, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == f"waiting for another set-up that writes to {folder}\n"
            # however the first one ends
            first.kill()
            assert second.stdout.readline() == "has it\n"
            assert second.wait() == 0


def test_what_is_older_than_what_it_is_made_of_is_out_of_date(tmp_path: Path) -> None:
    made, one, other = (tmp_path / name for name in ("made", "one", "other"))
    assert not jars.up_to_date(made, one)
    for path, time_s in ((made, 200), (one, 100), (other, 200)):
        path.touch()
        os.utime(path, (time_s, time_s))
    assert jars.up_to_date(made, one, other, tmp_path / "not there")
    os.utime(other, (201, 201))
    assert not jars.up_to_date(made, one, other)


def test_the_ivy_file_asks_for_each_jar_alone() -> None:
    root = ElementTree.fromstring(jars.ivy_file([jar("a", b""), jar("b", b"", "broker")]))
    assert [conf.get("name") for conf in root.iter("conf")] == ["spark", "broker"]
    asked = [(item.get("name"), item.get("conf"), item.get("transitive")) for item in root.iter("dependency")]
    assert asked == [("a", "spark->master", "false"), ("b", "broker->master", "false")]


def test_the_list_has_all_sets_with_checksums() -> None:
    listed = jars.read_list()
    assert {item.set_name for item in listed} == {"spark", "broker", "peers"}
    assert all(len(item.sha256) == 64 for item in listed)
    assert "spark-sql-kafka-0-10_2.13-4.0.2.jar" in {item.file_name for item in listed}


def test_the_installation_has_what_the_list_says() -> None:
    jars.verify(jars.read_list(), jars_dir())


def test_jars_that_are_not_there_name_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHYARD_JARS_DIR", str(tmp_path))
    with pytest.raises(SwitchyardError) as caught:
        spark_jars()
    assert str(tmp_path) in caught.value.what
    assert "`switchyard jars`" in caught.value.fix
