"""What plans say about static tables: of which release, how many rows, and whether two releases differ by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestration.operations.looking.tables import TopicRead, kept_tables
from orchestration.operations.planning.changes import changes
from orchestration.operations.planning.tables import malformed_notes, other_tables, table_facts
from pipelines.engine.known import table_beside
from pipelines.model.entries import ReleaseSpec, StaticTableSpec
from tests.operations.builders import spec


def table(rows: int, digest: str, **offsets: int) -> StaticTableSpec:
    position = {int(name[1:]): offset for name, offset in offsets.items()}
    return StaticTableSpec(topic="rates", topic_id="t", position=position, rows=rows, size_bytes=9, digest=digest * 64)


def release(version: int, **tables: StaticTableSpec) -> ReleaseSpec:
    return spec(f"payments.v{version}", static_tables=tables)


OLD, SAME, NEW = table(1180, "1", p0=600), table(1180, "1", p0=700), table(1204, "2", p0=602, p1=640)


def test_a_plan_says_which_rows_each_release_has() -> None:
    one = release(1, rates=OLD)
    assert table_facts(one, None) == {"static table rates": "1,180 rows, read up to rates[0] 600, as 111111111111"}
    assert table_facts(release(2, rates=NEW), one) == {
        "static table rates": "1,204 rows, read up to rates[0] 602, rates[1] 640, as 222222222222; "
        "payments.v1 has 1,180 rows, read up to rates[0] 600"
    }
    # wherever in the topic they were read
    assert table_facts(release(2, rates=SAME), one)["static table rates"].endswith("; payments.v1 has the same rows")
    assert table_facts(release(2), one) == {}


def test_where_two_releases_have_other_rows_the_plan_warns() -> None:
    one, same, other, none = release(1, rates=OLD), release(2, rates=SAME), release(2, rates=NEW), release(2)
    assert [other_tables(one, each) for each in (same, other, none)] == [[], ["rates"], ["rates"]]
    assert changes(one, same) == ()
    [warning] = changes(one, other)
    assert warning == (
        "static table rates: payments.v2 has 1,204 rows, read up to rates[0] 602, rates[1] 640; "
        "payments.v1 has 1,180 rows, read up to rates[0] 600. Results may differ because of that"
    )
    [warning] = changes(one, none)
    assert "payments.v2 has no such table; payments.v1 has 1,180 rows" in warning


def test_what_a_trial_has_made_of_a_topic_is_kept_with_where_it_was_read(tmp_path: Path) -> None:
    read = TopicRead(topic="rates", id="an-id", position={0: 7}, records=tmp_path / "0.parquet")
    Path(table_beside(str(read.records))).write_bytes(b"{}")
    facts: dict[str, Any] = {
        "digest": "1" * 64,
        "rows": 1,
        "size_bytes": 2,
        "malformed": 3,
        "said": "3 malformed records",
    }
    kept = kept_tables({"rates": read}, {"rates": facts})
    assert (kept["rates"].spec.position, kept["rates"].spec.topic_id, kept["rates"].spec.malformed) == (
        {0: 7},
        "an-id",
        3,
    )
    assert (kept["rates"].file.digest, kept["rates"].file.data) == ("1" * 64, b"{}")
    [note] = malformed_notes(kept)
    assert note.startswith("static table rates: 3 malformed records; ")
    assert malformed_notes(kept_tables({"rates": read}, {"rates": {**facts, "malformed": 0, "said": ""}})) == ()
