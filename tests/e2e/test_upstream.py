"""An app that reads another app's result: it stays with the release that it was staged on, until a new version follows.

The tests are one story, in this order. `prices` has the last price of each ticker, `tenfold` ten times that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.procedures.diff import diff
from pipelines.errors import BadUsage, Refused
from tests.e2e.cluster import LARGE, Cluster, Follower, folded

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

BOTH = """
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Changelog, Json, ResultOf, Stream, Table, app


@app(
    name="prices",
    inputs={"trades": Stream(topic="trades", key="ticker string", value=Json("price double NOT NULL"))},
    result=Table(key=("ticker",), partitions=2),
    settings={"more": 0.0},
)
def prices(trades: DataFrame, settings: AppSettings) -> DataFrame:
    return trades.select("ticker", (F.col("price") + settings.more).alias("price"))


@app(
    name="tenfold",
    inputs={"prices": Changelog(topic=ResultOf("prices"), key=Json("ticker string NOT NULL"), value=Json("price double"))},
    result=Table(key=("ticker",), partitions=2),
)
def tenfold(prices: DataFrame, settings: AppSettings) -> DataFrame:
    return prices.select("ticker", (F.col("price") * 10).alias("tenfold"))
"""


@dataclass
class Story:
    cluster: Cluster
    code: Path

    def table(self, name: str) -> dict[str, float]:
        """Ticker -> number in a release's table."""
        rows = folded(self.cluster.settings, f"{name}.g1", dict.fromkeys(range(2), 2**60))
        return {json.loads(key)["ticker"]: next(iter(row.values())) for key, row in rows.items()}

    def settle(self, *names: str) -> None:
        for name in names:
            for given in self.cluster.state.releases[name].spec.inputs.values():
                self.cluster.settle(name, given.topic)


@pytest.fixture(scope="module")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    code: Path = tmp_path_factory.mktemp("code")
    (code / "both.py").write_text(BOTH)
    cluster.load("stock-stats", 2_000, per_second=100)
    cluster.hydrate("prices", 1, batch=LARGE, code_dir=code)
    yield Story(cluster, code)
    cluster.stop(*(name for name, r in cluster.state.releases.items() if r.wanted == "running"))


def test_there_must_be_a_release_to_read(story: Story) -> None:
    with pytest.raises(
        Refused, match="input prices of tenfold is the result of prices, but no release of prices is live"
    ):
        story.cluster.stage("tenfold", 1, code_dir=story.code)
    story.cluster.make_live("prices", 1)
    with pytest.raises(BadUsage, match=r"prices does not read a result of prices\.v1"):
        story.cluster.stage("prices", 2, code_dir=story.code, upstream=["prices.v1"])


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        ('Json("price double"))', 'Json("price double, volume double"))', r"the result of prices\.v1 has no column volume in its value"),
        ('Json("ticker string NOT NULL")', 'Json("symbol string NOT NULL")', r"has no column symbol in its key"),
        ('key=Json("ticker string NOT NULL")', 'key="ticker string"', r"reads the keys of prices\.v1 as text, but they are JSON"),
        ('Json("price double"))', 'Json("price int"))', "declares price as int, but in the result of prices it is double"),
        ('Changelog(topic=ResultOf("prices")', 'Stream(topic=ResultOf("prices")', r"the result of prices\.v1 is a table"),
        ('ResultOf("prices")', 'ResultOf("prices", "all")', r"reads result all of prices\.v1, which it does not have"),
        ('Changelog(topic=ResultOf("prices")', 'Stream(topic="prices.v1.g1"', r"prices\.v1\.g1 is a table, the result of prices\.v1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_other_result_is_refused(
    story: Story, tmp_path: Path, there: str, instead: str, said: str
) -> None:
    assert BOTH.count(there) == 1
    (tmp_path / "both.py").write_text(BOTH.replace(there, instead))
    with pytest.raises(BadUsage, match=said):
        story.cluster.stage("tenfold", 1, code_dir=tmp_path)


def test_it_reads_the_release_that_was_live_when_it_was_staged(story: Story) -> None:
    cluster = story.cluster
    release = cluster.hydrate("tenfold", 1, batch=LARGE, code_dir=story.code)
    assert release.spec.inputs["prices"].model_dump() == {
        "topic": "prices.v1.g1",
        "partitions": 2,
        "release": "prices.v1",
    }
    cluster.make_live("tenfold", 1)
    story.settle("tenfold.v1")
    ones = story.table("prices.v1")
    assert story.table("tenfold.v1") == {ticker: price * 10 for ticker, price in ones.items()} and len(ones) > 2


