"""The commands: one module per group, each with `register(app)`.

A module here imports Spark, Dagster, Kafka and operations only inside its functions, so that `--help` is instant.
"""

from __future__ import annotations

from orchestration.commands import (
    acls,
    author,
    broker,
    data_docs,
    follow,
    jars,
    metrics,
    overview,
    produce,
    registry,
    release,
    reset,
    supervise,
    switch,
    ui,
)

MODULES = (
    jars, broker, produce, author, release, switch, reset, follow, overview, registry, supervise, ui, metrics, data_docs,
    acls,
)  # fmt: skip
# `switchyard --help` shows the commands in these groups, in this order
GROUPS = {
    "See what runs": ("status", "log", "operations", "follow", "dead-letters"),
    "Release a version": (
        "reprocess", "approve", "stage", "start", "wait", "diff", "check", "promote", "stop", "retire",
    ),
    "Go back, reset, repair": (
        "rollback", "refresh", "abort", "reset", "undo", "bisect", "clean", "resume", "abandon", "registry",
    ),
    "Write an app": ("new", "apps", "show", "try", "produce"),
    "Keep it running": ("up", "down", "supervise", "ui", "metrics", "data-docs"),
    "Set up": ("jars", "acls", "register-follower", "forget-follower"),
}  # fmt: skip
