"""A second version whose definition differs, through a consumer across the switch: columns, types, partitions, key, window, topic.

The tests are one story: each version is live after its test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.diff import diff
from orchestration.sources import Faults, Options, Source, source_for
from orchestration.sources.trades import DenseTrades
from pipelines.errors import Refused
from pipelines.kafka.offsets import end_offsets
from tests.e2e.cluster import LARGE, Cluster, Follower, folded

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

APP = "seen"
CODE = """
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppSettings, Json, Stream, Table, app


@app(
    name="seen",
    inputs={"trades": Stream(topic=TOPIC, key="ticker string", value=Json("side string NOT NULL, price double NOT NULL"))},
    result=Table(key=KEY, partitions=PARTITIONS),
)
def seen(trades: DataFrame, settings: AppSettings) -> DataFrame:
    timed = trades.withColumn("start", F.window("event_time", WINDOW)["start"])
    return timed.groupBy(*KEY).agg(COLUMNS)
"""
TRADES, HIGHEST = 'F.count(F.lit(1)).alias("trades")', 'F.max("price").alias("highest")'
MOST_AND_LEAST = 'F.max("price").alias("most"), F.min("price").alias("least")'
OTHER_TOPIC = "trades-of-others"


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What a version may change. `window_s`: of the windows that `start` names."""

    key: tuple[str, ...] = ("ticker",)
    partitions: int = 2
    columns: str = f"{TRADES}, {HIGHEST}"
    window_s: int = 4
    topic: str = "trades"

    @property
    def code(self) -> str:
        values = {
            "KEY": self.key,
            "PARTITIONS": self.partitions,
            "WINDOW": f"{self.window_s} seconds",
            "TOPIC": self.topic,
        }
        text = CODE.replace("COLUMNS", self.columns)
        for name, value in values.items():
            text = text.replace(name, repr(value))
        return text


@dataclass
class Story:
    cluster: Cluster
    follower: Follower
    folder: Path

    def code(self, definition: Definition) -> Path:
        """A folder with the app's code."""
        path = self.folder / f"v{len(list(self.folder.iterdir())) + 1}"
        path.mkdir()
        (path / "seen.py").write_text(definition.code)
        return path

    def switch(self, version: int, definition: Definition) -> tuple[str, str]:
        """Makes a version live while input comes. Returns what its plans say: of staging, and of the promotion."""
        cluster, name, code = self.cluster, f"{APP}.v{version}", self.code(definition)
        with cluster.trials():
            staged = " ".join(plan_stage(cluster.context(), APP, code_dir=code).warnings)
        cluster.hydrate(APP, version, batch=LARGE, code_dir=code)
        # releases that read different topics have no position in common
        if definition.topic == "trades":
            diff(cluster.context(), name)
        with cluster.producing_from([trades_for(definition.topic)], 300):
            said = cluster.cli("promote", name, "--execute")
            assert said.code == 0, said.text
            self.follower.await_switch(version)
        cluster.settle(name, definition.topic)
        self.follower.await_end(name)
        table = folded(cluster.settings, f"{name}.g1", dict.fromkeys(range(definition.partitions), 2**60))
        assert self.table() == table and len(table) > 2
        return staged, " ".join(said.text.split())

    def starts(self) -> set[int]:
        """The seconds of the minute at which the windows of the follower's table start."""
        return {datetime.fromisoformat(json.loads(key)["start"]).second for key in self.table()}

    def counted(self) -> int:
        """How many trades the follower's table counts."""
        return sum(row["trades"] for row in self.table().values())

    def records_of(self, topic: str) -> int:
        """How many trades are in a topic."""
        return sum(end_offsets(self.cluster.settings, [topic])[topic].values())

    def values_of(self, switch: int) -> list[dict[str, Any]]:
        """What the follower got of the result that a switch led to, without tombstones."""
        return [x for x in self.follower.lines() if x["switch"] == switch and x["value"] is not None]

    def table(self) -> dict[str, Any]:
        """What the follower has."""
        rows: dict[str, Any] = {}
        for line in self.follower.lines():
            if line["value"] is None:
                rows.pop(line["key"], None)
            else:
                rows[line["key"]] = json.loads(line["value"])
        return rows


