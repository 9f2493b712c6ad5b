"""The command that creates a missing input makes a topic of which staging has nothing to warn."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from orchestration.operations.looking.durability import durability_notes
from orchestration.operations.looking.future import future_notes
from orchestration.operations.looking.missing_topics import delay_in_ms, how_to_create
from pipelines.kafka.inputs import inputs_now
from pipelines.kafka.topics import AHEAD
from pipelines.model.missing import InputNow
from pipelines.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# ms; None: only Spark can read it
DELAYS = {
    "10 seconds": 10_000, "1 second": 1_000, " 5 Minutes ": 300_000, "1 hour 30 minutes": 5_400_000, "2 days": 172_800_000,
    "250 milliseconds": 250, "10 seconds 10 seconds": 20_000, "0 seconds": 0,
    "1.5 seconds": None, "interval 10 seconds": None, "1 month": None, "10": None, "": None,
}  # fmt: skip
# what a cluster's own defaults may say
WORST = {"retention.ms": "604800000", "retention.bytes": "9", AHEAD: "3600000", "min.insync.replicas": "1",
         "unclean.leader.election.enable": "true"}  # fmt: skip


def command_of(fix: str) -> list[str]:
    return shlex.split(fix.split("`")[1])


def now(command: list[str]) -> InputNow:
    """What Kafka says of the topic that `command` creates on a cluster with the worst defaults."""
    configs = dict(command[n + 1].split("=") for n, part in enumerate(command) if part == "--config")
    config: Mapping[str, str] = {**WORST, **configs}
    replicas = int(command[command.index("--replication-factor") + 1]) if "--replication-factor" in command else 1
    return InputNow(
        first={},
        ahead_ms=int(config[AHEAD]),
        limits={name: int(config[name]) for name in ("retention.ms", "retention.bytes") if int(config[name]) >= 0},
        replicas=replicas,
        in_sync=int(config["min.insync.replicas"]),
        unclean=config["unclean.leader.election.enable"] == "true",
    )


def notes(settings: Settings, found: Mapping[str, InputNow], delay_ms: int | None) -> list[str]:
    return [*future_notes(settings, found, delay_ms), *durability_notes(settings, found)]


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
@pytest.mark.parametrize("watermark", [None, "10 seconds", "1 hour 30 minutes", "2 hours"])
def test_staging_warns_of_nothing_in_a_topic_that_the_command_creates(replicas: int, watermark: str | None) -> None:
    settings = Settings(bootstrap_servers="k:9092", replication_factor=replicas)
    found = now(command_of(how_to_create(settings, "sums", ["paid"], watermark)))
    assert found.replicas == replicas
    assert notes(settings, {"paid": found}, None if watermark is None else DELAYS.get(watermark, 7_200_000)) == []


def test_the_command_says_all_that_it_needs_and_no_more() -> None:
    settings = Settings(bootstrap_servers="k:9092")
    create = "kafka-topics.sh --bootstrap-server k:9092 --create --topic paid --partitions 4"
    plain = f"{create} --config retention.ms=-1 --config retention.bytes=-1"
    assert how_to_create(settings, "sums", ["paid"], None) == f"create it: `{plain}`"
    assert how_to_create(settings, "sums", ["paid"], "1 month") == f"create it: `{plain}`"
    assert how_to_create(settings, "sums", ["paid"], "5 seconds") == f"create it: `{plain} --config {AHEAD}=5000`"
    three = settings.model_copy(update={"replication_factor": 3})
    assert how_to_create(three, "sums", ["paid"], None) == (
        f"create it: `{create} --replication-factor 3 --config retention.ms=-1 --config retention.bytes=-1 "
        "--config min.insync.replicas=2 --config unclean.leader.election.enable=false`"
    )


@pytest.mark.parametrize(("watermark", "delay_ms"), DELAYS.items())
def test_the_delay_of_a_watermark_is_read_without_spark(watermark: str, delay_ms: int | None) -> None:
    assert delay_in_ms(watermark) == delay_ms


@pytest.mark.spark
def test_spark_reads_the_same_delay(spark: SparkSession) -> None:
    from pipelines.engine.frames import delay_of
    from pipelines.model import App, Table

    known = {text: delay for text, delay in DELAYS.items() if delay is not None}
    for text, delay_ms in known.items():
        app = App(name="a", inputs={}, results={"": Table(key=("a",))}, function=print, watermark=text)
        assert delay_of(app) == delay_ms, text


@pytest.mark.broker
def test_the_broker_takes_the_command_and_then_staging_warns_of_nothing(broker: Settings) -> None:
    command = command_of(how_to_create(broker, "sums", ["created-by-hand"], "10 seconds"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = inputs_now(broker, ["created-by-hand"])
    assert found["created-by-hand"].ahead_ms == 10_000
    assert notes(broker, found, 10_000) == []
