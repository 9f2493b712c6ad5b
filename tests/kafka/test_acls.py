"""The table of rights: which names it allows, how it is printed, and that the docs show the same."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestration.cli import run
from pipelines.errors import BadUsage
from pipelines.kafka.acls import ROLES, Right, Role, as_commands, rights

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def of(role: Role, **more: Any) -> tuple[Right, ...]:
    return rights(role, "stock-stats", inputs=["trades"], groups=["my-service"], **more)


def allows(found: tuple[Right, ...], resource: str, name: str, operation: str) -> bool:
    """Decides as Kafka does: Read, Write and Delete imply Describe."""
    implied = {"Describe": ("Describe", "Read", "Write", "Delete")}.get(operation, (operation,))
    return any(
        right.resource == resource
        and right.operation in implied
        and (right.name in (name, "*") if right.pattern == "literal" else name.startswith(right.name))
        for right in found
    )


@pytest.mark.parametrize(
    ("role", "resource", "name", "operation"),
    [
        ("driver", "topic", "trades", "Write"),
        ("driver", "topic", "stock-stats.v1.g1", "Delete"),
        ("driver", "topic", "stock-stats.v1.g2", "Create"),
        ("driver", "topic", "stock-stats.delta.diff-1", "Write"),
        ("driver", "topic", "stock-stats-eu.v1.g1", "Write"),
        ("driver", "group", "stock-stats-eu.v1", "Read"),
        ("driver", "transactional-id", "stock-stats-eu.v1", "Write"),
        ("driver", "group", "my-service", "Read"),
        ("driver", "topic", "switchyard.registry-snapshots", "Write"),
        ("operator", "topic", "trades", "Write"),
        ("operator", "topic", "trades", "Delete"),
        ("operator", "topic", "stock-stats.v1.g1", "Write"),
        ("operator", "topic", "switchyard.registry", "Delete"),
        ("operator", "group", "my-service", "Read"),
        ("follower", "topic", "trades", "Read"),
        ("follower", "topic", "stock-stats.v1.g1", "Write"),
        ("follower", "topic", "stock-stats-eu.v1.g1", "Read"),
        ("follower", "topic", "switchyard.registry", "Write"),
        ("follower", "topic", "switchyard.registry-snapshots", "Write"),
        ("follower", "group", "stock-stats.v1", "Read"),
        ("follower", "transactional-id", "stock-stats.v1", "Write"),
    ],
)
def test_a_role_may_not(role: Role, resource: str, name: str, operation: str) -> None:
    assert not allows(of(role), resource, name, operation)


def test_only_who_may_use_tombstones_writes_results_as_an_operator() -> None:
    assert allows(of("operator", tombstones=True), "topic", "stock-stats.v1.g1", "Write")


def test_an_operator_who_is_told_the_groups_sees_no_others() -> None:
    assert not allows(of("operator"), "group", "someone-else", "Describe")
    assert allows(rights("operator", "stock-stats", inputs=["trades"]), "group", "someone-else", "Describe")


@pytest.mark.parametrize("role", ["driver", "operator"])
def test_who_reads_another_app_s_result_reads_each_of_its_versions_and_generations(role: Role) -> None:
    found = rights(role, "totals", upstream=["stock-stats"])
    for topic in ("stock-stats.v1.g1", "stock-stats.v12.g3.alerts"):
        assert allows(found, "topic", topic, "Read")
        assert allows(found, "topic", topic, "DescribeConfigs") == (role == "operator")
        assert not any(allows(found, "topic", topic, each) for each in ("Write", "Create", "Delete"))
    assert not allows(found, "topic", "stock-stats-eu.v1.g1", "Read")
    assert not any(allows(found, kind, "stock-stats.v1", each) for kind in ("group", "transactional-id")
                   for each in ("Read", "Write", "Delete"))  # fmt: skip


def test_nothing_is_allowed_twice_and_everything_has_a_reason() -> None:
    for role in ROLES:
        found = of(role)
        assert len({(r.resource, r.name, r.pattern, r.operation) for r in found}) == len(found)
        assert all(right.why for right in found)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"role": "driver", "app": "Stock Stats"}, "not the name of an app"),
        ({"role": "driver", "app": "stock-stats.v1"}, "not the name of an app"),
        ({"role": "driver", "app": "stock-stats"}, "the inputs of stock-stats"),
        ({"role": "operator", "app": "stock-stats"}, "the inputs of stock-stats"),
        (
            {"role": "driver", "app": "totals", "upstream": ["stock-stats.v1"]},
            "'stock-stats.v1' is not the name of an app",
        ),
        ({"role": "follower", "app": "stock-stats"}, "needs a consumer group"),
    ],
)
def test_what_must_be_said_is_asked_for(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(BadUsage, match=words):
        rights(**arguments)


def test_a_line_is_one_that_kafka_s_tool_takes() -> None:
    [line] = [line for line in as_commands(of("driver"), "User:me", "k:9093") if "--topic stock-stats.v " in line]
    assert shlex.split(line) == [
        "kafka-acls.sh", "--bootstrap-server", "k:9093", "--command-config", "admin.properties", "--add",
        "--allow-principal", "User:me", "--operation", "Read", "--operation", "Write", "--topic", "stock-stats.v",
        "--resource-pattern-type", "prefixed",
    ]  # fmt: skip
    with pytest.raises(BadUsage, match="not a principal"):
        as_commands(of("driver"), "me", "k:9093")


@pytest.mark.slow
def test_the_command_prints_the_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = ["acls", "driver", "stock-stats", "--input", "trades", "--principal", "User:CN=me,O=us"]
    assert run(told) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == as_commands(
        rights("driver", "stock-stats", inputs=["trades"]), "User:CN=me,O=us", "127.0.0.1:19092"
    )
    assert run([*told, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(rights("driver", "stock-stats", inputs=["trades"]))
    reads = ["acls", "operator", "totals", "--upstream", "stock-stats", "--principal", "User:me"]
    assert run(reads) == 0
    assert "--topic stock-stats.v --resource-pattern-type prefixed" in capsys.readouterr().out
    assert run(["acls", "owner", "stock-stats", "--principal", "User:me"]) == 2
    assert "driver, operator, follower" in capsys.readouterr().err


def test_the_documents_show_the_very_rights() -> None:
    """Each role's table in the page has one row per right: resource, name, pattern, operation, why."""
    page = PAGE.read_text()
    for role in ROLES:
        section = page.partition(f"### {role.capitalize()}\n")[2].partition("\n#")[0]
        rows = [
            tuple(cell.strip(" `") for cell in row.strip("|").split("|"))
            for row in re.findall(r"^\| .*`.*\|$", section, re.MULTILINE)
        ]
        assert rows == [(r.resource, r.name, r.pattern, r.operation, r.why) for r in of(role, tombstones=True)], role
