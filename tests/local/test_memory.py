"""How many Spark sessions of Dagster's runs fit: by the memory of the machine, and what else runs on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestration.defs.names import HYDRATION_POOL, SPARK_POOL
from orchestration.local import ui
from orchestration.local.memory import machine_mib, spark_runs
from pipelines.settings import Settings


# a session, and a driver: 1,024 of heap, 256 of RocksDB, 1,024 beside; the broker: 1,024 and 512
@pytest.mark.parametrize(
    ("memory_gib", "runs"),
    [
        (2, 1),
        (8, 1),
        (12, 1),  # 1,536 + 2 x 2,304 leave 6,144: two sessions, one of them for a promote
        (13, 2),  # 7,168: three
        (14, 2),
        (15, 3),  # 9,216: four
        (256, 3),  # more would take the processor time of the streams
    ],
)
def test_the_limit_follows_from_the_memory(memory_gib: int, runs: int, tmp_path: Path) -> None:
    assert spark_runs(memory_gib * 1024, Settings(state_dir=tmp_path)) == runs


def test_larger_heaps_hold_fewer_and_a_broker_elsewhere_more(tmp_path: Path) -> None:
    assert spark_runs(16 * 1024, Settings(state_dir=tmp_path, driver_heap_mb=4096)) == 1
    assert spark_runs(14 * 1024, Settings(state_dir=tmp_path, bootstrap_servers="kafka:9092")) == 3


def test_the_memory_is_that_of_the_machine_or_of_a_smaller_container(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       24576000 kB\nMemFree:        1000 kB\n")
    assert machine_mib(tmp_path, tmp_path / "none") == 24_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_mib(tmp_path, tmp_path) == 24_000
    (tmp_path / "memory.max").write_text(f"{8 * 2**30}\n")
    assert machine_mib(tmp_path, tmp_path) == 8192
    assert machine_mib() > 256


def test_each_pool_has_one_name() -> None:
    assert list(ui.POOLS) == [SPARK_POOL, HYDRATION_POOL]
