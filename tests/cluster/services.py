"""Postgres and Dagster as services of hosts, set up as docs/dagster.md says."""

from __future__ import annotations

import http.client
import os
import re
import signal
import sys
from pathlib import Path
from textwrap import dedent

from tests.cluster.cluster import ROOT, Cluster
from tests.cluster.hosts import Host
from tests.defs.dev import ANSWER_TIMEOUT_S, Dagster
from tests.shared.waiting import until

_PAGE = ROOT / "docs" / "dagster.md"
_YAML = ROOT / "orchestration" / "local" / "dagster.yaml"
_SQL_TIMEOUT_S = 60.0
_END_S = 30.0


def documented(language: str) -> list[str]:
    """The blocks of a language in the part of the page about a server."""
    part = _PAGE.read_text().partition("\n## On a server\n")[2]
    return re.findall(rf"^```{language}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


class Postgres:
    """A server on a host, with its data on the host's disk, and the database of the page."""

    def __init__(self, cluster: Cluster, host: Host) -> None:
        self.host = host
        there = list(Path("/usr/lib/postgresql").glob("*/bin"))
        assert there, "the tests of Dagster need Postgres: `apt-get install postgresql` on Debian"
        self._programs = max(there, key=lambda path: float(path.parent.name))
        self._password = "of the tests"
        folder = cluster.hosts.disk / "postgres"
        # it refuses to run as root, and another user can't look into the folders of a test
        host.start(["bash", "-euc", self._script(folder)], {**os.environ, "LC_ALL": "C.UTF-8"})
        until("Postgres does not answer", lambda: self._sql("SELECT 1"), _SQL_TIMEOUT_S, poll_s=0.5)
        [statements] = documented("sql")
        for statement in statements.splitlines():
            assert self._sql(statement), host.log.read_text()[-2000:]

    @property
    def environment(self) -> dict[str, str]:
        """What `dagster.yaml` asks for."""
        [password] = re.findall(r"PASSWORD '(.*)'", documented("sql")[0])
        return {"DAGSTER_PG_USER": "dagster", "DAGSTER_PG_PASSWORD": password, "DAGSTER_PG_HOST": self.host.address,
                "DAGSTER_PG_DB": "dagster"}  # fmt: skip

    def _script(self, folder: Path) -> str:
        home, programs = "/var/lib/postgresql", self._programs
        return dedent(
            f"""
            install -d -o postgres -g postgres -m 700 {folder}
            mount --bind {folder} {home}
            cd {home}
            echo '{self._password}' > password
            chown postgres password
            run="setpriv --reuid=postgres --regid=postgres --clear-groups"
            $run {programs}/initdb -D data -U postgres --no-locale -E UTF8 --auth=scram-sha-256 --pwfile=password
            echo 'host all all 0.0.0.0/0 scram-sha-256' >> data/pg_hba.conf
            exec $run {programs}/postgres -D data -c listen_addresses={self.host.address} \\
              -c unix_socket_directories= -c shared_buffers=32MB -c fsync=off
            """
        )

    def _sql(self, statement: str) -> bool:
        command = [str(self._programs / "psql"), "-h", self.host.address, "-U", "postgres", "-c", statement]
        return self.host.run(command, {"PGPASSWORD": self._password}, _SQL_TIMEOUT_S).returncode == 0


class DagsterHost(Dagster):
    """The services of the page on one host; `web` only where it is asked for."""

    def __init__(self, cluster: Cluster, host: Host, postgres: Postgres) -> None:
        self._cluster, self.host = cluster, host
        self._programs = Path(sys.executable).parent
        self.home = cluster.hosts.disk / "dagster"
        # a driver that the test suspends must not count as dead before its run has begun
        own = cluster.environment(host, lease_timeout_s=40.0)
        self._environment = {
            **own,
            **postgres.environment,
            "PATH": f"{self._programs}{os.pathsep}{own['PATH']}",
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_GRPC_TIMEOUT_SECONDS": "300",
        }
        storage, workspace = documented("yaml")
        [self._port] = map(int, re.findall(r"webserver .*-p (\d+)", self._services["web"]))
        for name, text in {"dagster.yaml": f"{_YAML.read_text()}\n{storage}", "workspace.yaml": workspace}.items():
            host.write(self.home / name, text)

    @property
    def log(self) -> Path:
        return self.host.log

    @property
    def _services(self) -> dict[str, str]:
        commands = re.findall(r"^\$ (.*)$", documented("console")[1], re.MULTILINE)
        return dict(zip(("code", "daemon", "web"), commands, strict=True))

    def limit_pools(self) -> None:
        """Sets the limits, as the page says. That also creates the tables."""
        for command in re.findall(r"^\$ (.*)$", documented("console")[0], re.MULTILINE):
            done = self.host.run(self._shell(command), self._environment, 300)
            assert done.returncode == 0, done.stdout

    def start(self, *names: str) -> None:
        """Starts services: `code`, `daemon`, `web`."""
        for name in names:
            self.host.start(self._shell(f"exec {self._services[name]}"), self._environment)

    def _shell(self, command: str) -> list[str]:
        return ["bash", "-euc", f"umask 077; cd {self.home}; {command}"]

    def daemons(self) -> list[int]:
        """The ids of its daemon's processes, as seen from here."""
        return self.host.pids_of(str(self._programs / "dagster-daemon"))

    def kill_daemon(self) -> None:
        pids = self.daemons()
        assert pids, f"no daemon runs on {self.host.name}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until("the daemon still runs", lambda: not self.daemons(), _END_S)

    def answer_to(self, body: bytes) -> bytes:
        """Asks from the host itself, as a proxy there would."""
        client = http.client.HTTPConnection("127.0.0.1", self._port)
        client.sock = self.host.connect(self._port, ANSWER_TIMEOUT_S)
        try:
            client.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            answer = client.getresponse()
            found = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(error) from error
        finally:
            client.close()
        assert answer.status == 200, found[:2000]
        return found
