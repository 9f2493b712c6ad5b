"""What each role may do on a Kafka cluster: the least that it needs, as ACLs.

One table for the command that prints them, for the docs, and for the tests that give a user exactly these ACLs.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

from pipelines.errors import BadUsage
from pipelines.kafka.failures import NO_GROUP
from pipelines.model.names import HEARTBEATS_TOPIC, KAFKA_TOPICS, REGISTRY_TOPIC, SNAPSHOTS_TOPIC, is_app_name

Role = Literal["driver", "operator", "follower"]
ROLES: tuple[Role, ...] = get_args(Role)
Resource = Literal["topic", "group", "transactional-id"]
Pattern = Literal["literal", "prefixed"]
# names of Kafka's own tool; Read, Write and Delete include Describe
Operation = Literal["Read", "Write", "Create", "Delete", "Describe", "DescribeConfigs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One allowing ACL, and what it is needed for. A literal `*` is every name."""

    resource: Resource
    name: str
    pattern: Pattern
    operation: Operation
    why: str


def rights(
    role: Role,
    app: str,
    *,
    inputs: Sequence[str] = (),
    upstream: Sequence[str] = (),
    groups: Sequence[str] = (),
    tombstones: bool = False,
) -> tuple[Right, ...]:
    """What `role` needs for all releases of `app`, present and future.

    `inputs`: the app's topics. `upstream`: other apps whose results it reads. `groups`: a follower's own groups; for an
    operator, those of the app's followers, none for all. `tombstones`: an operator may also write into results, for
    `reset --output tombstone`. Raises BadUsage for a name that is not an app's, and if `inputs` or `groups` are missing
    where the role needs them.
    """
    for name in (app, *upstream):
        if not is_app_name(name):
            raise BadUsage(
                f"{name!r} is not the name of an app",
                fix="use lower-case words joined by hyphens, at most 100 letters, as in stock-stats",
            )
    if role in ("driver", "operator") and not (inputs or upstream):
        raise BadUsage(f"a {role} reads the inputs of {app}, but none is named", fix="name each: --input trades")
    if role == "follower" and not groups:
        raise BadUsage(
            f"a follower of {app} needs a consumer group, but none is named", fix="name it: --group my-service"
        )
    match role:
        case "driver":
            found = _driver(app, inputs, upstream)
        case "operator":
            found = _operator(app, inputs, upstream, groups, tombstones)
        case "follower":
            found = _follower(app, groups)
        case _:
            assert_never(role)
    return tuple(found)


def _driver(app: str, inputs: Sequence[str], upstream: Sequence[str]) -> Iterable[Right]:
    releases = f"{app}.v"
    yield _topic(REGISTRY_TOPIC, "Read", "what operations ask for")
    yield _topic(REGISTRY_TOPIC, "Write", "its lease, and that it has failed")
    yield _transaction(REGISTRY_TOPIC, "each step of the registry has one writer")
    yield _topic(SNAPSHOTS_TOPIC, "Read", "a fast start if the registry is long")
    yield _topic(HEARTBEATS_TOPIC, "Read", "who runs the release; how far the other driver has read")
    yield _topic(HEARTBEATS_TOPIC, "Write", "its heartbeat; to ask the broker for the time")
    for name in inputs:
        yield _topic(name, "Read", "the input")
    for name in upstream:
        yield _topic(f"{name}.v", "Read", f"the result of {name}, an input", "prefixed")
    yield _topic(releases, "Read", "its progress, and that of the release that it aligns with", "prefixed")
    yield _topic(releases, "Write", "results, progress and dead letters", "prefixed")
    yield _group(releases, "Read", "its consumer group: membership and offsets", "prefixed")
    yield _transaction(releases, "the transaction of a batch", "prefixed")
    yield _group(NO_GROUP, "Describe", "clients without a group ask for its coordinator")


