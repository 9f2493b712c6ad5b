"""`switchyard follow`, and a follower process that is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestration.commands import follow
from pipelines.errors import BadUsage, Unavailable
from pipelines.follow import LiveConsumer
from pipelines.follow.moves import FollowerPosition
from pipelines.settings import Settings, get_settings
from tests.follow.cluster import Cluster

pytestmark = pytest.mark.broker

# appends each record with the position after it in one write: effect and position together, or neither
KEEPER = """
import json, sys
from pathlib import Path
from pipelines.follow import LiveConsumer

alias, path = sys.argv[1], Path(sys.argv[2])
lines = path.read_text().splitlines(keepends=True) if path.exists() else []
whole = [line for line in lines if line.endswith("\\n")]
path.write_text("".join(whole))
stored = json.loads(whole[-1])["position"] if whole else None
with LiveConsumer(alias, group=f"{alias}-keeper", start=stored, earliest=True) as consumer, path.open("a") as out:
    for record in consumer:
        out.write(json.dumps({"key": record.key.decode(), "position": record.position.model_dump()}) + "\\n")
        out.flush()
"""


@pytest.fixture
def cluster(broker: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in broker.environment().items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    made = Cluster(broker)
    yield made
    made.close()


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.callback()(lambda: None)
    follow.register(made)
    return made


def test_it_prints_records_as_json_and_goes_on_where_its_group_was(cluster: Cluster, app: typer.Typer) -> None:
    v1, v2 = cluster.first(), cluster.release(2)
    v1.batch([(0, "a", '{"n": 1}'), (0, "b", None), (0, "c", "x")])
    command = ["follow", cluster.alias, "--group", f"{cluster.alias}-cli", "--json"]
    first = CliRunner().invoke(app, [*command, "--max-records", "2"], catch_exceptions=False)
    assert first.exit_code == 0
    found = [json.loads(line) for line in first.stdout.splitlines()]
    assert [(r["key"], r["value"], r["switch"], r["release"]) for r in found] == [
        ("a", '{"n": 1}', 1, v1.name),
        ("b", None, 1, v1.name),
    ]
    cluster.switch(v1, v2, (cluster.delta([("c", "y")]),))
    v2.batch([(1, "d", "z")])
    second = CliRunner().invoke(app, [*command, "--idle-exit", "2s"], catch_exceptions=False)
    found = [json.loads(line) for line in second.stdout.splitlines()]
    assert [(r["key"], r["phase"], r["switch"]) for r in found] == [
        ("c", "result", 1),
        ("c", "delta", 2),
        ("d", "result", 2),
    ]
    assert cluster.state.followers[cluster.alias] == (f"{cluster.alias}-cli",)


def test_without_a_group_nothing_is_kept(cluster: Cluster, app: typer.Typer) -> None:
    cluster.first().batch([(0, "a", "1"), (0, "b", None)])
    for _ in range(2):
        done = CliRunner().invoke(app, ["follow", cluster.alias, "--max-records", "2"], catch_exceptions=False)
        assert [line.split("\t")[1] for line in done.stdout.splitlines()] == ["1", "(gone)"]
    assert cluster.alias not in cluster.state.followers


def test_an_unknown_alias(cluster: Cluster, app: typer.Typer) -> None:
    with pytest.raises(BadUsage, match="nope has no release"):
        CliRunner().invoke(app, ["follow", "nope"], catch_exceptions=False)


@pytest.mark.long
def test_killed_again_and_again_it_keeps_every_record_once(cluster: Cluster, tmp_path: Path) -> None:
    luck = random.Random(5)
    script, out = tmp_path / "keeper.py", tmp_path / "kept.jsonl"
    script.write_text(KEEPER)
    live, new = cluster.first(), cluster.release(2)
    expected = 0

    def kept() -> list[str]:
        lines = out.read_text().splitlines(keepends=True) if out.exists() else []
        return [json.loads(line)["key"] for line in lines if line.endswith("\n")]

    def keeps(count: int) -> None:
        """Waits until so many are kept: who never got so far would be killed with nothing under way."""
        deadline = time.monotonic() + 60
        while len(kept()) < count:
            assert time.monotonic() < deadline, f"{len(kept())} of {count} kept"
            time.sleep(0.01)

    def run() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return subprocess.Popen([sys.executable, str(script), cluster.alias, str(out)], env=environment)

    process = run()
    try:
        for number in range(12):
            rows = [(n % 2, f"{n}", "v") for n in range(expected, expected + 200)]
            expected += 200
            if number % 3 == 2:
                op = cluster.intend(live, new, rows)
                new.batch(rows)
                cluster.promote(op, live, new, new.result)
                live, new = new, live
            else:
                live.batch(rows)
                new.batch(rows)
            if number % 2:
                keeps(expected - luck.randint(1, 600))
                process.kill()
                assert process.wait() == -signal.SIGKILL, "it had ended before"
                process = run()
        keeps(expected)
    finally:
        process.kill()
        process.wait()
    assert sorted(map(int, kept())) == list(range(expected))


def test_it_goes_on_when_a_commit_fails_for_now(
    cluster: Cluster, app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    v1 = cluster.first()
    v1.batch([(0, "a", "1"), (0, "b", "2")])
    commit, failed = LiveConsumer.commit, list[int]()

    def fails_first(self: LiveConsumer, position: FollowerPosition | None = None) -> None:
        if not failed:
            failed.append(1)
            raise Unavailable("Kafka refuses for now")
        commit(self, position)

    monkeypatch.setattr(LiveConsumer, "commit", fails_first)
    monkeypatch.setattr(follow, "_COMMIT_S", 0.0)
    command = ["follow", cluster.alias, "--group", f"{cluster.alias}-cli", "--max-records", "2"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0 and failed and len(done.stdout.splitlines()) == 2
