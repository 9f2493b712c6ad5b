"""Names: what a release is called, and what is derived from that. One release, one prefix, exact matches only."""

from __future__ import annotations

import re

REGISTRY_TOPIC = "switchyard.registry"
HEARTBEATS_TOPIC = "switchyard.heartbeats"
# headers of a result's records: where a stream's record came from; that consumers may have had its like before
SOURCE = "source"
REPLAY = "replay"

_APP = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RELEASE = re.compile(r"(?P<app>[a-z][a-z0-9]*(?:-[a-z0-9]+)*)\.v(?P<version>[0-9]+)")


def is_app_name(name: str) -> bool:
    """Whether `name` is lower-case words joined by hyphens."""
    return _APP.fullmatch(name) is not None


def release_name(app: str, version: int) -> str:
    """`stock-stats`, 2 -> `stock-stats.v2`: the consumer group and the transactional id, too."""
    return f"{app}.v{version}"


def split_release(name: str) -> tuple[str, int] | None:
    """`stock-stats.v2` -> (`stock-stats`, 2); None if `name` isn't a release's."""
    match = _RELEASE.fullmatch(name)
    return (match["app"], int(match["version"])) if match else None


def result_topic(release: str, generation: int) -> str:
    return f"{release}.g{generation}"


def progress_topic(release: str) -> str:
    return f"{release}.progress"


def dead_letter_topic(release: str) -> str:
    return f"{release}.dead-letters"


def delta_topic(app: str, evidence: str) -> str:
    return f"{app}.delta.{evidence}"
