"""The ledger judges the platform, so it may share nothing with it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

LEDGER = Path(__file__).parents[2] / "demo" / "ledger"


def test_it_imports_kafka_and_the_standard_library_only() -> None:
    imported = set()
    for module in LEDGER.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    assert {"confluent_kafka", "demo.ledger.reader"} <= imported
    allowed = {"confluent_kafka", *sys.stdlib_module_names}
    assert {
        name for name in imported if not name.startswith("demo.ledger") and name.split(".")[0] not in allowed
    } == set()
