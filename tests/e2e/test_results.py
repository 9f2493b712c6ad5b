"""An app with two results, a table and a stream: committed, compared and switched together.

The tests are one story, in this order. v1 is live; v2 doubles one ticker's price in the table, and leaves small bids
out of the stream. The expected rows come from the input.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.ledger.reader import read
from orchestration.operations.procedures.diff import diff
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.follow import LiveConsumer
from pipelines.kafka.topics import topic_names
from pipelines.model.entries import Switch
from tests.e2e.cluster import LARGE, SMALL, Cluster, Follower, folded

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

APP, V1, V2 = "last-and-bids", "last-and-bids.v1", "last-and-bids.v2"
TWO = '''
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, Table, app


@app(
    name="last-and-bids",
    inputs={"trades": Stream(topic="trades", key="ticker string", value=Json("side string NOT NULL, price double NOT NULL"))},
    results={"last": Table(key=("ticker",), partitions=2), "bids": AppendStream(key=("ticker",), partitions=3)},
    settings={"least": 0.0, "doubled": ""},
)
def last_and_bids(trades: DataFrame, settings: AppSettings) -> DataFrame:
    """The last price of each ticker, and every bid."""
    price = F.when(F.col("ticker") == settings.doubled, F.col("price") * 2).otherwise(F.col("price"))
    last = F.struct("ticker", price.alias("price"))
    bid = F.struct("ticker", "price", "topic", "partition", "offset")
    return trades.select(last.alias("last"), F.when(F.expr(f"side = 'bid' and price >= {settings.least}"), bid).alias("bids"))
'''


@dataclass
class Story:
    """What the tests share."""

    cluster: Cluster
    last: Follower
    bids: Follower

    def folded(self, name: str) -> dict[str, object]:
        """Key -> value of the table of a release, at its end."""
        return folded(self.cluster.settings, f"{name}.g1.last", dict.fromkeys(range(2), 2**60))

    def records(self, name: str) -> Counter[tuple[int, int]]:
        """The records in the stream of a release, by partition and offset."""
        return Counter((r.partition, r.offset) for r in read(self.cluster.settings.bootstrap, f"{name}.g1.bids"))

    @property
    def chain(self) -> tuple[Switch, ...]:
        return self.cluster.state.chains[APP]


@pytest.fixture(scope="module")
def story(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    code: Path = tmp_path_factory.mktemp("code")
    (code / "two.py").write_text(TWO)
    cluster.load("stock-stats", 4_000, per_second=100)
    cluster.hydrate(APP, 1, batch=SMALL, code_dir=code)
    cluster.make_live(APP, 1)
    with Follower(cluster, APP, "table", "last") as last, Follower(cluster, APP, "stream", "bids") as bids:
        yield Story(cluster, last, bids)
    cluster.stop(V1, V2)


def test_each_result_has_a_topic_of_its_kind(story: Story) -> None:
    release = story.cluster.state.releases[V1]
    assert release.result_partitions == {f"{V1}.g1.last": 2, f"{V1}.g1.bids": 3}
    assert {f"{V1}.g1.last", f"{V1}.g1.bids"} <= topic_names(story.cluster.settings)
    assert f"{V1}.g1" not in topic_names(story.cluster.settings)
    trades = list(read(story.cluster.settings.bootstrap, "trades"))
    good = [r for r in trades if r.value is not None and _price(r.value) is not None]
    by_ticker: dict[str, float] = {}
    for record in good:
        assert record.key is not None and record.value is not None
        by_ticker[json.dumps({"ticker": record.key.decode()}, separators=(",", ":"))] = _price(record.value) or 0.0
    # of one ticker all trades are in one partition, in order
    assert story.folded(V1) == {ticker: {"price": price} for ticker, price in by_ticker.items()}
    bids = sum(json.loads(r.value)["side"] == "bid" for r in good if r.value is not None)
    assert sum(story.records(V1).values()) == bids > 100


def _price(value: bytes) -> float | None:
    try:
        found = json.loads(value)
        return float(found["price"]) if isinstance(found["side"], str) else None
    except (ValueError, KeyError, TypeError):
        return None


def test_a_follower_must_say_which_result(story: Story) -> None:
    settings = story.cluster.settings
    with pytest.raises(BadUsage, match="last-and-bids has several results: last, bids") as several:
        LiveConsumer(APP, group="any", settings=settings, register=False)
    assert several.value.fix == "name one, as in --result last"
    with pytest.raises(BadUsage, match="has no result asks"):
        LiveConsumer(APP, group="any", result="asks", settings=settings, register=False)
    said = story.cluster.cli("follow", APP, "--result", "bids", "--from-beginning", "--max-records", 3, "--json")
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert said.code == 0 and [line["topic"] for line in lines] == [f"{V1}.g1.bids"] * 3, said.text


def test_a_diff_compares_each_result(story: Story) -> None:
    cluster = story.cluster
    settings = {"least": 50.0, "doubled": "IBM"}
    cluster.hydrate(APP, 2, batch=LARGE, same_as=V1, settings=settings)
    found = diff(cluster.context(), V2)
    last, bids = found.results["last"], found.results["bids"]
    assert (last.only_live, last.only_new, last.changed) == (0, 0, 1)
    assert last.columns == {"price": 1} and [s["key"] for s in last.samples] == [{"ticker": "IBM"}]
    small = sum(json.loads(r.value or b"")["price"] < 50 for r in read(cluster.settings.bootstrap, f"{V1}.g1.bids"))
    assert (bids.only_live, bids.only_new, bids.changed) == (small, 0, 0) and small > 0
    assert (found.changed, found.only_live) == (1, small)
    assert found.total == last.total + bids.total


def test_consumers_of_both_move_together(story: Story) -> None:
    cluster = story.cluster
    with cluster.producing("stock-stats", 100, per_second=100):
        said = cluster.cli("promote", V2, "--execute")
        assert said.code == 0, said.text
        assert said.text.count("since the evidence cut") == 2
        story.last.await_switch(2)
        story.bids.await_switch(2)
    _settle(story, V2)
    switch = story.chain[-1]
    assert set(switch.new_start.topics) == {f"{V2}.g1.last", f"{V2}.g1.bids"}
    _table_is_that_of(story, V2)
    _stream_is_whole(story)


def test_both_move_back_together(story: Story) -> None:
    cluster = story.cluster
    # v1 reads in small batches, and a rollback wants it at most one batch behind
    cluster.settle(V1, "trades")
    with cluster.producing("stock-stats", 100, per_second=100):
        said = cluster.cli("rollback", APP, "--execute")
        assert said.code == 0, said.text
        story.last.await_switch(3)
        story.bids.await_switch(3)
    _settle(story, V1)
    _table_is_that_of(story, V1)
    _stream_is_whole(story)
    # by now the group has committed: another result needs another group
    with pytest.raises(BadUsage, match="group table already follows result last of last-and-bids") as shared:
        LiveConsumer(APP, group="table", result="bids", settings=cluster.settings, register=False)
    assert shared.value.fix == "give the followers of each result a group of their own"


def _settle(story: Story, name: str) -> None:
    story.cluster.settle(name, "trades")
    story.last.await_end(name)
    story.bids.await_end(name)


def _table_is_that_of(story: Story, name: str) -> None:
    """The follower of the table holds what the release's table holds, and nothing of the stream came to it."""
    fold: dict[str, object] = {}
    for line in story.last.lines():
        assert not line["topic"].endswith(".bids")
        fold[line["key"]] = None if line["value"] is None else json.loads(line["value"])
    assert {k: v for k, v in fold.items() if v is not None} == story.folded(name)
    doubled = [line for line in story.last.lines() if line["phase"] == "delta"]
    assert [line["key"] for line in doubled if line["switch"] == 2].count('{"ticker":"IBM"}') == 1


