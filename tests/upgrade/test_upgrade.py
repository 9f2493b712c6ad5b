"""An upgrade from 0.1: this version opens what that one left behind, and its releases go on.

The archive is as `make_state.sh` made it with that version: broker data and state folder, its drivers stopped. The tests
are one story, told in order. What is right is recomputed from all of the input, that of 0.1 and what comes here.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo.ledger.check import check_log, check_result
from orchestration.sources import Faults, Options, produce, source_for
from pipelines.engine.guard import sources_in
from pipelines.kafka.progress import newest_progress
from pipelines.model.entries import Staged, decode
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC, progress_topic
from pipelines.model.progress import Heartbeat, Progress, read_progress
from pipelines.model.registry import RegistryState, fold
from pipelines.settings import Settings
from tests.e2e.cluster import LARGE, Cluster, Follower
from tests.shared.ports import port_of
from tests.upgrade.records import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ARCHIVE, RECORDS = HERE / "state-0.1.tar.xz", HERE / "records-0.1.jsonl"
TOPICS = {"word-count": "lines", "stock-stats": "trades", "large-orders": "orders"}
RELEASES = ("word-count.v1", "word-count.v2", "stock-stats.v1", "large-orders.v1")
SOME = Faults(out_of_order=0.05, late=0.01, too_late=0.01, duplicate=0.01, malformed=0.01, tombstone=0.005)
story = [pytest.mark.long, pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark]


def recorded() -> list[tuple[str, bytes]]:
    """Topic and bytes of each record that 0.1 wrote into the registry and into progress topics, in order."""
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    return [(line["topic"], line["value"].encode()) for line in lines]


# -- old and new beside each other: what 0.1 writes, this version reads


def test_every_entry_of_0_1_is_read_and_means_the_same() -> None:
    entries = [decode(value) for topic, value in recorded() if topic == REGISTRY_TOPIC]
    # none is taken for forged
    state = fold(RegistryState(), entries, strict=True)
    assert [(e.live, e.new) for e in state.evidence] == [("word-count.v1", "word-count.v2")]
    assert {name: r.state for name, r in state.releases.items()} == {
        "word-count.v1": "live", "word-count.v2": "standby", "stock-stats.v1": "live", "large-orders.v1": "live",
    }  # fmt: skip
    assert {name: r.generation for name, r in state.releases.items()} == {
        "word-count.v1": 1, "word-count.v2": 1, "stock-stats.v1": 1, "large-orders.v1": 2,
    }  # fmt: skip
    assert [(s.old, s.new) for s in state.chains["word-count"]] == [
        (None, "word-count.v1"), ("word-count.v1", "word-count.v2"), ("word-count.v2", "word-count.v1"),
    ]  # fmt: skip
    assert state.followers["word-count"] == ("upgrade",)
    assert all(r.wanted == "stopped" and r.lease_ended for r in state.releases.values())
    assert all(o.closed is not None for o in state.operations.values())
    # of every kind that an operator of 0.1 causes in a day
    assert {entry.model_dump()["kind"] for entry in entries} >= {
        "staged", "generation", "state", "wanted", "lease", "lease-ended", "opened", "carried", "closed", "align", "mark",
        "promoted", "evidence", "verdict", "ready", "follower",
    }  # fmt: skip


def test_every_progress_record_of_0_1_is_read() -> None:
    found: dict[str, list[Progress]] = {}
    for topic, value in recorded():
        if topic.endswith(".progress"):
            read = read_progress(value)
            # nothing of it is lost, and nothing means something else
            assert read.model_dump(mode="json", exclude_unset=True) == json.loads(value)
            found.setdefault(topic, []).append(read)
    assert set(found) == {progress_topic(name) for name in RELEASES}
    for records in found.values():
        assert [r.boundary.batch_id for r in records] and all(r.total.rows_in >= r.batch.rows_in for r in records)


def test_every_heartbeat_of_0_1_is_read() -> None:
    found = [Heartbeat.model_validate_json(value) for topic, value in recorded() if topic == HEARTBEATS_TOPIC]
    assert {beat.release for beat in found} == set(RELEASES) and {"starting", "running"} <= {
        beat.state for beat in found
    }


@pytest.mark.slow
def test_the_frozen_code_of_0_1_is_what_its_registry_says() -> None:
    entries = [decode(value) for topic, value in recorded() if topic == REGISTRY_TOPIC]
    digests = {entry.spec.code_digest for entry in entries if isinstance(entry, Staged)}
    with tarfile.open(ARCHIVE) as archive:
        for digest in digests:
            file = archive.extractfile(f"./code/{digest}.zip")
            assert file is not None and sources_in(file.read(), digest)


# -- the story


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """This version on a copy of the archive."""
    folder = tmp_path_factory.mktemp("upgrade")
    with opened(ARCHIVE, folder / "state", port_of("upgrade")) as settings:
        # what can be undone for a week can be undone here however old the archive is: 50 years
        found = Cluster(settings.model_copy(update={"archive_keep_s": 1.6e9}), folder, lambda: spark)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def follower(cluster: Cluster) -> Iterator[Follower]:
    """The consumer that 0.1 left in the middle, with all that it had got there."""
    shutil.copy(cluster.settings.state_dir / "follower.jsonl", cluster.folder / "upgrade.jsonl")
    with Follower(cluster, "word-count", "upgrade") as found:
        yield found


def settle(cluster: Cluster) -> None:
    for name in RELEASES:
        cluster.settle(name, TOPICS[name.rpartition(".v")[0]])


def assert_right(settings: Settings, name: str, topic: str) -> None:
    ledger = check_result(name.rpartition(".v")[0], settings.bootstrap, topic)
    assert ledger.clean and ledger.records, ledger.as_json()


def assert_followed(cluster: Cluster, follower: Follower) -> None:
    """Nothing missing and nothing twice, of all that this consumer ever got."""
    ledger = check_log("word-count", cluster.settings.bootstrap, follower.log)
    assert ledger.clean, ledger.as_json()


class TestUpgrade:
    pytestmark = story

    def test_releases_continue_from_their_checkpoints_exactly_once(self, cluster: Cluster) -> None:
        before = {name: newest_progress(cluster.settings, name) for name in RELEASES}
        for name in RELEASES:
            cluster.start(name, batch=LARGE)
        # what 0.1 had not read
        settle(cluster)
        for app in TOPICS:
            produce(cluster.settings, source_for(app, Options(seed=9, per_second=20, faults=SOME)), history=300)
        settle(cluster)
        for name, old in before.items():
            new = newest_progress(cluster.settings, name)
            assert old is not None and new is not None
            # the same state: not read anew from the first offset
            assert new.generation == old.generation and new.boundary.batch_id > old.boundary.batch_id
            assert new.total.rows_in > old.total.rows_in > 0
            assert_right(cluster.settings, name, cluster.state.releases[name].result_topics[""])

    def test_a_consumer_continues_where_it_stopped(self, cluster: Cluster, follower: Follower) -> None:
        had = len(follower.lines())
        assert had > 300
        follower.await_switch(3)
        follower.await_end("word-count.v1")
        assert len(follower.lines()) > had
        assert_followed(cluster, follower)

    def test_consumers_move_to_the_standby_and_back(self, cluster: Cluster, follower: Follower) -> None:
        for command in (
            ("diff", "word-count.v2"),
            ("check", "word-count.v2"),
            ("promote", "word-count.v2", "--execute"),
        ):
            said = cluster.cli(*command)
            assert said.code == 0, said.text
        produce(cluster.settings, source_for("word-count", Options(seed=10, per_second=20, faults=SOME)), history=50)
        follower.await_switch(4)
        said = cluster.cli("rollback", "word-count", "--leaving", "word-count.v2", "--execute")
        assert said.code == 0, said.text
        produce(cluster.settings, source_for("word-count", Options(seed=11, per_second=20, faults=SOME)), history=50)
        follower.await_switch(5)
        settle(cluster)
        follower.await_end("word-count.v1")
        assert_followed(cluster, follower)

    def test_a_reset_of_0_1_can_be_undone_and_repeated(self, cluster: Cluster) -> None:
        name, settings = "large-orders.v1", cluster.settings
        [reset] = [o.id for o in cluster.state.operations.values() if o.opened.name == "reset"]
        said = cluster.cli("undo", reset, "--stop", "--execute")
        assert said.code == 0, said.text
        assert cluster.state.releases[name].generation == 1
        cluster.settle(name, "orders")
        assert_right(settings, name, f"{name}.g1")
        said = cluster.cli("reset", name, "--to-earliest", "--stop", "--execute")
        assert said.code == 0, said.text
        assert cluster.state.releases[name].generation == 3
        cluster.settle(name, "orders")
        assert_right(settings, name, f"{name}.g3")

    def test_the_plan_of_an_operation_of_0_1_is_shown(self, cluster: Cluster) -> None:
        entries = [json.loads(value) for topic, value in recorded() if topic == REGISTRY_TOPIC]
        switches = [e["id"] for e in entries if e["kind"] == "opened" and e["name"] in ("promote", "rollback")]
        assert len(switches) == 5
        for operation in switches:
            said = cluster.cli("log", operation)
            assert said.code == 0 and "append switch" in said.out, said.text
