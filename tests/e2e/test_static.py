"""A static table from staging to the end of its release: each version has the table that the topic had when it was staged.

The tests are one story, in this order. `payments` has the worth of each payment, at the rates of its version.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestration.operations.planning.retire import plan_retire
from orchestration.operations.planning.run import plan_start
from orchestration.operations.planning.stage import plan_stage
from orchestration.operations.procedures.bisect import bisect
from orchestration.operations.procedures.diff import diff
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.kafka.client import producer
from pipelines.kafka.topics import INPUT, delete_topics, ensure_topic
from tests.e2e.cluster import LARGE, Cluster, Follower, folded

# what plans, files and drivers do with one is also tried without a broker, in tests/engine and tests/operations
pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

CODE = Path(__file__).resolve().parents[1] / "shared" / "payments"
CURRENCIES = ("EUR", "CHF", "USD", "GBP")
PAID = 40


@dataclass
class Story:
    cluster: Cluster

    def table(self, name: str, generation: int = 1) -> dict[str, int | None]:
        """Payment -> its worth in a release's table."""
        rows = folded(self.cluster.settings, f"{name}.g{generation}", dict.fromkeys(range(2), 2**60))
        return {json.loads(key)["id"]: row["worth"] for key, row in rows.items()}

    def file(self, name: str) -> Path:
        table = self.cluster.state.releases[name].spec.static_tables["rates"]
        return self.cluster.settings.state_dir / "tables" / f"{table.digest}.jsonl"

    def send(self, topic: str, *records: tuple[str, Any]) -> None:
        with_values = producer(self.cluster.settings)
        for key, value in records:
            data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            with_values.produce(topic, data, key.encode())
        assert with_values.flush(30) == 0


def worth(**rates: int) -> dict[str, int | None]:
    """What each payment is worth: payment n is of n in one of the currencies."""
    of = (rates.get(CURRENCIES[n % len(CURRENCIES)]) for n in range(PAID))
    return {str(n): None if rate is None else n * rate for n, rate in enumerate(of)}


@pytest.fixture(scope="module")
def story(cluster: Cluster) -> Iterator[Story]:
    found = Story(cluster)
    ensure_topic(cluster.settings, "paid", 2, INPUT)
    found.send("paid", *((str(n), {"currency": CURRENCIES[n % 4], "amount": n}) for n in range(PAID)))
    yield found
    cluster.stop(*(name for name, r in cluster.state.releases.items() if r.wanted == "running"))


def test_its_topic_must_be_there(story: Story) -> None:
    with pytest.raises(BadUsage, match="input rates of payments: topic rates does not exist") as refused:
        story.cluster.stage("payments", 1, code_dir=CODE)
    assert "--create --topic rates --partitions 4" in refused.value.fix
    ensure_topic(story.cluster.settings, "rates", 2, INPUT)


def test_the_plan_says_what_is_in_it_and_what_could_not_be_read(story: Story) -> None:
    rows = [("EUR", {"rate": 1}), ("EUR", {"rate": 2}), ("CHF", {"rate": 3}), ("GBP", {"rate": 4})]
    story.send("rates", *rows, ("CHF", {"rates": 9}), ("GBP", None), ("\n", b"{"))
    said = story.cluster.cli("stage", "payments", "--from", CODE)
    shown = " ".join(said.out.split())
    assert (
        "static table rates 2 rows, read up to rates[0] 5, rates[1] 2, as " in shown
        and "keep a static table, " in shown
    ), said.text
    assert "static table rates: 2 malformed records, the first at rates[" in shown
    assert not (story.cluster.settings.state_dir / "tables").exists()
    # refused before Spark starts
    context = story.cluster.context(static_table_max_bytes=1)
    with pytest.raises(Refused, match="topic rates has more than 16 bytes of records"), story.cluster.trials():
        plan_stage(context, "payments", code_dir=CODE)


def test_a_release_keeps_it_with_its_digest(story: Story) -> None:
    release = story.cluster.hydrate("payments", 1, batch=LARGE, code_dir=CODE)
    table = release.spec.static_tables["rates"]
    assert release.spec.topics == {"paid": "paid"} and table.topic == "rates" and table.topic_id
    assert (table.rows, table.malformed, sum(table.position.values())) == (2, 2, 7)
    data = story.file("payments.v1").read_bytes()
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines == [{"key": "CHF", "value": '{"rate": 3}'}, {"key": "EUR", "value": '{"rate": 2}'}]
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (table.digest, table.size_bytes)
    assert stat.S_IMODE(story.file("payments.v1").stat().st_mode) == 0o600
    story.cluster.make_live("payments", 1)
    story.cluster.settle("payments.v1", "paid")
    assert story.table("payments.v1") == worth(EUR=2, CHF=3)
    with pytest.raises(Refused, match="same code, same settings, same static tables"):
        story.cluster.stage("payments", 2, code_dir=CODE)