def trades_for(topic: str) -> Source:
    source = source_for("stock-stats", Options(seed=7, per_second=100, faults=Faults.none()))
    assert isinstance(source, DenseTrades)
    source.topic = topic
    return source


@pytest.fixture(scope="module")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder: Path = tmp_path_factory.mktemp("code")
    cluster.load_from([trades_for("trades")], 2_000)
    made = Story(cluster, Follower(cluster, APP, "seen"), folder)
    cluster.hydrate(APP, 1, batch=LARGE, code_dir=made.code(Definition()))
    cluster.make_live(APP, 1)
    with made.follower:
        yield made
    cluster.stop(*(name for name, r in cluster.state.releases.items() if r.wanted == "running"))


def test_a_column_is_added_and_one_renamed(story: Story) -> None:
    staged, promoted = story.switch(2, Definition(columns=f"{TRADES}, {MOST_AND_LEAST}"))
    said = "its columns change, without highest; with most, least: consumers must be able to read both"
    assert said in staged and said in promoted
    # both have the same number of trades: so nothing that both have differs
    found = story.cluster.cli("diff", f"{APP}.v2", "--json")
    seen = json.loads(found.out)
    assert (seen["changed"], seen["only_live"], seen["only_new"]) == (0, 0, 0) and seen["identical"] > 2
    assert sorted([*seen["only_live_columns"], *seen["only_new_columns"]]) == ["highest", "least", "most"]


def test_a_type_and_the_number_of_partitions_change(story: Story) -> None:
    as_text = TRADES.replace(".alias", '.cast("string").alias')
    staged, _ = story.switch(3, Definition(partitions=5, columns=f"{as_text}, {MOST_AND_LEAST}"))
    assert "its columns change, trades from bigint to string" in staged
    assert "it has 5 partitions instead of 2" in staged


BY_WINDOW = ("ticker", "start")


def test_the_key_changes(story: Story) -> None:
    staged, promoted = story.switch(4, Definition(key=BY_WINDOW))
    said = "the key changes from (ticker) to (ticker, start): consumers get a tombstone for each old key"
    assert said in staged and said in promoted
    assert all(set(json.loads(key)) == set(BY_WINDOW) for key in story.table())


def test_the_window_changes(story: Story) -> None:
    starts = story.starts()
    assert any(second % 10 for second in starts)
    story.switch(5, Definition(key=BY_WINDOW, window_s=10))
    # the windows of both lengths have the same columns: none of the old ones may be left
    assert story.starts() and not any(second % 10 for second in story.starts())
    assert story.counted() == story.records_of("trades")


def test_a_column_is_removed(story: Story) -> None:
    staged, promoted = story.switch(6, Definition(key=BY_WINDOW, window_s=10, columns=TRADES))
    said = "its columns change, without highest: consumers must be able to read both"
    assert said in staged and said in promoted
    assert all(set(json.loads(line["value"])) == {"trades"} for line in story.values_of(6))


def test_the_topic_of_its_input_changes(story: Story) -> None:
    cluster = story.cluster
    cluster.load_from([trades_for(OTHER_TOPIC)], 1_000)
    definition = Definition(key=BY_WINDOW, window_s=10, columns=TRADES, topic=OTHER_TOPIC)
    cluster.hydrate(APP, 7, batch=LARGE, code_dir=story.code(definition))
    with pytest.raises(Refused, match="they have no input position in common at which to compare"):
        diff(cluster.context(), f"{APP}.v7")
    _, promoted = story.switch(7, definition)
    assert "trades-of-others" in promoted
    assert story.counted() == story.records_of(OTHER_TOPIC)
