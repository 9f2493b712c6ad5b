"""Kafka's own tools, as commands that a user can type."""

from __future__ import annotations

from pipelines.settings import Settings


def kafka_tool(settings: Settings, tool: str) -> str:
    """The start of a command of `tool` (such as `kafka-topics.sh`) for this cluster, with a login where it needs one."""
    login = " --command-config admin.properties" if settings.kafka else ""
    return f"{tool} --bootstrap-server {settings.bootstrap}{login}"
