"""Set-up from a mirror and through a proxy: the real pip, uv and Ivy, and a server on this machine in place of all others."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestration.local import jars
from orchestration.local.network import MIRROR, arguments_file, ivy_settings, java_properties
from pipelines.errors import BadUsage, SwitchyardError
from tests.shared.mirror import Mirror, basic, serving

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = 'p@ss: "\\w'
QUOTED = "p%40ss%3A%20%22%5Cw"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    "<groupId>org.tests</groupId><artifactId>a</artifactId><version>1</version></project>"
)
FILES = {"/maven2/org/tests/a/1/a-1.pom": POM.encode(), "/maven2/org/tests/a/1/a-1.jar": b"a jar"}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.delenv(MIRROR, raising=False)


def jar(content: bytes = b"a jar") -> jars.Jar:
    return jars.Jar(
        set_name="spark", organisation="org.tests", name="a", version="1", sha256=hashlib.sha256(content).hexdigest()
    )


@pytest.mark.slow
def test_jars_come_from_a_mirror_that_asks_for_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Mirror(files=FILES, login=basic("ann", PASSWORD))) as mirror:
        monkeypatch.setenv(MIRROR, f"http://ann:{QUOTED}@127.0.0.1:{mirror.port}/maven2")
        assert jars.ensure(tmp_path, [jar()]) is True
        assert (tmp_path / "spark" / "a-1.jar").read_bytes() == b"a jar"
        assert set(FILES) <= set(mirror.asked)
        # a mirror is not believed
        with pytest.raises(SwitchyardError, match="has the wrong checksum"):
            jars.ensure(tmp_path, [jar(b"another")])


@pytest.mark.slow
def test_jars_come_through_a_proxy_that_asks_for_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Mirror(files=FILES, proxy_login=basic("ann", PASSWORD))) as proxy:
        monkeypatch.setenv("http_proxy", f"http://ann:{QUOTED}@127.0.0.1:{proxy.port}")
        monkeypatch.setenv(MIRROR, "http://maven.example.invalid/maven2/")
        assert jars.ensure(tmp_path, [jar()]) is True
        assert {f"maven.example.invalid{path}" for path in FILES} <= set(proxy.asked)


@pytest.mark.slow
def test_a_proxy_passes_https_on_and_a_login_is_in_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    run = subprocess.run

    def noted(command: list[str], **options: object) -> object:
        commands.append(command)
        return run(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(jars.subprocess, "run", noted)
    with serving(Mirror(files={}, proxy_login=basic("ann", PASSWORD))) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:{QUOTED}@127.0.0.1:{proxy.port}")
        monkeypatch.setenv(MIRROR, "https://bob:hidden@maven.example.invalid/maven2")
        # it lets nobody through
        with pytest.raises(SwitchyardError) as caught:
            jars.ensure(tmp_path, [jar()])
        assert "maven.example.invalid:443" in proxy.asked
    said = f"{caught.value}{commands}"
    assert "HTTPS_PROXY" in caught.value.fix and MIRROR in caught.value.fix
    assert "hidden" not in said and PASSWORD not in said and QUOTED not in said and commands


@pytest.mark.parametrize(
    ("environment", "properties"),
    [
        ({}, {}),
        ({"NO_PROXY": "a.example.com"}, {}),
        (
            {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "a.example.com, .b.example.com:80,10.0.0.0/8"},
            {
                "https.proxyHost": "proxy",
                "https.proxyPort": "3128",
                "http.nonProxyHosts": "a.example.com|*.a.example.com|b.example.com|*.b.example.com|localhost|127.*|[::1]",
            },
        ),
        # the lower case wins, as curl has it; without a port it is 80
        (
            {"http_proxy": "one", "HTTP_PROXY": "http://other:1", "no_proxy": "*"},
            {"http.proxyHost": "one", "http.proxyPort": "80", "http.nonProxyHosts": "*|localhost|127.*|[::1]"},
        ),
        (
            {"ALL_PROXY": "http://all:8080"},
            {
                "http.proxyHost": "all",
                "http.proxyPort": "8080",
                "https.proxyHost": "all",
                "https.proxyPort": "8080",
                "http.nonProxyHosts": "localhost|127.*|[::1]",
            },
        ),
    ],
)
def test_java_is_told_what_the_environment_says(environment: Mapping[str, str], properties: Mapping[str, str]) -> None:
    assert java_properties(environment) == properties


def test_what_java_can_not_use_is_named_with_what_to_do() -> None:
    with pytest.raises(BadUsage, match="socks5://proxy") as caught:
        java_properties({"ALL_PROXY": "socks5://ann:secret@proxy:1080"})
    assert "http://host:port" in caught.value.fix and "secret" not in str(caught.value)
    with pytest.raises(BadUsage, match="not the address of a Maven repository"):
        ivy_settings(environment={MIRROR: "mirror.example.com"})
    assert ivy_settings(environment={}) is None and arguments_file({}) == ""


def wheel(name: str, files: Mapping[str, str]) -> bytes:
    """A wheel with these files, and a record of them."""
    info = f"{name}-1.dist-info"
    contents = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
                f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    lines = []
    for path, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(text.encode())}")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": "\n".join([*lines, f"{info}/RECORD,,", ""])}.items():
            entry = zipfile.ZipInfo(path)
            # a script may be run
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)
    return packed.getvalue()


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("by_file", [False, True], ids=["variable", "pip.conf"])
def test_pip_and_uv_take_packages_from_one_mirror_through_a_proxy(tmp_path: Path, by_file: bool) -> None:
    """`make setup` as far as the packages. Its uv starts this installation's."""
    uv = Path(sys.executable).with_name("uv")
    made = {
        "uv": wheel("uv", {"uv-1.data/scripts/uv": f'#!/bin/sh\nexec {uv} "$@"\n'}),
        "tiny": wheel("tiny", {"tiny.py": "WORD = 'from the mirror'\n"}),
    }
    files: dict[str, bytes] = {}
    checkout = tmp_path / "checkout"
    for name in ("Makefile", "pyproject.toml", "orchestration/local/preflight.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    for name, content in made.items():
        digest = hashlib.sha256(content).hexdigest()
        file = f"{name}-1-py3-none-any.whl"
        files |= {f"/files/{file}": content,
                  f"/simple/{name}/": f'<a href="/files/{file}#sha256={digest}">{file}</a>'.encode()}  # fmt: skip
        lock = "requirements-uv.lock" if name == "uv" else "requirements.lock"
        (checkout / lock).write_text(f"{name}==1 \\\n    --hash=sha256:{digest}\n")
    index = "http://packages.example.invalid/simple"
    with serving(Mirror(files=files)) as proxy:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.upper().startswith(("PIP_", "UV_", "MAKE", "SWITCHYARD_", "PYTHONPATH"))
        } | {
            "HOME": str(tmp_path),
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "PIP_NO_CACHE_DIR": "1",
            "http_proxy": f"http://127.0.0.1:{proxy.port}",
            # what goes elsewhere ends here
            "https_proxy": f"http://127.0.0.1:{proxy.port}",
            # no certificates here
            "PIP_TRUSTED_HOST": "packages.example.invalid",
        }
        if by_file:
            (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index}\n")
            environment["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
        else:
            environment["PIP_INDEX_URL"] = index
        done = subprocess.run(
            ["make", f"PYTHON={sys.base_prefix}/bin/python3.11", ".venv/.stamps/packages"],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for path in files:
        assert f"packages.example.invalid{path}" in proxy.asked
    said = subprocess.run(
        [checkout / ".venv/bin/python", "-c", "import tiny; print(tiny.WORD)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "from the mirror\n"
