"""Kafka's own tools, as commands that a user can type."""

from __future__ import annotations

import shlex

from pipelines.engine.jvm.jars import jars_dir
from pipelines.settings import Settings

# the embedded broker comes without Kafka's scripts, but its jars have what they run
_CLASSES = {"kafka-topics.sh": "org.apache.kafka.tools.TopicCommand", "kafka-configs.sh": "kafka.admin.ConfigCommand"}


def kafka_tool(settings: Settings, tool: str) -> str:
    """The start of a command of `tool` (such as `kafka-topics.sh`) for this cluster, with a login where it needs one."""
    login = " --command-config admin.properties" if settings.kafka else ""
    if settings.embedded:
        tool = f"java -cp {shlex.quote(f'{jars_dir()}/broker/*')} {_CLASSES[tool]}"
    return f"{tool} --bootstrap-server {settings.bootstrap}{login}"
