"""The settings of a driver whose tasks run on other hosts."""

from __future__ import annotations

from typing import Any

from pipelines.settings import Settings


def elsewhere(**more: Any) -> Settings:
    """They fit together; `more` replaces some."""
    given = {
        "bootstrap_servers": "k:1",
        "spark_master": "spark://host:7077",
        "store_url": "/store",
        "store_shared": True,
    }
    return Settings(**{**given, **more})
