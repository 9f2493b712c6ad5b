"""Which tests of a run stay in one process."""

from __future__ import annotations

from pathlib import Path

from tests.shared.shares import LONGEST, in_order, share_of


def test_a_file_stays_together() -> None:
    assert share_of("tests/reset/test_undo.py::test_a[x-y]") == share_of("tests/reset/test_undo.py::test_b")


def test_the_cells_of_a_kind_stay_together() -> None:
    cell = "tests/reset/test_cells.py::test_a_cell"
    count = share_of(f"{cell}[count-clear-new-middle]")
    assert share_of(f"{cell}[count-keep-keep-latest]") == count
    assert share_of("tests/reset/test_cells.py::test_however_a_position_is_named_it_is_the_same_reset[count]") == count
    assert share_of(f"{cell}[windowed-clear-new-middle]") != count


def test_what_shares_a_broker_of_its_own_stays_together() -> None:
    assert share_of("tests/security/test_roles.py::test_a") == share_of("tests/security/test_refusals.py::test_b[x]")


def test_each_story_of_kills_is_a_share_of_its_own() -> None:
    kills = "tests/e2e/test_kills.py::"
    assert share_of(f"{kills}test_a_table[15]") != share_of(f"{kills}test_a_stream[5]")


def test_the_longest_files_start_first_and_tests_keep_their_order() -> None:
    files = ["a.py", LONGEST[1], LONGEST[0], "b.py", LONGEST[0]]
    assert in_order(files) == [2, 4, 1, 0, 3]


def test_each_file_that_is_named_is_there() -> None:
    folder = Path(__file__).parent
    assert [f for f in LONGEST if not (folder / f).is_file()] == []
