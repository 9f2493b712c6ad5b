"""What a driver says if executors on other hosts can't run its batches; tests/cluster shows it on hosts of their own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pipelines.engine import elsewhere as elsewhere_module
from pipelines.engine import in_time, preflight
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.elsewhere import ExecutorsLost, require_context, too_small
from pipelines.engine.executor_facts import Facts, digest_of, look
from pipelines.engine.orders import StopWanted
from pipelines.engine.preflight import ExecutorsUnfit, require_places, unfit
from pipelines.engine.yarn import Application, Room
from pipelines.settings import Settings
from tests.shared.elsewhere import elsewhere

MINE = Facts(
    host="a", versions={"Python": "3.11.9", "pandas": "2.2.3"}, code="c0de", user=7, unread=None, unwritten=None
)
THERE = replace(MINE, host="b")


def with_one(**more: Any) -> Settings:
    return elsewhere(**{"spark_master": "spark://127.0.0.1:1", "executors": 1, **more})


@pytest.mark.parametrize(
    ("change", "what", "fix"),
    [
        ({"versions": {**MINE.versions, "pandas": "2.3.0"}}, "other Python on b: it has pandas 2.3.0, the driver has pandas 2.2.3", "PYSPARK_PYTHON"),
        ({"code": "0ther"}, "other version of Switchyard on b: ", "install the same version"),
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
        require_places(with_one(spark_master=f"spark://{silent}"))
    assert "SWITCHYARD_SPARK_MASTER" in caught.value.fix
    # one of several masters is enough
    require_places(
        with_one(spark_master=f"spark://{silent},{master.removeprefix('spark://')}", driver_host="127.0.0.1")
    )


def test_an_address_that_is_not_this_host_s_is_refused(master: str) -> None:
    # an address for documents, which no host has
    settings = with_one(spark_master=master, driver_host="192.0.2.1")
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
    check: Callable[[], object] = lambda: None,
    ask: Callable[..., bool] | None = None,
) -> float:
    """How long the wait for executors takes, if `there[n]` executors are there after n seconds."""
    clock = Clock()

    def wait_for(jobs: list[Future[Any]], limit_s: float) -> None:
        # a job that hangs takes none of the test's own time
        if wait(jobs, 0.05 if ask else 30).not_done:
            clock.sleep(limit_s)

    monkeypatch.setattr(preflight, "time", clock)
    monkeypatch.setattr(in_time, "time", clock)
    monkeypatch.setattr(in_time, "wait", wait_for)
    monkeypatch.setattr(preflight, "_are_started", ask or (lambda *_: started))

    def known() -> SimpleNamespace:
        return SimpleNamespace(size=lambda: 1 + there[min(int(clock.now), len(there) - 1)])

    context = SimpleNamespace(getExecutorMemoryStatus=known, isStopped=lambda: clock.now >= stops_at)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)))
    preflight._await_executors(cast(SparkSession, spark), settings, settings.executor_timeout_s, check)
    return clock.now


def test_a_driver_waits_for_its_executors_and_for_the_last_ones_not_long(monkeypatch: pytest.MonkeyPatch) -> None:
    two = with_one(executors=2)
    assert waited(monkeypatch, two, [0, 0, 1, 2]) == 3
    assert waited(monkeypatch, two, [0, 0, 1]) == 2 + preflight._OTHERS_S + preflight.POLL_S
    # it does not give up on one that came at the last moment
    assert waited(monkeypatch, two, [0] * 59 + [1]) > 60


def test_no_executors_are_told_from_those_that_do_not_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = with_one(driver_host="a.example.com")
    with pytest.raises(ExecutorsUnfit, match="no executors: ") as none:
        waited(monkeypatch, settings, [0])
    assert "SWITCHYARD_EXECUTOR_CORES" in none.value.fix
    for more in ({"started": True}, {"stops_at": 20}):
        with pytest.raises(ExecutorsUnfit, match=r"executors can't reach the driver at a\.example\.com") as lost:
            waited(monkeypatch, settings, [0], **more)
        assert "SWITCHYARD_DRIVER_HOST" in lost.value.fix


def never() -> None:
    Event().wait(60)


def test_a_job_that_does_not_end_is_given_up() -> None:
    soon = time.monotonic() + 0.1
    with pytest.raises(in_time.Late):
        in_time.in_time(never, soon, lambda: None)
    later = time.monotonic() + 30
    assert in_time.in_time(lambda: 3, later, lambda: None) == 3
    with pytest.raises(in_time.Failed) as failed:
        in_time.in_time(lambda: 1 // 0, later, lambda: None)
    assert isinstance(failed.value.error, ZeroDivisionError)


def test_one_deadline_holds_for_all_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job that hangs is neither other Python nor an executor that doesn't reach the driver."""
    settings = with_one(executor_timeout_s=0.3, store_url=str(tmp_path))
    release_folder(settings, "sums.v1").mkdir(parents=True)
    monkeypatch.setattr(preflight, "_await_executors", lambda *_: None)
    hung = SimpleNamespace(range=lambda *_, **__: never())
    for classes, context in ((lambda *_: never(), None), (lambda *_: [], hung)):
        monkeypatch.setattr(preflight, "_hosts_without_classes", classes)
        began = time.monotonic()
        with pytest.raises(ExecutorsUnfit, match=r"have not run the first jobs 0\.3 s after") as caught:
            preflight.require_executors(cast(SparkSession, SimpleNamespace(sparkContext=context)), settings, "sums.v1")
        assert time.monotonic() - began < 10
        assert "SWITCHYARD_EXECUTOR_TIMEOUT_S" in caught.value.fix
    assert list(release_folder(settings, "sums.v1").iterdir()) == []


