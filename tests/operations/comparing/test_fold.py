"""Two results are folded and compared key by key. The records come from Kafka in tests with a broker only."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from fastavro import schemaless_writer

from orchestration.operations.comparing.evidence import Comparison, evidence_path
from orchestration.operations.comparing.fold import compare, compare_at, write_fold
from orchestration.operations.comparing.loading import database, load
from pipelines.errors import SwitchyardError
from pipelines.kafka.offsets import end_of
from pipelines.model.entries import ResultSpec
from pipelines.model.positions import ResultPosition
from pipelines.settings import Settings
from tests.conftest import FreshTopic
from tests.operations.builders import spec
from tests.shared.transactions import await_ends, transactional

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLE = ResultSpec(table=True, key=("k",), partitions=1, schema_ddl="`k` string, `n` bigint, `x` double", suite=None)
STREAM = TABLE.model_copy(update={"table": False})
# key, value and source
Record = tuple[str | None, str | None, str | None]


def value(n: int, x: float = 0.5) -> str:
    return json.dumps({"n": n, "x": x})


def table(**values: str | None) -> list[Record]:
    return [(json.dumps({"k": key}), value, None) for key, value in values.items()]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[DuckDBPyConnection]:
    with database(tmp_path / "spill", 256) as found:
        yield found


def compared(
    data: DuckDBPyConnection,
    folder: Path,
    live: Iterable[Record],
    new: Iterable[Record],
    of: ResultSpec = TABLE,
    *,
    then: ResultSpec | None = None,
    result: str = "",
    tolerance: float = 0.0,
    samples: int = 10,
) -> Comparison:
    """The comparison of these records, in order."""
    for side, records in (("live", live), ("new", new)):
        data.execute(f"CREATE TABLE {side}_records (key VARCHAR, value VARCHAR, source VARCHAR, place BIGINT)")
        for place, record in enumerate(records):
            data.execute(f"INSERT INTO {side}_records VALUES (?, ?, ?, ?)", [*record, place])
    path = write_fold(data, folder, result, table=of.table)
    return compare(data, path, of, then or of, tolerance=tolerance, samples=samples)


def rows(folder: Path) -> set[tuple[str, str | None, str | None]]:
    """Identity, live value and new value of each row of a fold."""
    found = pq.read_table(folder / "rows.parquet", partitioning=None).to_pylist()
    return {(row["identity"], row["live_value"], row["new_value"]) for row in found}


def test_a_table_has_the_last_value_of_each_key_that_is_not_deleted(data: DuckDBPyConnection, tmp_path: Path) -> None:
    live = [*table(a=value(1), b=value(1), c=value(1)), *table(a=value(2), b=None), *table(c=None), *table(c=value(3))]
    found = compared(data, tmp_path / "fold", live, table(a=value(2), b=value(9), c=value(4)))
    assert (found.identical, found.changed, found.only_live, found.only_new) == (1, 1, 0, 1)
    a, b, c = (json.dumps({"k": key}) for key in "abc")
    assert rows(tmp_path / "fold") == {(a, value(2), value(2)), (b, None, value(9)), (c, value(3), value(4))}


def test_each_class_is_counted_and_shown(data: DuckDBPyConnection, tmp_path: Path) -> None:
    live = table(a=value(1), b=value(2), c=value(3), d=value(4))
    found = compared(data, tmp_path / "fold", live, table(a=value(1), c=value(4, 0.75), d=value(4, 0.75), e=value(5)))
    assert (found.identical, found.changed, found.only_live, found.only_new) == (1, 2, 1, 1)
    assert found.columns == {"n": 1, "x": 2}
    assert [sample["key"]["k"] for sample in found.samples] == ["c", "d", "b", "e"]
    assert found.samples[2] == {"key": {"k": "b"}, "live": {"n": 2, "x": 0.5}, "new": None}


def test_no_more_samples_are_kept_than_were_asked_for(data: DuckDBPyConnection, tmp_path: Path) -> None:
    live, new = (table(**{key: value(n) for key in "abcdef"[n:]}) for n in (0, 1))
    found = compared(data, tmp_path / "fold", live, new, samples=3)
    assert (found.changed, found.only_live) == (5, 1)
    assert [sample["key"]["k"] for sample in found.samples] == ["b", "c", "d"]


def test_a_difference_within_the_tolerance_is_none(data: DuckDBPyConnection, tmp_path: Path) -> None:
    found = compared(data, tmp_path / "fold", table(a=value(1, 100.0)), table(a=value(1, 101.0)), tolerance=0.01)
    assert (found.identical, found.changed, found.columns) == (1, 0, {})


def test_a_record_of_a_stream_is_known_by_its_source(data: DuckDBPyConnection, tmp_path: Path) -> None:
    live: list[Record] = [(None, value(1), "t:0:1"), (None, value(2), "t:0:2"), (None, value(2), "t:0:3")]
    new: list[Record] = [(None, value(1), "t:0:1"), (None, value(3), "t:0:2"), (None, value(2), "t:0:4")]
    found = compared(data, tmp_path / "fold", live, new, STREAM)
    assert (found.identical, found.changed, found.only_live, found.only_new) == (1, 1, 1, 1)
    assert found.columns == {"n": 1}


def test_a_record_that_is_there_more_often_differs(data: DuckDBPyConnection, tmp_path: Path) -> None:
    once: list[Record] = [('{"k":"a"}', value(1), None), ('{"k":"a"}', value(2), None)]
    found = compared(data, tmp_path / "fold", once, [*once, once[0]], STREAM)
    assert (found.identical, found.changed, found.only_live, found.only_new) == (1, 0, 1, 1)
    assert {identity for identity, _, new in rows(tmp_path / "fold") if new} == {
        '{"k":"a"}|' + value(1) + " x2", '{"k":"a"}|' + value(2)
    }  # fmt: skip


def test_keys_of_several_results_are_tagged(data: DuckDBPyConnection, tmp_path: Path) -> None:
    found = compared(data, tmp_path / "fold" / "last", table(a=value(1)), [], result="last")
    assert [row[0] for row in rows(tmp_path / "fold" / "last")] == ['last\t{"k": "a"}']
    assert found.samples[0]["key"] == {"k": "a"}


def test_without_a_column_in_common_all_values_that_differ_as_text_are_changed(
    data: DuckDBPyConnection, tmp_path: Path
) -> None:
    other = TABLE.model_copy(update={"schema_ddl": "`k` string, `m` bigint"})
    found = compared(data, tmp_path / "fold", table(a=value(1)), table(a='{"m":1}'), then=other)
    assert (found.changed, found.columns) == (1, {})
    assert (found.only_live_columns, found.only_new_columns) == (("n", "x"), ("m",))


def test_two_empty_results_have_no_difference(data: DuckDBPyConnection, tmp_path: Path) -> None:
    found = compared(data, tmp_path / "fold", [], [])
    assert found == Comparison.none()


def many(data: DuckDBPyConnection, keys: int, *, letters: int) -> None:
    """Both sides with `keys` keys and values of `letters` letters."""
    for side in ("live", "new"):
        data.execute(
            f"""CREATE TABLE {side}_records AS
            SELECT '{{"k":' || i || '}}' AS key, '{{"x":"' || repeat('x', {letters}) || '"}}' AS value,
                   CAST(NULL AS VARCHAR) AS source, i AS place
            FROM range({keys}) AS numbers(i)"""
        )


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_kept_on_disk(tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    with database(spill, 128) as data:
        many(data, 300_000, letters=200)
        path = write_fold(data, tmp_path / "fold", "", table=True)
        spilled = sum(file.stat().st_size for file in spill.iterdir())
        found = compare(data, path, TABLE, TABLE, tolerance=0.0, samples=1)
    assert found.identical == found.total == 300_000
    assert spilled > 10_000_000 and not spill.exists()


def test_too_little_memory_is_told_with_the_setting_that_helps(tmp_path: Path) -> None:
    with (
        pytest.raises(SwitchyardError, match="16 MiB of memory are too few") as told,
        database(tmp_path / "s", 16) as data,
    ):
        many(data, 100, letters=1_000_000)
        write_fold(data, tmp_path / "fold", "", table=True)
    assert "SWITCHYARD_DIFF_MEMORY_MB" in told.value.fix and not (tmp_path / "s").exists()


# -- from Kafka


@pytest.mark.broker
def test_committed_records_up_to_an_offset_are_read(broker: Settings, fresh_topic: FreshTopic, tmp_path: Path) -> None:
    topic = fresh_topic(2)
    client = transactional(broker, topic, topic)
    client.begin_transaction()
    client.produce(topic, "1", "a", partition=0, headers={"source": "t:0:1"})
    client.produce(topic, None, "b", partition=0)
    client.produce(topic, "é".encode(), None, partition=1)
    client.produce(topic, b"\xff", b"\xc3", partition=1)
    client.commit_transaction(10)
    client.begin_transaction()
    client.produce(topic, "aborted", "a", partition=0)
    client.flush(10)
    client.abort_transaction(10)
    client.begin_transaction()
    client.produce(topic, "last", "a", partition=0)
    client.produce(topic, "past the end", "a", partition=0)
    client.commit_transaction(10)
    await_ends(broker, topic, 2)
    # two records and a marker, an aborted one and a marker, and the first of the last two
    with database(tmp_path / "spill", 256) as data:
        load(data, "found", broker, topic, {0: 6, 1: 2})
        found = data.execute("SELECT key, value, source, place FROM found ORDER BY source, place, key").fetchall()
    assert sorted(found, key=repr) == sorted(
        [("a", "1", "t:0:1", 0), ("b", None, None, 1), ("a", "last", None, 5), (None, "é", None, 0), ("\ufffd", "\ufffd", None, 1)],
        key=repr,
    )  # fmt: skip


@pytest.mark.broker
def test_avro_is_compared_by_its_fields(broker: Settings, fresh_topic: FreshTopic, tmp_path: Path) -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "x", "type": ["null", "double"], "default": None}]
    was, now = (
        {"type": "record", "name": "r", "fields": each}
        for each in (fields, [*fields, {"name": "raw", "type": "bytes", "default": ""}])
    )
    written = {"live": (was, {"n": 1, "x": 0.5}), "new": (now, {"n": 1, "x": 0.5, "raw": b"\xff"})}
    with database(tmp_path / "spill", 256) as data:
        for side, (schema, record) in written.items():
            topic, text = fresh_topic(), io.BytesIO()
            schemaless_writer(text, schema, record)
            client = transactional(broker, topic, topic)
            client.begin_transaction()
            client.produce(topic, text.getvalue(), "a", partition=0, headers={"source": "t:0:1"})
            client.commit_transaction(10)
            await_ends(broker, topic, 1)
            load(data, f"{side}_records", broker, topic, end_of(broker, topic, 1), json.dumps(schema))
        path = write_fold(data, tmp_path / "fold", "", table=False)
        found = compare(data, path, STREAM, STREAM, tolerance=0.0, samples=1)
    assert (found.identical, found.changed) == (1, 0)


@pytest.mark.broker
def test_a_result_with_deleted_records_is_not_compared_and_an_attempt_leaves_nothing_behind(
    broker: Settings, fresh_topic: FreshTopic
) -> None:
    from confluent_kafka import TopicPartition

    from pipelines.kafka.client import admin

    live, new = fresh_topic(), fresh_topic()
    for topic in (live, new):
        writer = transactional(broker, topic, topic)
        writer.begin_transaction()
        for n in range(3):
            writer.produce(topic, value(n), json.dumps({"k": str(n)}), partition=0)
        writer.commit_transaction(10)
        await_ends(broker, topic, 1)

    def run() -> Comparison:
        release = spec("a.v1", schema_ddl=TABLE.schema_ddl, key=("k",))
        sides = {
            side: (release, ResultPosition(topics={topic: end_of(broker, topic, 1)}))
            for side, topic in (("live", live), ("new", new))
        }
        return compare_at(broker, "diff-1", **sides, tolerance=0.0, samples=1)

    assert run().identical == run().identical == 3
    home = evidence_path(broker, "diff-1").parent
    assert [each.name for each in home.iterdir()] == ["fold.parquet"]
    client = admin(broker)
    client.delete_records([TopicPartition(live, 0, 2)])[TopicPartition(live, 0)].result(10)
    with pytest.raises(SwitchyardError, match=rf"records are deleted: {live}\[0\] before offset 2"):
        run()
    assert not any(home.iterdir())