def _stream_is_whole(story: Story) -> None:
    """The follower of the stream got each release's records up to the cut and from the cut on, each once."""
    got = Counter((line["topic"], line["partition"], line["offset"]) for line in story.bids.lines())
    assert all(line["phase"] == "result" for line in story.bids.lines())
    chain, wanted = story.chain, Counter[tuple[str, int, int]]()
    for number, switch in enumerate(chain):
        topic = f"{switch.new}.g1.bids"
        start = switch.new_start.of(topic)
        last = chain[number + 1].old_end if number + 1 < len(chain) else None
        end = last.of(topic) if last is not None else {}
        for (partition, offset), count in story.records(switch.new).items():
            if start[partition] <= offset < end.get(partition, 2**60):
                wanted[topic, partition, offset] += count
    assert got == wanted


def test_a_version_whose_results_differ_is_refused(story: Story, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        TWO.replace('"bids": AppendStream(', '"bid": AppendStream(').replace('alias("bids")', 'alias("bid")')
    )
    with pytest.raises(
        Refused, match=r"v1 has a stream called bids, last-and-bids\.v3 has no result called bids"
    ) as refused:
        story.cluster.stage(APP, 3, code_dir=tmp_path)
    assert "give the new app another name" in refused.value.fix


LARGE_ROWS = """
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.model import AppendStream, AppSettings, Json, Stream, app


@app(
    name="large-rows",
    inputs={"trades": Stream(topic="trades", key="ticker string", value=Json("price double NOT NULL"))},
    result=AppendStream(key=("ticker",)),
    OVERSIZED
)
def large_rows(trades: DataFrame, settings: AppSettings) -> DataFrame:
    text = F.when(F.expr("partition = 0 and offset = 3"), F.repeat(F.lit("x"), F.lit(1_500_000))).otherwise("small")
    return trades.select("ticker", text.alias("text"), "topic", "partition", "offset")
"""


def test_a_row_that_kafka_does_not_take_stops_the_release_or_is_set_apart(story: Story, tmp_path: Path) -> None:
    cluster, name = story.cluster, "large-rows.v{}"
    folders = []
    for number, option in enumerate(("", "oversized='dead-letter',"), start=1):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "large.py").write_text(LARGE_ROWS.replace("OVERSIZED", option))
        folders.append(folder)
    cluster.stage("large-rows", 1, code_dir=folders[0])
    with pytest.raises(SwitchyardError, match=r"from trades:0:3, with the key .* whose value has 1,500,0\d\d bytes"):
        cluster.hydrate("large-rows", 1, batch=LARGE)
    cluster.hydrate("large-rows", 2, batch=LARGE, code_dir=folders[1])
    cluster.stop(name.format(2))
    letters = list(read(cluster.settings.bootstrap, "large-rows.v2.dead-letters"))
    assert [letter.value for letter in letters if letter.source == "trades:0:3"] == [None]
