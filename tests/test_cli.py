from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestration import cli
from orchestration.commands import GROUPS
from orchestration.commands.broker import _table, _tell_what_to_do
from orchestration.commands.release import _bar
from orchestration.operations.lifecycle import after_failure
from orchestration.operations.procedures.wait import Hydration
from orchestration.operations.supervising.overview import ReleaseStatus
from pipelines.errors import BadUsage, Cancelled, Refused, SwitchyardError, Unavailable
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Opened
from pipelines.model.progress import Heartbeat
from pipelines.settings import Settings, get_settings
from tests.operations.builders import release

HEAVY = ("pyspark", "dagster", "great_expectations", "pandas", "confluent_kafka")

SHOW_IMPORTS = """
import sys
from orchestration import cli
for command in {commands!r}:
    sys.argv = ["switchyard", *command.split()]
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    print("command", command, "exit", code or 0, "imported", sorted({heavy!r} & sys.modules.keys()))
"""


def imported_by(*commands: str) -> list[str]:
    """For each of these commands, one after the other in a process: its exit, and what it and those before have imported."""
    code = SHOW_IMPORTS.format(commands=commands, heavy=set(HEAVY))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("command ")]


@pytest.mark.slow
def test_help_imports_nothing_heavy() -> None:
    commands = ("--help", "--version", "up --help", "status --help")
    assert imported_by(*commands) == [f"command {command} exit 0 imported []" for command in commands]


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_who_is_ended_in_the_middle_closes_what_is_open_as_at_ctrl_c_and_says_so(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = list[str]()
    app = typer.Typer()

    @app.command()
    def reset(json: bool = False) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            closed.append("reset")
            raise

    monkeypatch.setattr(cli, "build", lambda: app)
    monkeypatch.setattr(sys, "argv", ["switchyard", *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert closed == ["reset"] and ended.value.code == 130
    said = capsys.readouterr()
    if arguments:
        assert json.loads(said.out) == Cancelled().as_json() and said.err == ""
    else:
        assert said.err.splitlines() == ["error: canceled", "  `switchyard operations` lists what is left to resume"]


ALL_THAT_IS_NEEDED = "exit 0 imported ['confluent_kafka']"


@pytest.mark.broker
def test_what_is_asked_at_night_imports_neither_spark_nor_dagster(
    broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in broker.environment().items():
        monkeypatch.setenv(name, value)
    commands = ("status", "status --json", "log", "operations")
    assert imported_by(*commands) == [f"command {command} {ALL_THAT_IS_NEEDED}" for command in commands]


@pytest.mark.broker
@pytest.mark.parametrize("command", ["status", "log"])
def test_what_is_asked_at_night_ends_what_is_past_its_deadline(
    command: str, broker: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in broker.environment().items():
        monkeypatch.setenv(name, value)
    late = Opened(id=f"promote-{uuid.uuid4().hex[:8]}", name="promote", releases=("sums.v2",), deadline_ms=1)
    with Registry(broker) as registry:
        registry.step(lambda _: [late])
        assert imported_by(command) == [f"command {command} {ALL_THAT_IS_NEEDED}"]
        closed = registry.state().operations[late.id].closed
        assert closed is not None and closed.outcome == "expired"
        ended = len([*registry.history()])
        get_settings.cache_clear()
        assert run([command], monkeypatch) == 0
        assert len([*registry.history()]) == ended


OF_EACH_GROUP = (
    "produce no-such-app --rate 1",
    "start no-such.v1",
    "promote no-such-app",
    "reset no-such.v1 --to-earliest",
    "follow no-such-app",
    "status no-such-app",
)


@pytest.fixture(scope="module")
def ended(
    broker: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, subprocess.CompletedProcess[str]]]:
    """A command of each group, each run as a process, all of them side by side."""
    folder = tmp_path_factory.mktemp("commands")
    with ExitStack() as stack:
        started = {
            command: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "orchestration.cli", *command.split()],
                    env=broker.child_environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                )
            )
            for command in OF_EACH_GROUP
        }  # fmt: skip
        said = {command: each.communicate() for command, each in started.items()}
        yield {
            command: subprocess.CompletedProcess(each.args, each.returncode, *said[command])
            for command, each in started.items()
        }


@pytest.mark.broker
@pytest.mark.parametrize("command", OF_EACH_GROUP)
def test_a_command_of_each_group_as_a_process(command: str, ended: dict[str, subprocess.CompletedProcess[str]]) -> None:
    """As a user has it; other tests run commands in their own process."""
    done = ended[command]
    assert done.returncode == 2 and done.stderr.startswith("error: "), done.stderr
    assert "no-such" in done.stderr and "Traceback" not in done.stderr and not done.stdout


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["switchyard", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [(SwitchyardError("w", "f"), 1), (BadUsage("w", "f"), 2), (Refused("w", "f"), 3), (Unavailable("w", "f"), 1)],
)
def test_an_error_is_two_lines_and_an_exit_code(
    error: SwitchyardError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("orchestration.commands.broker.load_settings", fail)
    assert run(["down"], monkeypatch) == code
    assert capsys.readouterr().err == "error: w\n  f\n"


def test_an_unknown_command_or_option_is_bad_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["no-such-command"], monkeypatch) == 2
    assert run(["up", "--no-such-option"], monkeypatch) == 2


@pytest.mark.parametrize(
    ("command", "error", "fix"),
    [
        ("reset sums.v1", "a reset needs a position", "--to-earliest"),
        ("reset", "Missing argument 'RELEASE'", "`switchyard reset --help`"),
        ("promote sums --no-such-option", "No such option: --no-such-option", "`switchyard promote --help`"),
        ("wait sums.v1 --unread many", "Invalid value for '--unread'", "`switchyard wait --help`"),
        ("no-such-command", "No such command 'no-such-command'", "`switchyard --help`"),
    ],
)
def test_bad_usage_with_json_is_json(
    command: str, error: str, fix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), "--json"], monkeypatch) == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert error in found["error"] and fix in found["fix"] and found["exit_code"] == 2 and said.err == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_refusal_with_json_is_json_and_in_a_log_of_json_lines_too(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise Refused("w", "f")

    monkeypatch.setenv("SWITCHYARD_LOG_FORMAT", form)
    monkeypatch.setattr("orchestration.commands.switch.load_settings", refuse)
    assert run(["rollback", "sums", "--json", "--execute"], monkeypatch) == 3
    said = capsys.readouterr()
    assert json.loads(said.out) == {"error": "w", "fix": "f", "exit_code": 3, "retryable": False}
    assert [json.loads(line)["message"] for line in said.err.splitlines()] == (["w\nf"] if form == "json" else [])


def test_json_after_two_dashes_is_an_argument(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reset", "--", "--json"], monkeypatch) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: a reset needs a position")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["log"], ["rollback", "sums"], ["stage", "sums"], ["follow", "sums"]])
def test_with_json_a_broker_that_does_not_answer_is_json(
    command: list[str], without_a_broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_REQUEST_TIMEOUT_S", "0.5")
    assert run([*command, "--json"], monkeypatch) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert without_a_broker in found["error"] and "`switchyard up`" in found["fix"] and found["retryable"]
    assert said.err == ""


def test_samples_are_few_enough_for_the_registry(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diff", "stock-stats.v2", "--samples", "1001"], monkeypatch) == 2
    assert "--samples" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["produce", "stock-stats", "--rate", "1"]])
