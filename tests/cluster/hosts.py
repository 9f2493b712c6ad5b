"""Hosts on one machine: a network, a process, a mount and a name space each, with a disk of its own and a shared store.

They need root and namespaces of their own around them, which `make test-cluster` makes: whatever happens, the kernel ends
all of it with the test run.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_BRIDGE = "swy0"
_NETWORK = "198.18.77"
_CLONE_NEWNET = 0x40000000
# where this test run itself is, and the broker
HERE = f"{_NETWORK}.1"


class Hosts:
    """A bridge with hosts on it. `folder`: of the test run; the shared store is in it, `store`.

    A host sees the machine's files, except that each has an empty folder of its own at `folder/disk`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk, self.store = folder / "disk", folder / "store"
        self.disk.mkdir()
        self.store.mkdir()
        # names -> addresses, as each host finds them
        self.names = folder / "hosts"
        self.names.write_text("127.0.0.1 localhost\n")
        self._hosts: list[Host] = []
        require_namespaces()
        _ip("link", "set", "lo", "up")
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{HERE}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")

    def add(self, name: str, also: str = "true") -> Host:
        """`also`: a shell command that makes more mounts on the host."""
        host = Host(self, name, f"{_NETWORK}.{len(self._hosts) + 2}", also)
        self._hosts.append(host)
        return host

    def close(self) -> None:
        for host in self._hosts:
            host.end()
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", _BRIDGE)


class Host:
    """A host of its own name and address. All its processes end with `end`."""

    def __init__(self, hosts: Hosts, name: str, address: str, also: str) -> None:
        self.name, self.address, self._folder = name, address, hosts.folder
        self.log = hosts.folder / f"{name}.log"
        own = hosts.folder / f"disk-of-{name}"
        own.mkdir()
        # the pipe says that the namespaces are ready
        reading, writing = os.pipe()
        with hosts.names.open("a") as names:
            names.write(f"{address} {name}\n")
        mounts = f"mount --bind {own} {hosts.disk} && mount --bind {hosts.names} /etc/hosts"
        script = f"hostname {name} && {mounts} && {also} && echo ready >&{writing} && exec sleep infinity"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script],
            pass_fds=[writing], stdin=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(writing)
        self._started = [self._holder]
        with open(reading) as ready:
            if ready.readline() != "ready\n":
                self._holder.wait(10)
                raise AssertionError(f"the namespaces of {name} could not be made")
        [self._init] = map(int, Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split())
        self._connect()

    def _connect(self) -> None:
        _ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self._init))
        _ip("link", "set", self._port, "master", _BRIDGE)
        _ip("link", "set", self._port, "up")
        for command in (["link", "set", "lo", "up"], ["addr", "add", f"{self.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):  # fmt: skip
            subprocess.run([*self._inside, "ip", *command], check=True)

    @property
    def _port(self) -> str:
        return f"swy-{self.name}"

    @property
    def _inside(self) -> list[str]:
        return ["nsenter", "-t", str(self._init), "--net", "--mount", "--pid", "--uts"]

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts a process there, which ends with the host. Its output goes to the host's log."""
        with self.log.open("ab") as output:
            self._started.append(
                subprocess.Popen(
                    [*self._inside, *command],
                    env=dict(environment),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command there to its end."""
        return subprocess.run(
            [*self._inside, *command], env=dict(environment), cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def connect(self, port: int, timeout_s: float) -> socket.socket:
        """A connection to a port of the host's own loopback address. Raises OSError if nobody listens there."""
        # the network of a socket is that of the thread that makes it
        with open("/proc/thread-self/ns/net") as here, open(f"/proc/{self._init}/ns/net") as there:
            _enter(there.fileno())
            try:
                found = socket.socket()
            finally:
                _enter(here.fileno())
        found.settimeout(timeout_s)
        try:
            found.connect(("127.0.0.1", port))
        except OSError:
            found.close()
            raise
        return found

    def link(self, path: Path, target: Path) -> None:
        """Makes a link to `target` on the host's own disk. `path`: as the host sees it."""
        self._own(path).symlink_to(target)

    def write(self, path: Path, text: str) -> None:
        """Writes a file on the host's own disk. `path`: as the host sees it."""
        self._own(path).write_text(text)

    def read(self, path: Path) -> str:
        """A text file on the host's own disk; empty if it is not there. `path`: as the host sees it."""
        own = self._own(path)
        return own.read_text(errors="replace") if own.is_file() else ""

    def _own(self, path: Path) -> Path:
        there = self._folder / f"disk-of-{self.name}" / path.relative_to(self._folder / "disk")
        there.parent.mkdir(parents=True, exist_ok=True)
        return there

    def pids_of(self, word: str) -> list[int]:
        """The ids, as seen from here, of the host's processes that have `word` in their command line."""
        # `nsenter`, which must reap what it has started, is not in it
        space = os.stat(f"/proc/{self._init}/ns/pid").st_ino
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                own = os.stat(folder / "ns/pid").st_ino == space
                if own and word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def cut_off(self) -> None:
        """Takes the host off the network: what it sends is lost, and nobody is told."""
        _ip("link", "set", self._port, "nomaster")

    def rejoin(self) -> None:
        """Takes it back onto the network."""
        _ip("link", "set", self._port, "master", _BRIDGE)

    def end(self) -> None:
        """Kills all its processes."""
        if self._holder.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
        for process in self._started:
            process.wait(30)
        # the kernel takes it away some time later, and another host may have the name by then
        subprocess.run(["ip", "link", "del", self._port], stderr=subprocess.DEVNULL, check=False)


def clock_library(folder: Path) -> Path:
    """What moves the wall clock of a process that loads it first, built in `folder`."""
    compiler = next(filter(None, map(shutil.which, ("tcc", "gcc", "cc"))), None)
    assert compiler is not None, (
        "these tests set the clocks of hosts: install a C compiler (Debian: apt-get install tcc)"
    )
    built = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-nostdlib", "-w", "-o", str(built), str(source)], check=True)
    return built


def with_clock(library: Path, ahead_s: int) -> dict[str, str]:
    """The environment of processes whose wall clock is `ahead_s` seconds ahead, or behind if that is negative."""
    return {"LD_PRELOAD": str(library), "CLOCK_AHEAD_S": str(ahead_s)}


def require_namespaces() -> None:
    """Fails, and says what is missing, unless this process may make hosts and leaves nothing behind."""
    assert os.geteuid() == 0, "the tests of a cluster make network namespaces: run `make test-cluster` as root"
    # the first process of a process namespace takes all others with it when it ends
    assert os.getpid() == 1, "the tests of a cluster need namespaces of their own: run `make test-cluster`"


def _enter(network: int) -> None:
    """Moves this thread into a network. `network`: a descriptor of its file in /proc."""
    if ctypes.CDLL(None, use_errno=True).setns(network, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
