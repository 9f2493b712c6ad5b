"""Two results are folded and compared key by key. The records come from Kafka in tests with a broker only."""

from __future__ import annotations

import fcntl
import gc
import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from fastavro import schemaless_writer

from orchestration.operations.comparing.database import Check, with_database
from orchestration.operations.comparing.evidence import Comparison, evidence_path
from orchestration.operations.comparing.fold import Counted, compare, compare_at, parts_for, write_fold
from orchestration.operations.comparing.fold_file import _batches as batches_of
from orchestration.operations.comparing.loading import load
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.offsets import end_of
from pipelines.model.entries import ResultSpec
from pipelines.model.positions import ResultPosition
from pipelines.private import private
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


def nothing() -> None:
    """Lets the work go on."""


@pytest.fixture
def data() -> Iterator[DuckDBPyConnection]:
    import duckdb

    with duckdb.connect() as found:
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
    parts: int = 1,
) -> Comparison:
    """The comparison of these records, in order."""
    for side, records in (("live", live), ("new", new)):
        data.execute(
            f"CREATE OR REPLACE TABLE {side}_records (key VARCHAR, value VARCHAR, source VARCHAR, place BIGINT)"
        )
        for place, record in enumerate(records):
            data.execute(f"INSERT INTO {side}_records VALUES (?, ?, ?, ?)", [*record, place])
    write_fold(data, folder, result, table=of.table, parts=parts)
    return compare(folder, of, then or of, tolerance=tolerance, samples=samples)


def rows(folder: Path) -> set[tuple[str, str | None, str | None]]:
    """Identity, live value and new value of each row of a fold."""
    found = [row for path in folder.iterdir() for row in pq.read_table(path, partitioning=None).to_pylist()]
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


@pytest.mark.parametrize("of", [TABLE, STREAM])
def test_parts_make_no_difference(data: DuckDBPyConnection, tmp_path: Path, of: ResultSpec) -> None:
    live = [*table(**{f"a{n}": value(n) for n in range(300)}), *table(a1=value(1), a2=None)]
    new = table(**{f"a{n}": value(n % 290) for n in range(10, 310)})
    whole = compared(data, tmp_path / "one", live, new, of, samples=1_000)
    assert compared(data, tmp_path / "some", live, new, of, samples=1_000, parts=7) == whole
    assert len([*(tmp_path / "some").iterdir()]) == 7
    assert rows(tmp_path / "some") == rows(tmp_path / "one") and whole.changed + whole.only_live > 9


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


def test_the_first_keys_are_kept_in_whatever_order_they_come() -> None:
    counted = Counted(2)
    for key in "dbca":
        counted.add_one_sided((key, "1", None))
    for key in "zyx":
        counted.add_changed((key, "1", "2"), ["n"])
    assert [row[0] for row in counted.samples] == ["x", "y"]
    assert (counted.only_live, counted.only_new, counted.changed, counted.columns) == (4, 0, 3, {"n": 3})
    none = Counted(0)
    none.add_changed(("a", "1", "2"), [])
    assert none.samples == [] and none.changed == 1


# -- the database


def many(data: DuckDBPyConnection, keys: int, letters: int) -> None:
    """Both sides with `keys` keys and values of `letters` letters, inserted some at a time."""
    at_once = max(1, 16 * 2**20 // letters)
    for side in ("live", "new"):
        data.execute(f"CREATE TABLE {side}_records (key VARCHAR, value VARCHAR, source VARCHAR, place BIGINT)")
        for first in range(0, keys, at_once):
            data.execute(
                f"""INSERT INTO {side}_records
                SELECT '{{"k":' || i || '}}', '{{"x":"' || repeat('x', {letters}) || '"}}', NULL, i
                FROM range({first}, {min(keys, first + at_once)}) AS numbers(i)"""
            )


def small(folder: Path, memory_mb: int = 256) -> Settings:
    return Settings(state_dir=folder / "state").model_copy(update={"diff_memory_mb": memory_mb})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "letters", "result"), [(600_000, 200, ""), (600_000, 200, "last"), (3_000, 60_000, ""), (300, 900_000, "")]
)
def test_what_does_not_fit_into_memory_is_kept_on_disk(tmp_path: Path, keys: int, letters: int, result: str) -> None:
    settings = small(tmp_path)

    def work(data: DuckDBPyConnection, folder: Path, check: Check) -> int:
        many(data, keys, letters)
        parts = parts_for(2 * keys * letters if letters > 1_000 else 0, settings.diff_memory_mb)
        write_fold(data, tmp_path / "fold", result, table=True, parts=parts)
        return sum(file.stat().st_size for file in settings.state_dir.rglob("duckdb*"))

    assert with_database(settings, work) > 10_000_000
    assert not any((settings.state_dir / "spill").iterdir())
    found = compare(tmp_path / "fold", TABLE, TABLE, tolerance=0.0, samples=1)
    assert found.identical == found.total == keys
    # values are compared some at a time
    assert max(batch.nbytes for batch in batches_of(tmp_path / "fold")) < 100 * 2**20


def test_too_little_memory_is_told_with_the_setting_that_helps(tmp_path: Path) -> None:
    with pytest.raises(SwitchyardError, match="16 MiB of memory is too little") as told:
        with_database(small(tmp_path, 16), lambda data, folder, check: many(data, 100, 20_000_000))
    assert "SWITCHYARD_DIFF_MEMORY_MB" in told.value.fix
    assert not any((tmp_path / "state" / "spill").iterdir())


