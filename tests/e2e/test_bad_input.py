"""Bad input at the terminal: a clear error, an exit code other than 0, nothing half done, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.operations.planning.stage import plan_stage
from orchestration.sources import Options, produce, source_for
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.kafka.client import producer
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.topics import INPUT, ensure_topic
from tests.e2e.cluster import Cluster
from tests.shared.login import login_port, with_login
from tests.shared.ports import port_of
from tests.shared.terminal import Said, Terminal
from tests.shared.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark]

# for addresses where nobody answers
IMPATIENT = {"SWITCHYARD_REQUEST_TIMEOUT_S": "0.3"}
# for calls that wait for an answer that never comes
ONCE = {"SWITCHYARD_REQUEST_TIMEOUT_S": "1.5"}


@pytest.fixture
def unchanged(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster. Its topics and its registry must be unchanged afterwards."""
    before = cluster.world()
    yield cluster
    assert cluster.world() == before


def refused(said: Said, code: int, *words: str) -> None:
    """Asserts that it ended with `code`, printed `error: ...` with these words, and said what to do."""
    assert said.code == code, said.text
    shown = " ".join(said.err.split())
    for word in words:
        assert word in shown, said.err
    if "Usage:" not in said.err:
        what, _, fix = said.err[said.err.index("error: ") :].partition("\n")
        assert len(what) > 15
        assert fix.strip(), f"nothing says what to do: {what}"


# -- names and options


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("stage no-such-app", 2, ["no app no-such-app in ", "stock-stats"]),
        ("stage stock-stats --version 0", 2, ["version 0"]),
        ("stage stock-stats --from no-such-folder", 2, ["no code folder"]),
        ("stage stock-stats --set window_s", 2, ["window_s", "KEY=VALUE"]),
        ("stage stock-stats --set a=1 --set a=2", 2, ["is given twice"]),
        ("start no-such.v1 --execute", 2, ["no release no-such.v1"]),
        ("start no-such-app --execute", 2, ["no-such-app has no release"]),
        ("stop no-such.v1 --execute", 2, ["no release no-such.v1"]),
        ("wait no-such.v1", 2, ["no release no-such.v1"]),
        ("diff no-such.v1", 2, ["no release no-such.v1"]),
        ("check no-such.v1", 2, ["no release no-such.v1"]),
        ("retire no-such.v1 --execute", 2, ["no release no-such.v1"]),
        ("promote no-such-app --execute", 2, ["no-such-app"]),
        ("promote no-such-app --version 9 --execute", 2, ["no release no-such-app.v9"]),
        ("rollback no-such-app --execute", 2, ["no-such-app has no release"]),
        ("abort no-such-app --execute", 2, ["no-such-app"]),
        ("status no-such-app", 2, ["no release or app no-such-app"]),
        ("log no-such-app", 2, ["no-such-app"]),
        ("follow no-such-app", 2, ["no-such-app has no release"]),
        ("produce no-such-app --rate 1", 2, ["no-such-app", "stock-stats"]),
        ("produce stock-stats", 2, ["nothing to produce", "--rate"]),
        ("produce stock-stats --rate 1 --late 2", 2, ["--late"]),
        ("resume no-such-operation", 2, ["no-such-operation", "switchyard operations"]),
        ("abandon no-such-operation", 2, ["no-such-operation", "switchyard operations"]),
        ("forget-follower no-such-app nobody", 2, ["has no follower nobody"]),
        ("register-follower no-such-app somebody", 2, ["no-such-app has no release"]),
        ("no-such-command", 2, ["No such command"]),
        ("stage stock-stats --no-such-option", 2, ["No such option"]),
        ("wait no-such.v1 --unread -1", 2, ["--unread"]),
        ("promote no-such-app --max-changed 2", 2, ["--max-changed"]),
        ("diff no-such.v1 --samples 1001", 2, ["--samples"]),
    ],
)
def test_what_is_unknown_is_named_with_what_there_is(
    unchanged: Cluster, command: str, code: int, words: list[str]
) -> None:
    refused(unchanged.cli(*command.split()), code, *words)


