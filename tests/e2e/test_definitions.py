"""A second version whose definition differs, through a consumer across the switch: columns, key, partitions, types.

The tests are one story: each version is live after its test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.diff import diff
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
    inputs={"trades": Stream(topic="trades", key="ticker string", value=Json("side string NOT NULL, price double NOT NULL"))},
    result=Table(key=KEY, partitions=PARTITIONS),
)
def seen(trades: DataFrame, settings: AppSettings) -> DataFrame:
    return trades.groupBy(*KEY).agg(COLUMNS)
"""
FIRST = ('("ticker",)', 2, 'F.count(F.lit(1)).alias("trades"), F.max("price").alias("highest")')


@dataclass
class Story:
    cluster: Cluster
    follower: Follower
    folder: Path

    def code(self, key: str, partitions: int, columns: str) -> Path:
        """A folder with the app's code."""
        path = self.folder / f"v{len(list(self.folder.iterdir())) + 1}"
        path.mkdir()
        text = CODE.replace("KEY", key).replace("PARTITIONS", str(partitions)).replace("COLUMNS", columns)
        (path / "seen.py").write_text(text)
        return path

    def switch(self, version: int, code: Path) -> tuple[str, str]:
        """Makes a version live while input comes. Returns what its plans say: of staging, and of the promotion."""
        cluster, name = self.cluster, f"{APP}.v{version}"
        with cluster.trials():
            staged = " ".join(plan_stage(cluster.context(), APP, code_dir=code).warnings)
        cluster.hydrate(APP, version, batch=LARGE, code_dir=code)
        diff(cluster.context(), name)
        with cluster.producing("stock-stats", 300, per_second=100):
            said = cluster.cli("promote", name, "--execute")
            assert said.code == 0, said.text
            self.follower.await_switch(version)
        cluster.settle(name, "trades")
        self.follower.await_end(name)
        partitions = cluster.state.releases[name].spec.partitions
        table = folded(cluster.settings, f"{name}.g1", dict.fromkeys(range(partitions), 2**60))
        assert self.table() == table and len(table) > 2
        return staged, " ".join(said.text.split())

    def table(self) -> dict[str, object]:
        """What the follower has."""
        rows: dict[str, object] = {}
        for line in self.follower.lines():
            if line["value"] is None:
                rows.pop(line["key"], None)
            else:
                rows[line["key"]] = json.loads(line["value"])
        return rows


@pytest.fixture(scope="module")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder: Path = tmp_path_factory.mktemp("code")
    cluster.load("stock-stats", 2_000, per_second=100)
    made = Story(cluster, Follower(cluster, APP, "seen"), folder)
    cluster.hydrate(APP, 1, batch=LARGE, code_dir=made.code(*FIRST))
    cluster.make_live(APP, 1)
    with made.follower:
        yield made
    cluster.stop(*(name for name, r in cluster.state.releases.items() if r.wanted == "running"))


def test_a_column_is_added_and_one_renamed(story: Story) -> None:
    key, partitions, _ = FIRST
    columns = 'F.count(F.lit(1)).alias("trades"), F.max("price").alias("most"), F.min("price").alias("least")'
    staged, promoted = story.switch(2, story.code(key, partitions, columns))
    said = "its columns change, without highest; with most, least: consumers must be able to read both"
    assert said in staged and said in promoted
    # both have the same number of trades: so nothing that both have differs
    found = story.cluster.cli("diff", f"{APP}.v2", "--json")
    seen = json.loads(found.out)
    assert (seen["changed"], seen["only_live"], seen["only_new"]) == (0, 0, 0) and seen["identical"] > 2
    assert sorted([*seen["only_live_columns"], *seen["only_new_columns"]]) == ["highest", "least", "most"]


def test_a_type_and_the_number_of_partitions_change(story: Story) -> None:
    columns = (
        'F.count(F.lit(1)).cast("string").alias("trades"), F.max("price").alias("most"), F.min("price").alias("least")'
    )
    staged, _ = story.switch(3, story.code(FIRST[0], 5, columns))
    assert "its columns change, trades from bigint to string" in staged
    assert "it has 5 partitions instead of 2" in staged


def test_the_key_changes(story: Story) -> None:
    staged, promoted = story.switch(4, story.code('("ticker", "side")', 2, FIRST[2]))
    said = "the key changes from (ticker) to (ticker, side): consumers get a tombstone for each old key"
    assert said in staged and said in promoted
    assert all(set(json.loads(key)) == {"ticker", "side"} for key in story.table())
