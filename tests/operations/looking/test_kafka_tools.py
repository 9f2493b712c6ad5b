"""The commands of Kafka's own tools that messages name."""

from __future__ import annotations

import shlex
from pathlib import Path
from zipfile import ZipFile

import pytest

from orchestration.operations.looking.kafka_tools import kafka_tool
from pipelines.settings import Settings

TOOLS = ("kafka-topics.sh", "kafka-configs.sh")


def test_a_cluster_s_tools_are_those_of_its_distribution() -> None:
    settings = Settings(bootstrap_servers="k:9093")
    assert kafka_tool(settings, "kafka-topics.sh") == "kafka-topics.sh --bootstrap-server k:9093"
    settings = Settings(bootstrap_servers="k:9093", kafka={"security.protocol": "SSL"})
    assert (
        kafka_tool(settings, "kafka-configs.sh")
        == "kafka-configs.sh --bootstrap-server k:9093 --command-config admin.properties"
    )


@pytest.mark.parametrize("tool", TOOLS)
def test_the_embedded_broker_s_tools_are_in_its_jars(tool: str) -> None:
    java, option, jars, main, *rest = shlex.split(kafka_tool(Settings(broker_port=19_100), tool))
    assert (java, option, rest) == ("java", "-cp", ["--bootstrap-server", "127.0.0.1:19100"])
    classes = {name for jar in Path(jars).parent.glob(Path(jars).name) for name in ZipFile(jar).namelist()}
    assert f"{main.replace('.', '/')}.class" in classes
