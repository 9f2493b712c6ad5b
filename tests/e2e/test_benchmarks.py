"""`make bench` with little data: it must end with its figures; their values don't matter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.cluster import ROOT
from tests.ports import port_of

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]


def bench(*options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", *options, "--port", str(port_of("benchmark"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_hydration_is_measured_beside_the_raw_limit() -> None:
    found = bench("--records", "30000")
    assert found["hydrate"]["records"] > 0 and found["hydrate"]["records_per_s"] > 0
    assert found["raw_consumer_records_per_s"] > 0 and found["hydrate_to_raw"] > 0


def test_a_switch_is_measured_each_way_and_round() -> None:
    found = bench("switch", "--keys", "200", "--rounds", "2")
    assert (found["keys"], found["changed"]) == (200, 200)
    assert {name: len(found[name]) for name in ("promote_s", "rollback_s", "planned_s", "delta_applied_s")} == {
        "promote_s": 2, "rollback_s": 2, "planned_s": 4, "delta_applied_s": 4
    }  # fmt: skip
    assert min(found["promote_s"] + found["rollback_s"]) > 0


def test_a_reset_is_measured() -> None:
    found = bench("reset", "--keys", "20000")
    assert found.pop("keys") == 20_000
    assert set(found) == {"new", "keep", "truncate", "tombstone"}
    assert all(took["plan_s"] > 0 and took["done_s"] > 0 for took in found.values())