def test_a_wrong_setting_is_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_BROKER_PORT", "many")
    assert run(command, monkeypatch) == 2
    said = capsys.readouterr().err
    assert "broker_port" in said
    assert "SWITCHYARD_<NAME>" in said


def test_with_an_existing_cluster_there_is_nothing_to_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_BOOTSTRAP_SERVERS", "localhost:1")
    assert run(["down"], monkeypatch) == 0
    assert "nothing to stop" in capsys.readouterr().out


@pytest.mark.slow
def test_an_existing_cluster_that_does_not_answer_is_an_error(
    silent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_BOOTSTRAP_SERVERS", silent)
    monkeypatch.setenv("SWITCHYARD_REQUEST_TIMEOUT_S", "0.5")
    for command in ("up", "status"):
        assert run([command], monkeypatch) == 1
        assert f"no Kafka broker answers at {silent}" in capsys.readouterr().err


@pytest.fixture
def without_a_broker(silent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address at which the settings expect the embedded broker, where none is."""
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("SWITCHYARD_BROKER_PORT", silent.rpartition(":")[2])
    return silent


def test_without_a_broker_the_releases_are_unknown_not_none(
    without_a_broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status"], monkeypatch) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "state down: `switchyard up`" in said
    assert "releases unknown, because the broker does not answer" in said
    assert "no release is staged" not in said

    assert run(["status", "--json"], monkeypatch) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["answering"] is False and found["releases"] is None


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_without_a_broker_nothing_is_said_of_a_release(
    options: list[str], without_a_broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", "stock-stats", *options], monkeypatch) == 1
    said = capsys.readouterr()
    assert said.err == f"error: no Kafka broker answers at {without_a_broker}\n  start it with `switchyard up`\n"
    assert said.out == "" if not options else json.loads(said.out)["releases"] is None


def test_waiting_says_what_a_driver_is_in_trouble_with_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = Hydration(
        release="sums.v1", position_records=0, total_records=9, records_per_s=0, unread_records=9, eta_s=None,
        done=False, error="batch 0 failed: division by zero",
    )  # fmt: skip
    with _bar(as_json=False) as update:
        update(found)
        update(found)
    said = capsys.readouterr().err.splitlines()
    assert said == ["  sums.v1: batch 0 failed: division by zero", "  sums.v1: 0 of 9 records"]


def test_a_wait_before_the_first_batch_is_explained_once_while_live_input_grows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    starting = Hydration(
        release="sums.v1", position_records=0, total_records=9, records_per_s=0, unread_records=9, eta_s=None,
        done=False, busy="its driver is starting",
    )  # fmt: skip
    with _bar(as_json=False) as update:
        for number in range(10):
            update(replace(starting, total_records=9 + number))
            now_s += 5
        update(replace(starting, busy="its first batch is under way"))
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "  sums.v1: 0 of 9 records, its driver is starting",
        "  sums.v1: 0 of 9 records, its first batch is under way",
    ]


def test_a_line_of_progress_is_not_repeated_while_nothing_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    waiting = Hydration(
        release="sums.v1", position_records=9, total_records=9, records_per_s=3, unread_records=0, eta_s=0, done=True
    )

    def said(found: Hydration, after_s: float) -> list[str]:
        nonlocal now_s
        now_s += after_s
        update(found)
        return capsys.readouterr().err.splitlines()

    with _bar(as_json=False) as update:
        assert said(waiting, 0) == ["  sums.v1: 9 of 9 records, 3/s, 0 s left"]
        assert said(waiting, 5) == []
        more = replace(waiting, position_records=10, total_records=10)
        assert said(more, 1) == ["  sums.v1: 10 of 10 records, 3/s, 0 s left"]
        assert said(waiting, 1) == []
        # it still waits
        assert said(more, 61) == ["  sums.v1: 10 of 10 records, 3/s, 0 s left"]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_who_stops_waiting_is_told_that_the_release_is_not_stopped(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: None)
    monkeypatch.setattr("orchestration.operations.procedures.wait.wait_ready", interrupted)
    assert run(["wait", "sums.v1", *options], monkeypatch) == 130
    said = capsys.readouterr()
    what = "canceled: only the waiting has ended, sums.v1 is not stopped"
    fix = "`switchyard wait sums.v1` waits again; `switchyard status sums.v1` shows how it is; `switchyard stop sums.v1 --execute` stops it"
    if options:
        assert (json.loads(said.out)["error"], json.loads(said.out)["fix"]) == (what, fix)
    else:
        assert said.err.splitlines() == [f"error: {what}", f"  {fix}"]


def test_who_cancels_a_reprocess_is_told_what_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestration.operations.context.open_context", lambda *_, **__: None)
    monkeypatch.setattr("orchestration.operations.procedures.reprocess.reprocess", interrupted)
    assert run(["reprocess", "sums", "--execute"], monkeypatch) == 130
    assert capsys.readouterr().err.splitlines() == [
        "error: canceled: what was done before stays, and a release that was started keeps running",
        "  `switchyard status sums` lists the releases; to go on with one, type the same command with --version; `switchyard stop RELEASE --execute` stops one; `switchyard operations` lists what is left to resume",
    ]


def test_a_release_without_a_batch_shows_no_number_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(batch_id: int) -> str:
        beat = Heartbeat(
            release="sums.v1", generation=1, token=1, host="h", pid=1, at_ms=1, state="running", batch_id=batch_id
        )
        _table([ReleaseStatus(release=release("sums.v1"), beat=beat, holder="someone", live=False)])
        [row] = [line for line in capsys.readouterr().out.splitlines() if "sums.v1" in line]
        return row.split("│")[4].strip()

    assert (shown(-1), shown(0)) == ("", "0")


def test_help_shows_each_command_in_one_group_and_first_what_says_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    commands: Any = typer.main.get_command(cli.build())
    assert sorted(commands.commands) == sorted(name for names in GROUPS.values() for name in names)
    assert cli.run(["--help"]) == 0
    said = capsys.readouterr().out
    places = [said.index(f" {title} ") for title in ("See what runs", "Release a version", "Go back, reset, repair")]
    assert places == sorted(places) and places[0] < said.index(" status ") < places[1] < said.index(" reprocess ")


@pytest.mark.parametrize("supervised", [False, True])
def test_status_says_how_a_release_that_is_down_gets_a_driver(
    supervised: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestration.local.presence.is_supervised", lambda _: supervised)
    beat = Heartbeat(release="sums.v1", generation=1, token=1, host="h", pid=1, at_ms=0, state="running")
    down = ReleaseStatus(release=release("sums.v1", wanted="running"), beat=beat, holder=None, live=True)
    runs = replace(down, holder="someone")
    stopped = replace(down, release=release("sums.v1", wanted="stopped"))
    _tell_what_to_do(Settings(), [down, runs, stopped])
    way = (
        "a supervisor of this host starts one; if it doesn't, `switchyard start sums.v1 --execute` says why"
        if supervised
        else "`switchyard start sums.v1 --execute` starts one; `switchyard supervise` does so by itself"
    )
    assert capsys.readouterr().out == f"sums.v1: no driver runs it since 1970-01-01 00:00:00 UTC; {way}\n"


def test_status_says_what_to_do_about_a_failed_release_unless_what_is_lost_says_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = release("sums.v1", state="failed", failure="batch 8: no count")
    status = ReleaseStatus(release=failed, beat=None, holder=None, live=True, notes=("batch 8: no count",))
    _tell_what_to_do(Settings(), [status])
    assert capsys.readouterr().out == f"sums.v1: {after_failure(failed)}\n"
    _tell_what_to_do(Settings(), [replace(status, lost=True)])
    assert capsys.readouterr().out == ""
