"""What users of the guarded broker may do: the very rights of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from pipelines.kafka.acls import Right
from tests.security.guarded import Guarded
from tests.shared.waiting import until


def allow(broker: Guarded, user: str, found: Iterable[Right]) -> None:
    """Gives `user` these rights beside those that it has."""
    client = broker.admin
    wanted = [binding(user, right) for right in found]
    for future in client.create_acls(wanted).values():
        future.result(30)
    # the controller has them; a broker knows a moment later
    until("the broker does not know the ACLs", lambda: set(wanted) <= set(bindings_of(client, user)), 30, 0.02)


def binding(user: str, right: Right) -> AclBinding:
    return AclBinding(
        ResourceType[right.resource.replace("-", "_").upper()],
        right.name,
        ResourcePatternType[right.pattern.upper()],
        f"User:{user}",
        "*",
        AclOperation[_in_upper_case(right)],
        AclPermissionType.ALLOW,
    )


def bindings_of(client: AdminClient, user: str) -> list[AclBinding]:
    """The ACLs of a user that the broker knows."""
    # None is any; the client's types leave it out
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None,  # type: ignore[arg-type]
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    return client.describe_acls(every).result(30)


_DECISION = re.compile(
    r"Principal = User:(?P<user>\S+) is (?P<word>Allowed|Denied) operation = (?P<operation>\w+) from host = \S+ "
    r"on resource = (?P<resource>\S+)"
)
_RULE = re.compile(r"resourceType=(\w+), resourceName=([^,]+), patternType=(\w+), .*?operation=(\w+)")


@dataclass(frozen=True)
class Asked:
    """What a user has asked of the broker: by which rights it was allowed, and what was denied, in words."""

    used: frozenset[tuple[str, str, str, str]]
    denied: tuple[str, ...]


def asked_by(broker: Guarded, user: str) -> Asked:
    """What `user` has asked so far, by the authorizer's log. A right: resource, name, pattern, operation, in upper case."""
    used, denied = set(), []
    for line in (broker.folder / "decisions.log").read_text().splitlines():
        said = _DECISION.search(line)
        if said is None or said["user"] != user:
            continue
        if said["word"] == "Denied":
            denied.append(f"{said['operation']} of {said['resource']}")
        elif rule := _RULE.search(line):
            used.add((rule[1], rule[2], rule[3], rule[4]))
    return Asked(frozenset(used), tuple(denied))


def as_asked(right: Right) -> tuple[str, str, str, str]:
    """A right as `asked_by` names it."""
    kind = right.resource.replace("-", "_").upper()
    return kind, right.name, right.pattern.upper(), _in_upper_case(right)


def _in_upper_case(right: Right) -> str:
    """Its operation, as Kafka's clients and the log name it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", right.operation).upper()
