"""The demo from end to end with less input: what it reports, and what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import ROOT
from tests.shared.ports import port_of

HISTORY = 50_000
PER_SECOND = 300

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def run_demo(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {
        "SWITCHYARD_STATE_DIR": str(home),
        "SWITCHYARD_BROKER_PORT": str(port_of("demo")),
        "DEMO_HISTORY": str(HISTORY),
        "DEMO_RATE": str(PER_SECOND),
    }
    return subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=ROOT, env={**os.environ, **given, **environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1100, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_the_demo_ends_with_a_clean_ledger_and_leaves_its_report_alone(tmp_path: Path) -> None:
    done = run_demo(tmp_path, UI="0")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["demo-report.json"]
    report = json.loads((tmp_path / "demo-report.json").read_text())
    assert report["hydrate_records"] >= HISTORY / 2 and report["hydrate_s"] > 0 and report["hydrate_records_per_s"] > 0
    # bids were mistaken for asks: each window that both have differs, except those without bids
    assert report["diff"]["changed"] > 100 > report["diff"]["identical"] >= 0
    assert set(report["diff"]) == {"only_live", "only_new", "changed", "identical"}
    assert report["checks"]["passed"] >= 10 and report["checks"]["failed"] == 0
    assert report["switch_s"] > 0 and report["rollback_s"] > 0
    follower = report["follower"]
    assert follower["records"] > 0 and (follower["duplicates"], follower["missing"]) == (0, 0)
    assert (report["follower_wrong"], report["follower_steps_back"]) == (0, 0)
    assert (report["live_before"], report["live_after"]) == ("stock-stats.v1", "stock-stats.v2")
    assert report["input_records"] > HISTORY
    assert len(report["steps_s"]) >= 10 and all(seconds >= 0 for seconds in report["steps_s"].values())


def test_a_busy_port_of_the_ui_is_said_before_anything_is_done(tmp_path: Path, silent: str) -> None:
    done = run_demo(tmp_path, UI_PORT=silent.rpartition(":")[2])
    assert done.returncode == 1
    assert "is busy" in done.stderr and "make demo UI=0" in done.stderr
    assert "load" not in done.stdout


def test_nor_may_it_be_one_that_its_broker_takes(tmp_path: Path) -> None:
    done = run_demo(tmp_path, UI_PORT=str(port_of("demo") + 1))
    assert done.returncode == 1
    assert "the broker and its controller take it" in done.stderr and "make demo UI=0" in done.stderr
    assert "load" not in done.stdout
