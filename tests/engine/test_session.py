"""How Spark shares the cores with what runs beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.settings import Settings

pytestmark = [pytest.mark.spark]

OWN = Path("/proc/self/autogroup")
# there, and empty, where Linux can group processes by session and is told not to
GROUPED = OWN.exists() and bool(OWN.read_text())
STARTS = """
from pyspark import SparkContext
from pipelines.engine.session import build_session
from pipelines.settings import get_settings
spark = build_session(get_settings(), "yielding", heap_mb=512, cores=1, brief=True)
print(spark.range(3).count())
for pid in ("self", SparkContext._gateway.proc.pid):
    print(open(f"/proc/{pid}/autogroup").read())
"""


TWICE = """
from pipelines.engine.session import build_session
from pipelines.settings import get_settings
brief = build_session(get_settings(), "one", heap_mb=512, cores=1, brief=True)
assert build_session(get_settings(), "one", heap_mb=512, cores=1) is brief
"""


def test_a_session_is_built_once_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", TWICE], env=Settings(state_dir=tmp_path).child_environment(), capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0 and "existing Spark session" not in told.stderr, told.stderr


def _group(told: str) -> tuple[str, int]:
    """As in `/autogroup-12 nice 7`."""
    name, _, nice = told.split()
    return name, int(nice)


@pytest.mark.skipif(not GROUPED, reason="this Linux does not group processes by session")
@pytest.mark.parametrize("leads", [True, False], ids=["its own session", "another's session"])
def test_spark_yields_the_cores_and_the_session_of_others_does_not(leads: bool, tmp_path: Path) -> None:
    here = _group(OWN.read_text())
    settings = Settings(state_dir=tmp_path, driver_nice=7)
    told = subprocess.run(
        [sys.executable, "-c", STARTS], env=settings.child_environment(), start_new_session=leads, capture_output=True,
        text=True, check=True, timeout=120,
    )  # fmt: skip
    counted, own, jvm = told.stdout.split("\n")[0], *map(_group, filter(None, told.stdout.split("\n")[1:]))
    assert counted == "3"
    assert jvm[1] == 7
    assert (own == jvm) if leads else (own == here)
    assert _group(OWN.read_text()) == here