def _operator(
    app: str, inputs: Sequence[str], upstream: Sequence[str], groups: Sequence[str], tombstones: bool
) -> Iterable[Right]:
    releases, deltas = f"{app}.v", f"{app}.delta."
    yield _topic(REGISTRY_TOPIC, "Create", "the first operation on a cluster")
    yield _topic(REGISTRY_TOPIC, "Read", "the state of releases and operations")
    yield _topic(REGISTRY_TOPIC, "Write", "operations, switches, the audit trail")
    yield _transaction(REGISTRY_TOPIC, "each step of the registry has one writer")
    yield _topic(SNAPSHOTS_TOPIC, "Create", "the first snapshot")
    yield _topic(SNAPSHOTS_TOPIC, "Read", "a fast start if the registry is long")
    yield _topic(SNAPSHOTS_TOPIC, "Write", "snapshots, which others read as its state")
    yield _transaction(SNAPSHOTS_TOPIC, "a snapshot is written whole or not at all")
    yield _topic(HEARTBEATS_TOPIC, "Create", "the first operation on a cluster")
    yield _topic(HEARTBEATS_TOPIC, "Read", "the state of drivers; who carries out an operation")
    yield _topic(HEARTBEATS_TOPIC, "Write", "its signs of life; to ask the broker for the time")
    yield from _settings_of(REGISTRY_TOPIC, SNAPSHOTS_TOPIC, HEARTBEATS_TOPIC)
    for name in KAFKA_TOPICS:
        yield _topic(name, "Describe", "warnings of records that may be lost")
    yield from _settings_of(*KAFKA_TOPICS)
    for name in inputs:
        yield from _input(name)
    for name in upstream:
        yield from _input(f"{name}.v", "prefixed")
    yield _topic(releases, "Create", "stage, reset", "prefixed")
    yield _topic(releases, "Read", "diff, check, promote, dead-letters: what releases write", "prefixed")
    yield _topic(releases, "Delete", "retire, clean, reset --output truncate", "prefixed")
    yield from _settings_of(releases, pattern="prefixed")
    yield _topic(deltas, "Create", "diff", "prefixed")
    yield _topic(deltas, "Write", "what a switch changes for consumers of a table", "prefixed")
    yield _topic(deltas, "Delete", "retire", "prefixed")
    yield _transaction(deltas, "one transaction for each delta", "prefixed")
    yield _transaction(releases, "reset: fences a driver that might still write", "prefixed")
    yield _group(
        releases, "Delete", "retire; offsets that another tool has changed, for reset --to-current", "prefixed"
    )
    for name in groups or ["*"]:
        yield _group(name, "Describe", "how far followers are, before their data is deleted")
    if groups:
        yield _group(NO_GROUP, "Describe", "clients without a group ask for its coordinator")
    if tombstones:
        yield _topic(releases, "Write", "reset --output tombstone writes into the result", "prefixed")


def _follower(app: str, groups: Sequence[str]) -> Iterable[Right]:
    yield _topic(REGISTRY_TOPIC, "Read", "the chain of switches")
    yield _topic(SNAPSHOTS_TOPIC, "Read", "a fast start if the registry is long")
    yield _topic(f"{app}.v", "Read", "results, and how far they may be read", "prefixed")
    yield _topic(f"{app}.delta.", "Read", "what a switch changed in a table", "prefixed")
    for name in groups:
        yield _group(name, "Read", "its own offsets")
    yield _group(NO_GROUP, "Describe", "clients without a group ask for its coordinator")


def _input(name: str, pattern: Pattern = "literal") -> Iterable[Right]:
    yield _topic(name, "Read", "positions for a reset; the record that makes a batch fail", pattern)
    yield _topic(name, "DescribeConfigs", "whether it is compacted: then history may be missing", pattern)


def _settings_of(*names: str, pattern: Pattern = "literal") -> Iterable[Right]:
    for name in names:
        yield _topic(name, "DescribeConfigs", "warnings of records that may be lost", pattern)


def _topic(name: str, operation: Operation, why: str, pattern: Pattern = "literal") -> Right:
    return Right(resource="topic", name=name, pattern=pattern, operation=operation, why=why)


def _group(name: str, operation: Operation, why: str, pattern: Pattern = "literal") -> Right:
    return Right(resource="group", name=name, pattern=pattern, operation=operation, why=why)


def _transaction(name: str, why: str, pattern: Pattern = "literal") -> Right:
    return Right(resource="transactional-id", name=name, pattern=pattern, operation="Write", why=why)


def as_commands(found: Sequence[Right], principal: str, bootstrap: str) -> list[str]:
    """Commands for Kafka's own tool, one per resource. Raises BadUsage for a principal that Kafka would not accept."""
    kind, _, name = principal.partition(":")
    if not kind or not name:
        raise BadUsage(f"{principal!r} is not a principal", fix="write it as in User:stock-stats-driver")
    operations: dict[tuple[Resource, str, Pattern], list[Operation]] = {}
    for right in found:
        operations.setdefault((right.resource, right.name, right.pattern), []).append(right.operation)
    lines = []
    for (resource, wanted, pattern), allowed in operations.items():
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--command-config", "admin.properties", "--add"]
        words += ["--allow-principal", principal]
        words += [word for operation in allowed for word in ("--operation", operation)]
        words += [f"--{resource}", wanted, "--resource-pattern-type", pattern]
        lines.append(shlex.join(words))
    return lines
