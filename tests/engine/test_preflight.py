"""What a driver says if executors on other hosts can't run its batches; tests/cluster shows it on hosts of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pipelines.engine import preflight
from pipelines.engine.executor_facts import Facts, look
from pipelines.engine.preflight import ExecutorsUnfit, require_places, unfit
from pipelines.settings import Settings

MINE = Facts(host="a", versions={"Python": "3.11.9", "pandas": "2.2.3"}, user=7, unread=None, unwritten=None)
THERE = replace(MINE, host="b")


def elsewhere(**more: Any) -> Settings:
    given = {"bootstrap_servers": "k:1", "spark_master": "spark://127.0.0.1:1", "store_shared": True, "executors": 1}
    return Settings(**{**given, **more})


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"versions": {**MINE.versions, "pandas": "2.3.0"}}, "other Python on b: it has pandas 2.3.0, the driver has pandas 2.2.3", "PYSPARK_PYTHON"),
        ({"unread": "No such file or directory"}, "the store isn't shared: b can't read", "SWITCHYARD_STORE_URL"),
        ({"user": 8}, "executors on b run as user 8, the driver as user 7", "the same numeric id"),
        ({"unwritten": "Permission denied"}, "the store can't be written on b: Permission denied", "make /store writable"),
    ],
)  # fmt: skip
def test_one_executor_that_is_wrong_is_named(change: dict[str, Any], what: str, fix: str) -> None:
    assert unfit(MINE, [THERE], Path("/store")) is None
    found = unfit(MINE, [THERE, replace(THERE, **change)], Path("/store"))
    assert found is not None and found.what.startswith(what) and fix in found.fix


def test_a_file_of_the_driver_is_found_in_a_shared_store_only(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert look(str(file), "said").unread == "No such file or directory"
    file.write_text("of another store")
    assert look(str(file), "said").unread == "it has another content"
    file.write_text("said")
    found = look(str(file), "said")
    assert (found.unread, found.unwritten) == (None, None) and unfit(found, [found], tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert look(str(tmp_path / "gone" / "file"), "said").unwritten == "No such file or directory"


@pytest.fixture
def master() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"spark://127.0.0.1:{listening.getsockname()[1]}"


def test_a_master_that_does_not_answer_is_named_at_once(silent: str, master: str) -> None:
    with pytest.raises(ExecutorsUnfit, match=f"no Spark master answers at spark://{silent}") as caught:
        require_places(elsewhere(spark_master=f"spark://{silent}"))
    assert "SWITCHYARD_SPARK_MASTER" in caught.value.fix
    # one of several masters is enough
    require_places(
        elsewhere(spark_master=f"spark://{silent},{master.removeprefix('spark://')}", driver_host="127.0.0.1")
    )


def test_an_address_that_is_not_this_host_s_is_refused(master: str) -> None:
    # an address for documents, which no host has
    settings = elsewhere(spark_master=master, driver_host="192.0.2.1")
    with pytest.raises(ExecutorsUnfit, match=r"can't listen on 192\.0\.2\.1") as caught:
        require_places(settings)
    assert "SWITCHYARD_DRIVER_HOST" in caught.value.fix and "SWITCHYARD_DRIVER_BIND_ADDRESS" in caught.value.fix
    require_places(settings.model_copy(update={"driver_bind_address": "127.0.0.1"}))


class Clock:
    """Time passes only while someone sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    there: list[int],
    *,
    started: bool = False,
    stops_at: float = 1e9,
) -> float:
    """How long the wait for executors takes, if `there[n]` executors are there after n seconds."""
    clock = Clock()
    monkeypatch.setattr(preflight, "time", clock)
    monkeypatch.setattr(preflight, "_are_started", lambda *_: started)

    def known() -> SimpleNamespace:
        return SimpleNamespace(size=lambda: 1 + there[min(int(clock.now), len(there) - 1)])

    context = SimpleNamespace(getExecutorMemoryStatus=known, isStopped=lambda: clock.now >= stops_at)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)))
    preflight._await_executors(cast(SparkSession, spark), settings, settings.executor_timeout_s)
    return clock.now


def test_a_driver_waits_for_its_executors_and_for_the_last_ones_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    two = elsewhere(executors=2)
    assert waited(monkeypatch, two, [0, 0, 1, 2]) == 3
    assert waited(monkeypatch, two, [0, 0, 1]) == 2 + preflight._OTHERS_S + preflight._POLL_S
    # it does not give up on one that came at the last moment
    assert waited(monkeypatch, two, [0] * 59 + [1]) > 60


def test_no_executors_are_told_from_those_that_do_not_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = elsewhere(driver_host="a.example.com")
    with pytest.raises(ExecutorsUnfit, match="no executors: ") as none:
        waited(monkeypatch, settings, [0])
    assert "SWITCHYARD_EXECUTOR_CORES" in none.value.fix
    for more in ({"started": True}, {"stops_at": 20}):
        with pytest.raises(ExecutorsUnfit, match=r"executors can't reach the driver at a\.example\.com") as lost:
            waited(monkeypatch, settings, [0], **more)
        assert "SWITCHYARD_DRIVER_HOST" in lost.value.fix


def test_a_job_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_JOB_S", 0.1)
    with pytest.raises(TimeoutError, match="it did not end within"):
        preflight._in_time(lambda: Event().wait(60), until=0)
    assert preflight._in_time(lambda: 3, until=0) == 3
    with pytest.raises(ZeroDivisionError):
        preflight._in_time(lambda: 1 // 0, until=0)
