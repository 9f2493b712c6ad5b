"""An app on the guarded broker: its operator, its drivers and its follower each with a user of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from pipelines.follow import LiveConsumer
from pipelines.kafka.acls import ROLES, Right, Role, rights
from pipelines.kafka.client import producer
from pipelines.kafka.topics import INPUT, ensure_topic
from pipelines.settings import Settings
from tests.reset.world import HEAD, KINDS, START_MS
from tests.security.access import allow
from tests.security.guarded import ADMIN, PASSWORD, Guarded
from tests.shared.terminal import Said, Terminal
from tests.shared.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2


@dataclass
class Office:
    """An app, its input, and who works on it. Its group of followers is named after it."""

    broker: Guarded
    app: str
    folder: Path
    spark: Callable[[], SparkSession]
    sent: list[str] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return f"numbers-of-{self.app}"

    @property
    def group(self) -> str:
        return f"{self.app}-readers"

    def user(self, role: Role) -> str:
        return f"{self.app}-{role}"

    def rights(self, role: Role) -> tuple[Right, ...]:
        return rights(role, self.app, inputs=[self.topic], groups=[self.group])

    def settings(self, role: Role) -> Settings:
        """The settings of a role. An operator's name the user that drivers log in as, who has to do so every 2 s anew."""
        own = {"sasl.username": self.user("driver"), "sasl.password": PASSWORD, "sasl.mechanism": "SCRAM-SHA-256"}
        return self.broker.settings(
            self.user(role), state_dir=self.folder / "state", driver_kafka=own if role == "operator" else {}
        )

    @property
    def admin(self) -> Settings:
        return self.broker.settings("admin", ADMIN, state_dir=self.folder / "state")

    @cached_property
    def drivers(self) -> Threads:
        return Threads(self.settings("operator"))

    @cached_property
    def _producer(self) -> Producer:
        return producer(self.admin, linger_ms=0)

    def produce(self, count: int) -> None:
        """`count` more records, of seven keys."""
        for _ in range(count):
            number = len(self.sent)
            key = f"k{number % 7}"
            self._producer.produce(
                self.topic, json.dumps({"n": number}), key, timestamp=START_MS + number * 50,
                partition=number % PARTITIONS,
            )  # fmt: skip
            self.sent.append(key)
        assert self._producer.flush(60) == 0

    def produce_malformed(self) -> None:
        """One more record, which is no JSON."""
        self._producer.produce(self.topic, b"no JSON", b"k0", timestamp=START_MS + len(self.sent) * 50, partition=0)
        assert self._producer.flush(60) == 0

    def expected(self) -> dict[str, int]:
        """Key -> its records so far."""
        return {key: self.sent.count(key) for key in set(self.sent)}

    def cli(self, *arguments: object, role: Role = "operator") -> Said:
        """Runs `switchyard` with the login of a role."""
        return Terminal(self.settings(role), self.folder, self.drivers, self.spark).run(*arguments)

    def do(self, *arguments: object) -> Said:
        """Runs a command of the operator, which must succeed."""
        said = self.cli(*arguments)
        assert said.code == 0, said.text
        return said

    def make_live(self, version: int, *options: object) -> None:
        """Stages, starts and promotes a version."""
        release = f"{self.app}.v{version}"
        self.do("stage", self.app, "--version", version, "--from", self.folder / "code", *options, "--execute")
        self.do("start", release, "--execute")
        self.do("wait", release, "--for", "100ms", "--timeout", "200s")
        self.do("promote", self.app, "--version", version, "--execute")


def follow(consumer: LiveConsumer, table: dict[str, int], timeout_s: float) -> None:
    """Takes what there is into `table`: key -> records."""
    while (record := consumer.poll(timeout_s)) is not None:
        key = json.loads(record.key or b"")["k"]
        if record.value is None:
            table.pop(key, None)
        else:
            table[key] = json.loads(record.value)["records"]
    consumer.commit()


@contextmanager
def office(broker: Guarded, app: str, folder: Path, spark: Callable[[], SparkSession]) -> Iterator[Office]:
    """An app with 200 records of input, and users with the rights of their roles; nothing is staged yet."""
    found = Office(broker, app, folder, spark)
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "count.py").write_text((HEAD + KINDS["count"]).replace("TOPIC", found.topic).replace("NAME", app))
    ensure_topic(found.admin, found.topic, PARTITIONS, INPUT)
    for role in ROLES:
        broker.add(found.user(role), PASSWORD)
        allow(broker, found.user(role), found.rights(role))
    found.produce(200)
    try:
        yield found
    finally:
        found.drivers.end()