def test_promote_and_retire_name_the_releases_that_read_the_result(story: Story) -> None:
    cluster = story.cluster
    cluster.hydrate("prices", 2, batch=LARGE, same_as="prices.v1", settings={"more": 1.0})
    diff(cluster.context(), "prices.v2")
    said = cluster.cli("promote", "prices.v2", "--execute")
    assert said.code == 0 and "tenfold.v1: they keep reading prices.v1" in said.text, said.text
    shown = cluster.cli("status", "tenfold.v1")
    assert "it reads prices.v1, but prices.v2 is live" in " ".join(shown.out.split()), shown.text
    with pytest.raises(Refused, match=r"prices\.v1 is still needed by tenfold\.v1"):
        plan_retire(cluster.context(), "prices.v1", after_s=0.0)


def test_a_new_version_reads_the_new_one_and_its_consumers_get_exactly_its_table(story: Story) -> None:
    cluster = story.cluster
    with Follower(cluster, "tenfold", "tens") as follower:
        release = cluster.hydrate("tenfold", 2, batch=LARGE, same_as="tenfold.v1")
        assert release.spec.topics == {"prices": "prices.v2.g1"}
        with pytest.raises(Refused, match="they have no input position in common at which to compare") as refused:
            diff(cluster.context(), "tenfold.v2")
        assert refused.value.fix == "`switchyard promote tenfold.v2 --execute` compares their tables as they are"
        for command, name in (("promote", "tenfold.v2"), ("rollback", "tenfold.v1")):
            if command == "rollback":
                cluster.start(name, batch=LARGE)
                story.settle(name)
            with cluster.producing("stock-stats", 200, per_second=100):
                said = cluster.cli(command, "tenfold", "--execute")
                assert said.code == 0, said.text
            up = cluster.state.releases[name].spec.inputs["prices"].release
            assert up is not None
            story.settle(up, name)
            number = 3 if command == "rollback" else 2
            follower.await_switch(number)
            of_delta = [x for x in follower.lines() if x["switch"] == number and x["phase"] == "delta"]
            assert of_delta, f"no delta came with switch {number}"
            cluster.until("the consumer has another table", lambda name=name: _fold(follower) == story.table(name))
            assert story.table(name) == {ticker: price * 10 for ticker, price in story.table(up).items()}


def _fold(follower: Follower) -> dict[str, float]:
    rows: dict[str, float] = {}
    for line in follower.lines():
        ticker = json.loads(line["key"])["ticker"]
        if line["value"] is None:
            rows.pop(ticker, None)
        else:
            rows[ticker] = json.loads(line["value"])["tenfold"]
    return rows


def test_a_whole_chain_is_reprocessed_in_order(story: Story) -> None:
    cluster = story.cluster
    again = ("reprocess", "prices", "--same-as", "prices.v2", "--set", "more=2", "--downstream")
    # tenfold.v1, which is live again, reads prices.v1: it does not read what is live
    shown = cluster.cli(*again)
    assert shown.code == 0 and "tenfold" not in shown.out, shown.text
    cluster.start("tenfold.v2", batch=LARGE)
    story.settle("tenfold.v2")
    assert cluster.cli("promote", "tenfold.v2", "--execute").code == 0
    shown = cluster.cli(*again)
    assert "then the same for tenfold, with the code of tenfold.v2" in shown.out, shown.text
    said = cluster.cli(*again, "--for", "0.5s", "--auto-promote", "--execute", "--json")
    assert said.code == 0, said.text
    found = json.loads(said.out)
    assert (found["release"], [each["release"] for each in found["downstream"]]) == ("prices.v3", ["tenfold.v3"])
    assert [cluster.state.chains[app][-1].new for app in ("prices", "tenfold")] == ["prices.v3", "tenfold.v3"]
    assert cluster.state.releases["tenfold.v3"].spec.inputs["prices"].release == "prices.v3"
    story.settle("prices.v3", "tenfold.v3")
    assert story.table("tenfold.v3") == {ticker: price * 10 for ticker, price in story.table("prices.v3").items()}