def test_a_new_version_has_the_new_table_and_differs_by_exactly_that(story: Story) -> None:
    cluster = story.cluster
    story.send("rates", ("EUR", {"rate": 5}), ("USD", {"rate": 7}))
    with Follower(cluster, "payments", "books") as follower:
        cluster.hydrate("payments", 2, batch=LARGE, same_as="payments.v1")
        # a reset or a restart of the earlier one would not see it either
        assert story.table("payments.v1") == worth(EUR=2, CHF=3)
        found = diff(cluster.context(), "payments.v2", samples=100)
        assert (found.only_live, found.only_new, found.changed) == (0, 0, PAID // 2 - 1)
        changed = {sample["key"]["id"] for sample in found.samples}
        assert changed == {str(n) for n in range(1, PAID) if CURRENCIES[n % 4] in ("EUR", "USD")}
        for command, rates, number in (
            ("promote", {"EUR": 5, "CHF": 3, "USD": 7}, 2),
            ("rollback", {"EUR": 2, "CHF": 3}, 3),
        ):
            said = cluster.cli(command, "payments", "--execute")
            assert said.code == 0, said.text
            assert ("payments.v2 has 3 rows, read up to rates[0]" in " ".join(said.text.split())) == (number == 2)
            cluster.until("the consumer has another table", lambda rates=rates: _fold(follower) == worth(**rates))


def _fold(follower: Follower) -> dict[str, int | None]:
    rows: dict[str, int | None] = {}
    for line in follower.lines():
        key = json.loads(line["key"])["id"]
        if line["value"] is None:
            rows.pop(key, None)
        else:
            rows[key] = json.loads(line["value"])["worth"]
    return rows


def test_status_tells_what_each_has(story: Story) -> None:
    shown = " ".join(story.cluster.cli("status", "payments").out.split())
    assert "payments.v1: static table rates: 2 rows, read up to" in shown
    assert "payments.v2: static table rates: 3 rows, read up to" in shown


def test_a_release_without_its_table_file_does_not_run_and_a_stage_restores_the_file(story: Story) -> None:
    cluster, file = story.cluster, story.file("payments.v2")
    kept = file.read_bytes()
    cluster.stop("payments.v2")
    file.write_bytes(kept.replace(b"5", b"6"))
    with pytest.raises(SwitchyardError, match=r"static table rates of payments\.v2, .* is not what was staged"):
        cluster.run(plan_start(cluster.context(), "payments.v2"))
    file.unlink()
    cluster.until("the driver has ended", lambda: not cluster.drivers.alive("payments.v2"))
    shown = " ".join(cluster.cli("status", "payments.v2").out.split())
    gone = f"static table rates ({file}) of payments.v2 is gone"
    assert gone in shown
    with pytest.raises(SwitchyardError, match=re.escape(gone)):
        cluster.run(plan_start(cluster.context(), "payments.v2"))
    # the topic still has the same rows
    again = cluster.stage("payments", 3, same_as="payments.v2", correction="its table was lost")
    assert again.spec.static_tables["rates"].digest == file.stem and file.read_bytes() == kept
    cluster.until("the driver has ended", lambda: not cluster.drivers.alive("payments.v2"))
    story.send("paid", ("new", {"currency": "USD", "amount": 2}))
    # a batch on trial has the table, too
    assert bisect(cluster.context(), "payments.v2") is None
    cluster.start("payments.v2", batch=LARGE)
    cluster.until("the new payment is there", lambda: story.table("payments.v2").get("new") == 14)


def test_its_topic_may_go_and_the_file_goes_with_the_last_release_that_has_it(story: Story) -> None:
    cluster, file, rates_of_v2 = story.cluster, story.file("payments.v2"), worth(EUR=5, CHF=3, USD=7)
    delete_topics(cluster.settings, ["rates"])
    for name in ("payments.v1", "payments.v2"):
        cluster.settle(name, "paid")
    assert "is gone" not in cluster.cli("status", "payments").out
    # a replay has the rows that the topic no longer has
    said = cluster.cli("reset", "payments.v2", "--to-earliest", "--stop", "--output", "new", "--execute")
    assert said.code == 0, said.text
    cluster.until("it has read all again", lambda: story.table("payments.v2", 2) == {**rates_of_v2, "new": 14})
    cluster.run(plan_retire(cluster.context(), "payments.v3"))
    assert file.exists()
    cluster.run(plan_retire(cluster.context(), "payments.v2"))
    assert not file.exists() and story.file("payments.v1").exists()
    assert story.table("payments.v1")["new"] is None
