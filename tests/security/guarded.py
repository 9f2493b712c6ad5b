"""A broker that takes nobody without TLS and a login, and lets nobody do what no ACL allows.

Two users may do all: `admin`, and `reader`, whose password is found wherever it is shown.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from orchestration.local import server_config
from orchestration.local.jars import broker_jars
from orchestration.local.preflight import find_java
from orchestration.local.process import ProcessRef, spawn
from pipelines.errors import Unavailable
from pipelines.kafka.client import admin, require_broker
from pipelines.settings import Settings
from tests.security.certificates import Authority

HEAP_MB = 384
# as no other text of a test
PLANTED = "planted-4711"
# with what has a meaning of its own in a JAAS line, in a properties file or in JSON
PASSWORD = PLANTED + r' "quoted\\ word", = and ; ${x} %'
ADMIN = "admin-secret"
# after as many milliseconds a client that has logged in by SCRAM-SHA-256 has to do so again
REAUTH_MS = 2_000
_MECHANISMS = (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256)

# TLS and a login for clients and between brokers (SCRAM), and for controllers (PLAIN)
_GUARD = """\
listeners=SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=SASL_SSL://127.0.0.1:{port}
listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:SASL_SSL
inter.broker.listener.name=SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={server}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="{admin}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
sasl.mechanism.controller.protocol=PLAIN
listener.name.controller.sasl.enabled.mechanisms=PLAIN
listener.name.controller.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="{admin}" user_admin="{admin}";
listener.name.sasl_ssl.scram-sha-256.connections.max.reauth.ms={reauth}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:reader
allow.everyone.if.no.acl.found=false
"""
# makes the user `admin` when a node is formatted
MAKE_ADMIN = ("--add-scram", f"SCRAM-SHA-512=[name=admin,password={ADMIN}]")

_SERVER = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
offsets.topic.num.partitions=2
transaction.state.log.num.partitions=2
transaction.max.timeout.ms=900000
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=33554432
num.network.threads=2
num.io.threads=4
"""

# the authorizer's word on each request, with the ACL that it goes by
_DECISIONS = """\
appender.decisions.type=File
appender.decisions.name=decisions
appender.decisions.fileName={log}
appender.decisions.layout.type=PatternLayout
appender.decisions.layout.pattern=%m%n
logger.decisions.name=kafka.authorizer.logger
logger.decisions.level=debug
logger.decisions.additivity=false
logger.decisions.appenderRef.decisions.ref=decisions
"""


def guard(port: int, server: Path, authority: Authority) -> str:
    """The lines of a node's configuration that guard its listeners on `port` and the next one. `server`: its certificate."""
    return _GUARD.format(
        port=port, controller=port + 1, server=server, ca=authority.file, admin=ADMIN, reauth=REAUTH_MS
    )


def login(authority: Authority, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
    """The settings' `kafka` table of a process that logs in as `user`."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(authority.file),
    }


@dataclass(frozen=True)
class Guarded:
    """The broker, with the folder of its own and the CA that signed its certificate."""

    folder: Path
    port: int
    authority: Authority
    process: ProcessRef

    @classmethod
    def started(cls, folder: Path, port: int, timeout_s: float = 180) -> Guarded:
        authority = Authority.made(folder, "ca")
        server = authority.server("server")
        properties = folder / "server.properties"
        properties.write_text(
            _SERVER.format(controller=port + 1, data=folder / "data") + guard(port, server, authority)
        )
        logging = server_config._LOGGING.format(log=folder / "broker.log")
        (folder / "log4j2.properties").write_text(logging + _DECISIONS.format(log=folder / "decisions.log"))
        java = [
            find_java().path,
            *server_config.jvm_options(folder, folder, HEAP_MB),
            *("-cp", ":".join(map(str, broker_jars()))),
        ]
        # a fixed id: nobody else knows of this cluster
        made = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", "guarded-cluster-000000", "-c", str(properties), *MAKE_ADMIN],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr
        process = spawn([*java, "kafka.Kafka", str(properties)], folder / "broker.out", dict(os.environ))
        found = cls(folder, port, authority, process)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                require_broker(found.settings("admin", ADMIN))
                return found
            except Unavailable as error:
                if not process.alive() or time.monotonic() > deadline:
                    process.terminate(5)
                    raise AssertionError(f"{error}\n{(folder / 'broker.out').read_text()[-4000:]}") from error
                time.sleep(0.2)

    def stop(self) -> None:
        self.process.terminate(20)

    # -- who may log in

    def settings(
        self, user: str, password: str = PASSWORD, *, mechanism: str = "SCRAM-SHA-512", **changes: Any
    ) -> Settings:
        """The settings of a process that logs in as `user`."""
        kafka = login(self.authority, user, password, mechanism)
        # a driver here lives for a minute
        spark = {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
        given: dict[str, Any] = {
            "state_dir": self.folder / "state", "target_latency_s": 0.0, "trigger_s": 0.1, "heartbeat_s": 0.2, "driver_heap_mb": 512, "spark": spark,
            **changes,
        }  # fmt: skip
        return Settings(bootstrap_servers=f"127.0.0.1:{self.port}", kafka=kafka, **given)

    @property
    def admin(self) -> AdminClient:
        return admin(self.settings("admin", ADMIN))

    def add(self, user: str, password: str = PASSWORD) -> None:
        """Lets `user` log in by `password`, and by no other any more, with either mechanism."""
        self._alter(
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for mechanism in _MECHANISMS
        )

    def revoke(self, user: str) -> None:
        """`user` can't log in any more."""
        self._alter(UserScramCredentialDeletion(user, mechanism) for mechanism in _MECHANISMS)

    def _alter(self, changes: Iterable[UserScramCredentialAlteration]) -> None:
        client = self.admin
        # one of a user in each request
        for change in changes:
            for future in client.alter_user_scram_credentials([change]).values():
                future.result(30)