def test_a_driver_that_must_end_does_not_wait_for_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise StopWanted

    with pytest.raises(StopWanted):
        waited(monkeypatch, with_one(), [0], check=stop)
    with pytest.raises(StopWanted):
        in_time.in_time(never, time.monotonic() + 30, stop)


def test_a_master_that_does_not_say_what_it_has_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> bool:
        never()
        return True

    with pytest.raises(ExecutorsUnfit, match="no executors: "):
        waited(monkeypatch, with_one(executor_timeout_s=3), [0], ask=silent)


def test_each_of_several_masters_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is a standby master, which has no apps; the second has given this driver cores."""
    pages = {
        "a": [],
        "b": [{"id": "app-1", "cores": 0}],
        "[::1]": [{"id": "app-2", "cores": 4}, {"id": "app-1", "cores": 2}],
    }

    def page(url: str, **_: object) -> BytesIO:
        host = url.removeprefix("http://").rpartition(":")[0]
        return BytesIO(json.dumps({"activeapps": pages[host]}).encode())

    monkeypatch.setattr(preflight, "_page_port", lambda *_: 8080)
    monkeypatch.setattr(preflight.urllib.request, "urlopen", page)
    spark = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(applicationId="app-1")))
    assert preflight._are_started(spark, with_one(spark_master="spark://a:7077,b:7077,[::1]:7077"))
    assert not preflight._are_started(spark, with_one(spark_master="spark://a:7077,b:7077"))


def test_an_address_of_the_newer_kind_is_one_of_this_host() -> None:
    preflight._listen("::1")
    preflight._listen("localhost")
    with pytest.raises(OSError):
        preflight._listen("2001:db8::1")


def test_another_version_of_switchyard_is_seen_but_not_other_apps(tmp_path: Path) -> None:
    for name in ("engine/sink.py", "apps/sums.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    before = digest_of(tmp_path)
    (tmp_path / "apps" / "sums.py").write_text("changed")
    digest_of.cache_clear()
    assert digest_of(tmp_path) == before
    (tmp_path / "engine" / "sink.py").write_text("changed")
    digest_of.cache_clear()
    assert digest_of(tmp_path) != before


def test_a_local_driver_starts_without_the_preflight() -> None:
    code = "import sys, pipelines.engine.boot; print([n for n in sys.modules if n.startswith('pipelines.engine.') and (any(late in n for late in ('preflight', 'executor_facts', 'elsewhere', 'yarn')))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# -- on YARN; tests/cluster/test_yarn.py asks a ResourceManager


@pytest.fixture
def on_yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    return with_one(spark_master="yarn", driver_host="a.example.com")


def an_application(**changes: Any) -> Application:
    given = {"id": "application_1_0001", "state": "RUNNING", "containers": 1, "said": ""}
    return Application(**{**given, **changes})


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"most_mb": 4095}, "no executors: one needs a container of 4096 MiB with 2 cores, but YARN gives a container 4095 MiB and 2"),
        ({"most_cores": 1}, "no executors: one needs a container of 4096 MiB with 2 cores, but YARN gives a container 4096 MiB and 1"),
        ({"nodes": 0}, "no executors: YARN has no NodeManager that runs"),
    ],
)  # fmt: skip
def test_an_executor_that_no_container_holds_is_refused_before_spark_starts(change: dict[str, Any], what: str) -> None:
    given = {"nodes": 2, "most_mb": 4096, "most_cores": 2, "asked_mb": 4096, "asked_cores": 2}
    assert too_small(Room(**given)) is None
    found = too_small(Room(**{**given, **change}))
    assert found is not None and found.what.startswith(what)


def test_yarn_is_asked_whether_it_has_started_containers(monkeypatch: pytest.MonkeyPatch, on_yarn: Settings) -> None:
    spark = cast(SparkSession, SimpleNamespace(sparkContext=SimpleNamespace(applicationId="application_1_0001")))
    # the first container is Spark's own
    for containers, started in ((1, False), (2, True)):
        said = an_application(containers=containers)
        monkeypatch.setattr(preflight, "yarn", lambda said=said: SimpleNamespace(application=lambda _: said))
        assert preflight._are_started(spark, on_yarn) is started


def test_an_application_that_ends_before_executors_come_is_named(on_yarn: Settings) -> None:
    said = "AM Container exited\nDiagnostics: it failed\nExit code: 10\n\tat A.b(A.java)\nCaused by: X: c\n\nCaused by: Y: d\n"
    found = preflight.ended_early(on_yarn, an_application(state="FAILED", said=said))
    assert found.what.endswith("(FAILED): AM Container exited | Diagnostics: it failed | Caused by: Y: d")
    assert all(word in found.fix for word in ("SWITCHYARD_DRIVER_HOST", "a.example.com", "SWITCHYARD_STORE_URL"))


def test_what_keeps_spark_from_starting_on_yarn_is_named(on_yarn: Settings) -> None:
    rejected = an_application(state="FAILED", said="submitted by user ada to unknown queue: nowhere")
    found = elsewhere_module._refused(on_yarn, rejected, ValueError("failed to submit"))
    assert isinstance(found, ExecutorsUnfit)
    assert "unknown queue: nowhere" in found.what and "spark.yarn.queue in SWITCHYARD_SPARK" in found.fix
    own = elsewhere_module._refused(on_yarn, None, ValueError("no such property"))
    assert isinstance(own, ExecutorsUnfit) and own.what == "Spark can't start on YARN: no such property"
    # a JVM that has ended is not YARN's fault
    lost = ConnectionRefusedError()
    assert elsewhere_module._refused(on_yarn, None, lost) is lost


def test_a_driver_whose_application_is_killed_says_so(monkeypatch: pytest.MonkeyPatch, on_yarn: Settings) -> None:
    stopped = False
    context = SimpleNamespace(
        applicationId="application_1_0001", _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))
    )
    monkeypatch.setattr(elsewhere_module.SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(elsewhere_module, "ask", lambda name: an_application(state="KILLED", said="by root"))
    require_context(on_yarn, "sums.v1")
    stopped = True
    with pytest.raises(
        ExecutorsLost, match=r"application_1_0001, the application of sums\.v1 \(KILLED\): by root"
    ) as lost:
        require_context(on_yarn, "sums.v1")
    assert "switchyard start sums.v1 --execute" in lost.value.fix
    with pytest.raises(ExecutorsLost, match=r"spark://host:7077 has ended the application"):
        require_context(elsewhere(), "sums.v1")
