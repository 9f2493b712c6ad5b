from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestration import cli
from orchestration.local.running import drivers_of_embedded, end_all, processes_of, running_with, stop_drivers
from pipelines.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
WAIT = "import signal, time; print('ready', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(15, signal.SIG_IGN); {WAIT}"
DRIVER = ("-m", "pipelines.engine.start")
JVM = ("org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
WORKERS = ("-m", "pipelines.engine.python_daemon", "pyspark.worker")

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(*arguments, state=..., code=..., cwd=...)` starts a process that waits, and looks like one that runs these.

    `ready`: returns once it waits.
    """
    started: list[subprocess.Popen[bytes]] = []

    def begin(
        *arguments: str,
        state: Path | None,
        code: str = WAIT,
        cwd: Path = tmp_path,
        ready: bool = True,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_STATE")}
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code, *arguments],
            env={**env, **environment, **({} if state is None else {"SWITCHYARD_STATE_DIR": str(state)})},
            cwd=cwd,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        # the interpreter has replaced the test's own command by then
        assert not ready or process.stdout.readline() == b"ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def pids(state_dir: Path) -> set[int]:
    return {each.process.pid for each in running_with(state_dir)}


def test_drivers_commands_and_dagster_are_known_by_their_state_directory(start: Start, tmp_path: Path) -> None:
    state = tmp_path / ".switchyard"
    found = {
        start(*DRIVER, "stock-stats.v1", state=state).pid,
        start("-m", "orchestration.cli", "produce", state=state).pid,
        start("-m", "dagster", "dev", state=state).pid,
        # a run of Dagster's
        start("--multiprocessing-fork", state=state, DAGSTER_HOME=str(state / "dagster")).pid,
        # a terminal that says nothing about it: the settings' default, where it stands
        start("-m", "orchestration.cli", "follow", state=None).pid,
        start("-m", "orchestration.cli", "follow", state=Path(".switchyard")).pid,
    }
    start(*DRIVER, "stock-stats.v1", state=tmp_path / "other")
    start("-m", "orchestration.cli", "follow", state=None, cwd=ROOT)
    # neither an editor nor a shell is ours, whatever its command says
    start("dagster.log", "orchestration.cli", state=state)
    start("-m", "http.server", state=state)
    assert pids(state) == found


def test_the_processes_of_a_release_are_its_drivers_and_what_they_have_started(start: Start, tmp_path: Path) -> None:
    state, mine = tmp_path / ".switchyard", {"SWITCHYARD_RELEASE": "stock-stats.v1"}
    # one of them was killed, and its JVM is still there
    found = {
        start(*DRIVER, "stock-stats.v1", state=state).pid,
        start(*JVM, state=state, **mine).pid,
        start(*WORKERS, state=state, **mine).pid,
    }
    start(*DRIVER, "stock-stats.v10", state=state)
    start(*JVM, state=state, SWITCHYARD_RELEASE="stock-stats.v10")
    start(*JVM, state=tmp_path / "other", **mine)
    # someone has set the variable in a shell
    start("-m", "orchestration.cli", "produce", state=state, **mine)
    start(*DRIVER, "stock-stats.v2", state=state, **mine)
    start("-m", "orchestration.defs.guarded", "dev", state=state, **mine)
    assert {each.pid for each in processes_of("stock-stats.v1", state)} == found
    assert processes_of("stock-stats.v3", state) == []


def test_the_drivers_of_the_embedded_broker_are_named(start: Start, tmp_path: Path) -> None:
    for name in ("stock-stats.v2", "stock-stats.v1"):
        start(*DRIVER, name, state=tmp_path)
    start("-m", "dagster", "dev", state=tmp_path)
    start(*DRIVER, "word-count.v1", state=tmp_path, SWITCHYARD_BOOTSTRAP_SERVERS="elsewhere:9092")
    assert drivers_of_embedded(tmp_path) == ["stock-stats.v1", "stock-stats.v2"]


@pytest.mark.slow
def test_all_of_several_state_directories_ends_by_force_if_need_be(start: Start, tmp_path: Path) -> None:
    driver = start(*DRIVER, "stock-stats.v1", state=tmp_path)
    stubborn = start(*DRIVER, "stock-stats.v2", state=tmp_path / "demo", code=STUBBORN)
    other = start(*DRIVER, "stock-stats.v1", state=tmp_path / "other")
    ended = end_all([tmp_path, tmp_path / "demo"], wait_s=0.2)
    assert sorted(str(each) for each in ended) == [
        f"the driver of stock-stats.v1 (process {driver.pid})",
        f"the driver of stock-stats.v2 (process {stubborn.pid})",
    ]
    assert not pids(tmp_path) and not pids(tmp_path / "demo")
    assert other.poll() is None
    assert end_all([tmp_path]) == []


def test_drivers_stop_and_nothing_else_does(start: Start, tmp_path: Path) -> None:
    start(*DRIVER, "stock-stats.v1", state=tmp_path)
    others = [
        start("-m", "orchestration.cli", "supervise", state=tmp_path),
        start(*DRIVER, "stock-stats.v1", state=tmp_path / "other"),
    ]
    assert stop_drivers(tmp_path, within_s=60) == []
    assert pids(tmp_path) == {others[0].pid}
    assert [each.poll() for each in others] == [None, None]


def test_a_driver_that_starts_while_another_stops_is_told_too(start: Start, tmp_path: Path) -> None:
    # the first one ends once the second one is there
    waits = f"""import os, signal, sys, time
def stop(*_):
    while not os.path.exists({str(tmp_path / "second")!r}): time.sleep(0.01)
    sys.exit(0)
signal.signal(15, stop)
print('ready', flush=True)
time.sleep(600)"""
    start(*DRIVER, "stock-stats.v1", state=tmp_path, code=waits)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop_drivers, tmp_path, within_s=60)
        # it may be told before it has begun to wait
        second = start(*DRIVER, "stock-stats.v2", state=tmp_path, ready=False)
        # 0: the other thread was told of its end first
        assert second.wait(60) in (-signal.SIGTERM, 0)
        (tmp_path / "second").touch()
        assert stopping.result(60) == []
    assert not pids(tmp_path)


def test_a_driver_that_does_not_stop_in_time_is_named_and_left(start: Start, tmp_path: Path) -> None:
    stubborn = start(*DRIVER, "stock-stats.v1", state=tmp_path, code=STUBBORN)
    left = stop_drivers(tmp_path, within_s=0.2)
    assert [str(each) for each in left] == [f"the driver of stock-stats.v1 (process {stubborn.pid})"]
    assert stubborn.poll() is None


def test_what_they_have_started_has_ended_with_them(start: Start, tmp_path: Path) -> None:
    # as a JVM does: it goes on for a while without its driver, and writes
    lingering = "import sys, time; print('ready', flush=True); sys.stdin.read(); time.sleep(0.5); open('late', 'w')"
    code = f"""import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {lingering!r}], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)"""
    start(*DRIVER, "stock-stats.v1", state=tmp_path, code=code)
    end_all([tmp_path])
    assert (tmp_path / "late").exists()


@pytest.mark.slow
def test_make_clean_ends_what_was_started_by_hand_and_the_demo_s_before_it_deletes(
    start: Start, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (state / "checkpoints" / "stock-stats.v1").mkdir(parents=True)
    (state / "demo" / "checkpoints").mkdir(parents=True)
    by_hand = start(*DRIVER, "stock-stats.v1", state=state)
    of_the_demo = start(*DRIVER, "stock-stats.v2", state=state / "demo")
    env = {**os.environ, "SWITCHYARD_STATE_DIR": str(state), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), f"BIN={Path(sys.executable).parent}", "clean"],
        cwd=tmp_path, env=env, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"ended the driver of stock-stats.v1 (process {by_hand.pid})" in done.stdout
    assert f"ended the driver of stock-stats.v2 (process {of_the_demo.pid})" in done.stdout
    assert not (state / "checkpoints").exists() and not (state / "demo").exists()


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_down_names_the_drivers_that_it_leaves(
    start: Start, tmp_path: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["switchyard", "down", *(["--json"] if as_json else [])])
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path))
    start(*DRIVER, "stock-stats.v1", state=Settings().state_dir)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said) == {"stopped": False, "drivers": ["stock-stats.v1"]}
    else:
        assert "these drivers still run, without a broker: stock-stats.v1" in said and "switchyard up" in said