@pytest.mark.parametrize(
    "command",
    [
        "wait no-such.v1 --for soon",
        "wait no-such.v1 --timeout 5w",
        "stop no-such.v1 --timeout -5s",
        "retire no-such.v1 --after 1h30m",
        "promote no-such-app --max-evidence-age old",
        "promote no-such-app --watch long --execute",
    ],
)
def test_a_bad_duration_is_said_before_anything_is_done(unchanged: Cluster, command: str) -> None:
    refused(unchanged.cli(*command.split()), 2, "is not a duration", "like 10s, 5m or 24h")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SWITCHYARD_BROKER_PORT", "many"),
        ("SWITCHYARD_REQUEST_TIMEOUT_S", "0"),
        ("SWITCHYARD_KAFKA", "no JSON"),
        ("SWITCHYARD_KAFKA", '{"acks": "0"}'),
    ],
)
def test_a_wrong_setting_is_named(unchanged: Cluster, name: str, value: str) -> None:
    setting: dict[str, Any] = {name: value}
    said = unchanged.cli("status", **setting)
    refused(said, 2, name.removeprefix("SWITCHYARD_").lower())


def test_a_wrong_line_of_the_settings_file_is_named(unchanged: Cluster) -> None:
    path = unchanged.folder / "switchyard.toml"
    try:
        path.write_text("no_such_setting = 1\n")
        refused(unchanged.cli("status"), 2, "no_such_setting")
        path.write_text("state_dir = \n")
        refused(unchanged.cli("status"), 2, "switchyard.toml")
    finally:
        path.unlink()


# -- the broker


@pytest.mark.parametrize(
    "command", ["stage stock-stats", "promote stock-stats", "status stock-stats", "log", "operations", "follow stock-stats", "produce stock-stats --rate 1"]
)  # fmt: skip
def test_without_a_broker_every_command_says_how_to_start_it(cluster: Cluster, command: str) -> None:
    said = cluster.cli(*command.split(), SWITCHYARD_BROKER_PORT=str(port_of("nobody")), **IMPATIENT)
    refused(said, 1, f"no Kafka broker answers at 127.0.0.1:{port_of('nobody')}", "switchyard up")


def test_without_a_broker_the_status_knows_of_no_release(cluster: Cluster) -> None:
    said = cluster.cli("status", SWITCHYARD_BROKER_PORT=str(port_of("nobody")), **IMPATIENT)
    assert said.code == 1
    assert "unknown, because the broker does not answer" in said.out and "no release is staged" not in said.text


@pytest.mark.parametrize("where", ["no-such-host.invalid:9092", f"127.0.0.1:{port_of('nobody')}"], ids=["name", "port"])
def test_a_cluster_that_is_not_reachable_is_named_with_the_setting(cluster: Cluster, where: str) -> None:
    said = cluster.cli("log", SWITCHYARD_BOOTSTRAP_SERVERS=where, **IMPATIENT)
    refused(said, 1, f"no Kafka broker answers at {where}", "SWITCHYARD_BOOTSTRAP_SERVERS")


@pytest.mark.timeout(120)  # it would wait an hour if it waited as long as it may
def test_a_wrong_login_is_said_soon_and_names_the_settings(cluster: Cluster) -> None:
    given = {**with_login(cluster.settings, "wrong").environment(), "SWITCHYARD_REQUEST_TIMEOUT_S": "3600"}
    for command in ("log", "stage large-orders"):
        said = cluster.cli(*command.split(), **given)
        refused(said, 1, f"{login_port()} refuses the login", "sasl.password")
        assert "wrong" not in said.text.replace("is wrong", ""), "a password is for nobody's eyes"


def test_no_login_where_one_is_asked_for_is_no_traceback(cluster: Cluster) -> None:
    given = {**with_login(cluster.settings, "right").environment(), "SWITCHYARD_KAFKA": "{}", **ONCE}
    said = cluster.cli("log", **given)
    refused(said, 1, f"{login_port()} accepts connections and drops them", "security.protocol")