def test_a_full_disk_is_told_as_that(tmp_path: Path) -> None:
    def work(data: DuckDBPyConnection, folder: Path, check: Check) -> None:
        data.execute("SET max_temp_directory_size = '1MB'; SET memory_limit = '64MB'")
        many(data, 300_000, 200)

    with pytest.raises(SwitchyardError, match="no room on the disk") as told:
        with_database(small(tmp_path), work)
    assert str(tmp_path) in told.value.fix


def test_a_folder_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    settings = small(tmp_path)
    (private(settings.state_dir) / "spill").touch()
    with pytest.raises(SwitchyardError, match="can't be written or read") as told:
        with_database(settings, lambda data, folder, check: None)
    assert str(tmp_path) in told.value.fix


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """No garbage is collected meanwhile: Python would drop what a signal raises in a callback of the collector."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("in_python", [True, False])
def test_an_interrupt_ends_the_work_at_once_and_is_not_taken_for_a_failure(tmp_path: Path, in_python: bool) -> None:
    main = threading.get_ident()

    def work(data: DuckDBPyConnection, folder: Path, check: Check) -> None:
        signal.pthread_kill(main, signal.SIGTERM)
        if not in_python:
            data.execute("SELECT count(*) FROM range(100_000_000_000) AS many(i) WHERE hash(i) = 1")
        while True:
            check()
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        with_database(small(tmp_path), work)
    assert not any((tmp_path / "state" / "spill").iterdir())


def test_what_a_killed_process_left_is_deleted_and_what_another_one_needs_is_not(tmp_path: Path) -> None:
    settings = small(tmp_path)
    root = private(settings.state_dir) / "spill"
    for name in ("dead", "alive", "new"):
        (root / name).mkdir(parents=True)
        (root / name / "duckdb_temp_storage-0.tmp").touch()
        (root / name / "lock").touch()
    for name in ("dead", "alive"):
        os.utime(root / name, (0, 0))
    lock = os.open(root / "alive" / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with_database(settings, lambda data, folder, check: None)
    finally:
        os.close(lock)
    assert sorted(each.name for each in root.iterdir()) == ["alive", "new"]


# -- from Kafka


@pytest.mark.broker
def test_committed_records_up_to_an_offset_are_read(
    broker: Settings, fresh_topic: FreshTopic, data: DuckDBPyConnection
) -> None:
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
    assert load(data, "found", broker, topic, {0: 6, 1: 2}, nothing) == 0
    found = data.execute("SELECT key, value, source, place FROM found ORDER BY source, place, key").fetchall()
    assert sorted(found, key=repr) == sorted(
        [("a", "1", "t:0:1", 0), ("b", None, None, 1), ("a", "last", None, 5), (None, "é", None, 0), ("\ufffd", "\ufffd", None, 1)],
        key=repr,
    )  # fmt: skip


@pytest.mark.broker
def test_avro_is_compared_by_its_fields(
    broker: Settings, fresh_topic: FreshTopic, data: DuckDBPyConnection, tmp_path: Path
) -> None:
    fields = [{"name": "n", "type": "long"}, {"name": "x", "type": ["null", "double"], "default": None}]
    was, now = (
        {"type": "record", "name": "r", "fields": each}
        for each in (fields, [*fields, {"name": "raw", "type": "bytes", "default": ""}])
    )
    written = {"live": (was, {"n": 1, "x": 0.5}), "new": (now, {"n": 1, "x": 0.5, "raw": b"\xff"})}
    for side, (schema, record) in written.items():
        topic, text = fresh_topic(), io.BytesIO()
        schemaless_writer(text, schema, record)
        writer = transactional(broker, topic, topic)
        writer.begin_transaction()
        writer.produce(topic, text.getvalue(), "a", partition=0, headers={"source": "t:0:1"})
        writer.commit_transaction(10)
        await_ends(broker, topic, 1)
        load(data, f"{side}_records", broker, topic, end_of(broker, topic, 1), nothing, json.dumps(schema))
    write_fold(data, tmp_path / "fold", "", table=False)
    found = compare(tmp_path / "fold", STREAM, STREAM, tolerance=0.0, samples=1)
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

    def run(check: Check = nothing) -> Comparison:
        release = spec("a.v1", schema_ddl=TABLE.schema_ddl, key=("k",))
        sides = {
            side: (release, ResultPosition(topics={topic: end_of(broker, topic, 1)}))
            for side, topic in (("live", live), ("new", new))
        }
        return compare_at(broker, "diff-1", **sides, tolerance=0.0, samples=1, check=check)

    assert run().identical == run().identical == 3
    home = evidence_path(broker, "diff-1").parent
    assert [each.name for each in home.iterdir()] == ["fold.parquet"]
    with pytest.raises(Refused, match="was abandoned"):
        run(_abandoned)
    # neither is what another attempt has found
    assert len(rows(home / "fold.parquet")) == 3
    client = admin(broker)
    client.delete_records([TopicPartition(live, 0, 2)])[TopicPartition(live, 0)].result(10)
    with pytest.raises(SwitchyardError, match=rf"records are deleted: {live}\[0\] before offset 2"):
        run()
    assert len(rows(home / "fold.parquet")) == 3 and not any((broker.state_dir / "spill").iterdir())


def _abandoned() -> None:
    raise Refused("diff-1 was abandoned", fix="`switchyard log diff-1` shows why")
