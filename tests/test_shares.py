"""What one process of a test run does in one go."""

from __future__ import annotations

from tests.shared.shares import share_of


def test_a_file_stays_together() -> None:
    assert share_of("tests/reset/test_undo.py::test_a[x-y]") == share_of("tests/reset/test_undo.py::test_b")


def test_the_cells_of_a_kind_follow_each_other() -> None:
    cell = "tests/reset/test_cells.py::test_a_cell"
    count = share_of(f"{cell}[count-clear-new-middle]")
    assert share_of(f"{cell}[count-keep-keep-latest]") == count
    assert share_of("tests/reset/test_cells.py::test_however_a_position_is_named_it_is_the_same_reset[count]") == count
    assert share_of(f"{cell}[windowed-clear-new-middle]") != count


def test_each_story_of_kills_may_run_elsewhere() -> None:
    table, stream = (f"tests/e2e/test_kills.py::test_a_{kind}_survives[15]" for kind in ("table", "stream"))
    assert share_of(table) != share_of(stream)