def test_the_right_login_serves_the_terminal_and_the_driver(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    guarded = with_login(cluster.settings, "right")
    produce(guarded, source_for("large-orders", Options(seed=1)), history=500)
    drivers = Threads(guarded)
    terminal = Terminal(guarded, tmp_path, drivers, lambda: spark)
    for command in ("stage large-orders --execute", "start large-orders.v1 --execute"):
        said = terminal.run(*command.split())
        assert said.code == 0, said.text
    try:
        said = terminal.run("wait", "large-orders.v1", "--for", "100ms", "--json")
        assert said.code == 0, said.text
        assert json.loads(said.out)["records"] == 500
    finally:
        said = terminal.run("stop", "large-orders.v1", "--execute")
        drivers.end()
    assert said.code == 0, said.text


# -- an app's code

APP = """
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app


@app(
    name="odd",
    inputs={{"trades": Stream(topic="{topic}", key="ticker string", value=Json("price double"))}},
    result=AppendStream(key=("ticker",), partitions=1),
    settings={{"over": 5}},{more}
)
def odd(trades: DataFrame, settings: AppSettings) -> DataFrame:
    {body}
"""


def write_app(folder: Path, body: str, *, topic: str = "odd-input", more: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "odd.py").write_text(APP.format(body=body, topic=topic, more=more))
    return folder


@pytest.fixture
def odd_input(cluster: Cluster) -> None:
    ensure_topic(cluster.settings, "odd-input", 1, INPUT)


# no Spark session is started for these
@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("def broken(:", 2, ["odd.py, line 1"]),
        ("import datetime", 3, ["imports datetime", "event_time"]),
        ("from pipelines.kafka.client import admin", 3, ["imports pipelines.kafka.client", "leading dot"]),
        ("1 / 0", 2, ["can't be imported: ZeroDivisionError"]),
        ("", 2, ["no app odd in ", "none"]),
    ],
)
def test_a_module_that_can_not_be_frozen_is_found_at_staging(
    unchanged: Cluster, tmp_path: Path, source: str, code: int, words: list[str]
) -> None:
    (tmp_path / "odd.py").write_text(source + "\n")
    refused(unchanged.cli("stage", "odd", "--from", tmp_path, "--execute"), code, *words)


def test_a_folder_without_python_is_said(unchanged: Cluster, tmp_path: Path) -> None:
    refused(unchanged.cli("stage", "odd", "--from", tmp_path), 2, "has no Python module")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (
            {"body": 'raise KeyError("prices")'},
            2,
            ["the function of app odd raises: KeyError: 'prices' (odd.py, line"],
        ),
        ({"body": 'return trades.select("ticker", F.rand().alias("r"))'}, 3, ["is not deterministic"]),
        (
            {"body": 'raise KeyError("prices")', "topic": "nowhere"},
            2,
            ["topic nowhere does not exist", "--topic nowhere"],
        ),
    ],
    ids=["raises", "random", "no-topic"],
)
@pytest.mark.usefixtures("odd_input")
def test_a_function_that_can_not_run_is_found_at_staging(
    cluster: Cluster, tmp_path: Path, given: dict[str, Any], code: int, words: list[str]
) -> None:
    before = cluster.world()
    refused(cluster.cli("stage", "odd", "--from", write_app(tmp_path / "code", **given), "--execute"), code, *words)
    assert cluster.world() == before


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        # found before a session is needed
        ({"under": "5"}, BadUsage, "has no setting under"),
        ({}, Refused, "is not deterministic"),
    ],
    ids=["setting", "random"],
)
@pytest.mark.usefixtures("odd_input")
def test_what_a_trial_in_its_own_process_finds_is_raised_here(
    cluster: Cluster, tmp_path: Path, settings: dict[str, Any], kind: type[SwitchyardError], words: str
) -> None:
    """The way a user has it: an app is tried in an interpreter of its own, which starts a JVM of its own."""
    code = write_app(tmp_path / "code", 'return trades.select("ticker", F.rand().alias("r"))')
    with pytest.raises(kind, match=words):
        plan_stage(cluster.context(), "odd", code_dir=code, settings=settings)


@pytest.mark.parametrize(
    ("setting", "words"),
    [("under=5", ["app odd has no setting under", "it has over"]), ("over=much", ["setting over of odd is int"])],
)
@pytest.mark.usefixtures("odd_input")
def test_a_setting_that_the_app_does_not_have_or_take_is_said(
    unchanged: Cluster, tmp_path: Path, setting: str, words: list[str]
) -> None:
    code = write_app(tmp_path / "code", 'return trades.select("ticker", "price")')
    refused(unchanged.cli("stage", "odd", "--from", code, "--set", setting, "--execute"), 2, *words)


