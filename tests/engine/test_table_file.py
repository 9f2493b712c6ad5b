"""The file of a static table: its bytes, its digest, and what becomes of one that is lost or changed."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine.table_file import TableChanged, TableFile, as_file, checked, rows_in, store, table_path
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings

ROWS = [(b"EUR", b'{"rate": 2}'), (b"CHF", b'{"name": "Fr\xc3\xa4nkli"}'), (b"raw", b"\xff\x00")]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path / "state", bootstrap_servers="127.0.0.1:1")


def test_equal_rows_give_equal_bytes_that_a_person_can_read() -> None:
    table = as_file(ROWS)
    assert table == as_file(reversed(ROWS))
    assert table.digest == hashlib.sha256(table.data).hexdigest()
    assert table.data.decode().splitlines() == [
        r'{"key": "CHF", "value": "{\"name\": \"Fränkli\"}"}',
        r'{"key": "EUR", "value": "{\"rate\": 2}"}',
        '{"key": "raw", "value_base64": "/wA="}',
    ]
    assert as_file([]).data == b"" and rows_in(b"") == []


@given(
    st.lists(
        st.tuples(st.one_of(st.binary(), st.text().map(str.encode)), st.one_of(st.binary(), st.text().map(str.encode)))
    )
)
def test_what_was_written_is_read_back(rows: list[tuple[bytes, bytes]]) -> None:
    assert rows_in(as_file(rows).data) == sorted(rows)


def test_it_is_kept_for_its_user_alone_and_read_by_its_digest(settings: Settings) -> None:
    table = as_file(ROWS)
    path = store(settings, table)
    assert path == table_path(settings, table.digest) == settings.state_dir / "tables" / f"{table.digest}.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert checked(settings, table.digest, "rates", "payments.v1") == table
    # a damaged one is written again
    path.write_bytes(b"{}")
    store(settings, table)
    assert path.read_bytes() == table.data and [each.name for each in path.parent.iterdir()] == [path.name]
    with pytest.raises(SwitchyardError, match="does not match digest 0000"):
        store(settings, TableFile(digest="0" * 64, data=table.data))


@pytest.mark.parametrize("data", [b"", b'{"key": "EUR", "value": "9"}\n', None])
def test_a_changed_or_missing_table_file_is_not_used(settings: Settings, data: bytes | None) -> None:
    path = store(settings, as_file(ROWS))
    path.unlink() if data is None else path.write_bytes(data)
    with pytest.raises(TableChanged) as found:
        checked(settings, path.stem, "rates", "payments.v1")
    changed = f"static table rates of payments.v1, {path}, is not what was staged: its SHA-256 is not {path.stem}"
    gone = f"static table rates ({path}) of payments.v1 is gone"
    assert found.value.what == (gone if data is None else changed)
    assert "`switchyard stage payments --same-as payments.v1 --correction REASON --execute`" in str(found.value.fix)


def test_one_that_can_not_be_read_is_named(settings: Settings) -> None:
    path = table_path(settings, "0" * 64)
    path.mkdir(parents=True)
    with pytest.raises(TableChanged, match=r"static table rates of payments\.v1, .* can't be read: Is a directory"):
        checked(settings, "0" * 64, "rates", "payments.v1")


def test_no_link_leads_it_out_of_the_state_folder(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    settings.state_dir.mkdir()
    (settings.state_dir / "tables").symlink_to(tmp_path / "outside")
    for act in (
        lambda: store(settings, as_file(ROWS)),
        lambda: checked(settings, "0" * 64, "rates", "payments.v1"),
        lambda: table_path(settings, "../code/x"),
    ):
        with pytest.raises(SwitchyardError, match=r"is a link in the folder|is not the name of a file"):
            act()
    assert not list((tmp_path / "outside").iterdir())
