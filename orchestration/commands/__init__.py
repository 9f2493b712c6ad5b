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

# in the order of `switchyard --help`
MODULES = (
    jars, broker, produce, author, release, switch, reset, follow, overview, registry, supervise, ui, metrics, data_docs,
    acls,
)  # fmt: skip
