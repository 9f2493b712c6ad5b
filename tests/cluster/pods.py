"""Pods on one machine, as docs/kubernetes makes them: a host whose processes see an image that nobody can write, run as a
user without rights, and have two volumes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from subprocess import CompletedProcess

from pipelines.engine.jvm.jars import jars_dir
from tests.cluster.hosts import Host, Hosts

ROOT = Path(__file__).resolve().parents[2]
USER = 10001
_IMAGE = Path("/opt/switchyard")
# what the image has of this machine's system, as far as it is there
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_CONFIGURATION = ("alternatives", "java-17-openjdk", "ssl", "ld.so.cache", "nsswitch.conf", "localtime")


class Pod:
    """A pod `name` with the settings `toml`. It is in a network, and ends, like the host that it is on."""

    def __init__(self, hosts: Hosts, name: str, toml: str, environment: dict[str, str]) -> None:
        self._root = hosts.folder / f"root-of-{name}"
        self._root.mkdir()
        self.state = hosts.folder / f"state-of-{name}"
        self.state.mkdir()
        # as that of an emptyDir
        self.state.chmod(0o777)
        settings = hosts.folder / f"settings-of-{name}"
        settings.mkdir()
        (settings / "switchyard.toml").write_text(toml)
        self.host: Host = hosts.add(name, " && ".join(self._mounts(settings, hosts.names)))
        self._environment = {
            **environment,
            "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(_IMAGE / "lib"),
            "SWITCHYARD_JARS_DIR": str(_IMAGE / "jars"),
            "SWITCHYARD_STATE_DIR": "/var/lib/switchyard/state",
            "HOME": "/tmp",
        }

    def _mounts(self, settings: Path, names: Path) -> list[str]:
        root = quote(str(self._root))
        here: dict[Path, str] = {Path(sys.prefix): sys.prefix, Path(sys.base_prefix): sys.base_prefix, jars_dir(): str(_IMAGE / "jars")}  # fmt: skip
        here |= {ROOT / each: str(_IMAGE / "lib" / each) for each in ("pipelines", "expectations", "orchestration")}
        here |= {settings: "/etc/switchyard"}
        found = [f"mount -t tmpfs -o mode=755 image {root}", f"mkdir -p {root}/etc {root}/tmp {root}/proc {root}/dev {root}/var/lib/switchyard"]  # fmt: skip
        # first: what is mounted below may be in that folder
        found.append(f"mount -t tmpfs -o mode=1777 tmp {root}/tmp")
        for name in _SYSTEM:
            path = Path(name)
            if path.is_symlink():
                found.append(f"cp -P {name} {root}{name}")
            elif path.is_dir():
                here[path] = name
        found += [f"cp -a /etc/{name} {root}/etc" for name in _CONFIGURATION if Path("/etc", name).exists()]
        found += [
            f"echo switchyard:x:{USER}:{USER}::/tmp:/usr/sbin/nologin >{root}/etc/passwd",
            f"echo switchyard:x:{USER}: >{root}/etc/group",
            f"touch {root}/etc/hosts",
            f"mount --bind {quote(str(names))} {root}/etc/hosts",
        ]
        # longer paths last: one may be within another
        for source, target in sorted(here.items(), key=lambda each: len(each[1])):
            there = f"{root}{quote(target)}"
            found.append(f"{{ [ -d {there} ] || mkdir -p {there}; }} && mount --bind {quote(str(source))} {there}")
            found.append(f"mount -o remount,bind,ro {there}")
        return [
            *found,
            f"mount --bind /proc {root}/proc",
            f"mount --rbind /dev {root}/dev",
            f"mount --bind {quote(str(self.state))} {root}/var/lib/switchyard",
            f"mount -o remount,ro {root}",
        ]

    def _inside(self, command: Sequence[str]) -> list[str]:
        own = [sys.executable, "-m", "orchestration.cli"]
        inner = [*own, *command[1:]] if command[0] == "switchyard" else command
        return [
            "chroot", str(self._root), "env", "-C", "/etc/switchyard", "setpriv", f"--reuid={USER}", f"--regid={USER}",
            "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", *inner,
        ]  # fmt: skip

    def start(self, command: Sequence[str]) -> None:
        """Starts the command of the container."""
        self.host.start(self._inside(command), self._environment)

    def run(self, *command: str, timeout_s: float = 300) -> CompletedProcess[str]:
        """Runs a command there, as `kubectl exec` does."""
        return self.host.run(self._inside(command), self._environment, timeout_s)

    def execute(self, *arguments: str) -> None:
        """Runs `switchyard`, which must succeed."""
        done = self.run("switchyard", *arguments)
        assert done.returncode == 0, done.stdout