@pytest.mark.usefixtures("odd_input")
def test_a_release_is_staged_once_and_unchanged_code_only_with_a_reason(cluster: Cluster, tmp_path: Path) -> None:
    code = write_app(tmp_path / "code", 'return trades.where("price > 0").select("ticker", "price")')
    stage = ("stage", "odd", "--from", code)

    before = cluster.world()
    said = cluster.cli(*stage)
    assert said.code == 0, said.text
    assert "nothing is changed; add --execute" in said.out
    assert cluster.world() == before

    assert cluster.cli(*stage, "--execute").code == 0
    staged = cluster.world()
    assert {"odd.v1.g1", "odd.v1.progress", "odd.v1.dead-letters"} <= staged[0] - before[0]

    refused(cluster.cli(*stage, "--version", 1, "--execute"), 3, "odd.v1 is already staged")
    refused(cluster.cli(*stage, "--execute"), 3, "same code, same settings", "--correction")
    # --same-as takes the frozen code, whatever is in the folder now
    digest = cluster.state.releases["odd.v1"].spec.code_digest
    write_app(code, 'return trades.where("price > 1").select("ticker", "price")')
    said = cluster.cli("stage", "odd", "--same-as", "odd.v1", "--correction", "late data", "--json")
    assert said.code == 0, said.text
    plan = json.loads(said.out)
    assert plan["executed"] is False and plan["releases"] == ["odd.v2"]
    assert plan["undo"] == "switchyard retire odd.v2 --after 0s --execute"
    assert plan["facts"]["code"] == f"{digest[:12]} from odd.v1"
    assert plan["facts"]["change"] == "code and settings as in odd.v1"
    for command in ("start odd", "stop odd", "retire odd --after 0s", "reprocess odd --version 1"):
        said = cluster.cli(*command.split())
        assert said.code == 0, said.text
        assert "nothing is changed; add --execute" in said.out
    assert "start the driver of odd.v1" in said.out and "then: wait, diff, check" in said.out
    # the staged release has other code than the folder and lacks this setting: it must not be resumed silently
    again = ("reprocess", "odd", "--version", 1)
    for more in ([], ["--execute"]):
        refused(
            cluster.cli(*again, "--from", code, *more),
            3,
            "odd.v1 is already staged",
            f"its code is {digest[:12]}, not",
        )
        refused(cluster.cli(*again, "--set", "over=6", *more), 3, "its over is 5, not 6", "another --version")
    refused(cluster.cli("promote", "odd", "--execute"), 3, "hasn't caught up", "its state is staged", "isn't running")
    refused(cluster.cli("retire", "odd", "--execute"), 3, "--after")
    refused(cluster.cli("follow", "odd"), 1, "has no live release yet", "switchyard promote odd")
    assert cluster.world() == staged


@pytest.mark.usefixtures("odd_input")
def test_a_batch_that_fails_names_release_batch_range_and_cause(cluster: Cluster, tmp_path: Path) -> None:
    body = (
        'return trades.select("ticker", F.when(F.col("price") < 0, F.raise_error(F.lit("a price below zero")))'
        '.otherwise(F.col("price")).alias("price"))'
    )
    code = write_app(tmp_path / "code", body)
    said = cluster.cli("stage", "odd", "--version", 7, "--from", code, "--execute")
    assert said.code == 0, said.text
    assert cluster.cli("start", "odd.v7", "--execute").code == 0
    # batch 0 reads the empty topic; the next one starts at its end
    cluster.until("it has not begun", lambda: newest_progress(cluster.settings, "odd.v7") is not None)
    client = producer(cluster.settings)
    for price in (1, 2, -3):
        client.produce("odd-input", json.dumps({"price": price}), "IBM")
    client.flush(10)
    # it fails by itself after three tries
    cluster.until("it has not failed", lambda: cluster.state.releases["odd.v7"].state == "failed")
    said = cluster.cli("wait", "odd.v7")
    refused(said, 1, "odd.v7 failed: batch 1 (odd-input[0] 0-2)", "a price below zero")
    assert len(said.err.splitlines()) < 12, "the first lines of the cause, not all of it"
    said = cluster.cli("status", "odd.v7")
    assert "failed" in said.out and "a price below zero" in said.out
    assert not cluster.last_offsets("odd.v7"), "nothing of the batch may be there"
    # a new start begins again, and never resumes from its own bad state
    said = cluster.cli("start", "odd.v7")
    assert "start generation 2 of odd.v7 with an empty state" in said.out
    cluster.cli("start", "odd.v7", "--execute")
    cluster.until("it has not failed again", lambda: cluster.state.releases["odd.v7"].state == "failed")
    release = cluster.state.releases["odd.v7"]
    assert release.generation == 2 and "batch 0 (odd-input[0] 0-2)" in str(release.failure)


@pytest.mark.usefixtures("odd_input")
def test_an_app_that_says_so_is_never_reset(cluster: Cluster, tmp_path: Path) -> None:
    body = 'return trades.where("price > 7").select("ticker", "price")'
    code = write_app(tmp_path / "code", body, more="\n    reset_allowed=False,")
    said = cluster.cli("stage", "odd", "--from", code, "--json", "--execute")
    assert said.code == 0, said.text
    [name] = json.loads(said.out)["releases"]
    before = cluster.world()
    for more in ([], ["--force", "--execute"]):
        refused(
            cluster.cli("reset", name, "--to-earliest", *more),
            3,
            "odd does not allow a reset",
            "`switchyard reprocess odd [--from FOLDER]`",
        )
    assert cluster.world() == before
