"""Which tests of a run stay in one process."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from tests.shared.shares import BESIDE, BUSY, LONGEST, in_order, share_of


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


def test_beside_what_takes_a_processor_starts_what_mostly_waits() -> None:
    files = ["a.py", BUSY, BUSY, "e2e/test_kills.py", BESIDE[1][0], "b.py", BESIDE[0][0], BESIDE[0][0]]
    order = [files[n] for n in in_order(files)]
    assert order == [BUSY, BESIDE[0][0], BESIDE[0][0], BUSY, BESIDE[1][0], "e2e/test_kills.py", "a.py", "b.py"]
    # tests of a file keep their order
    assert in_order(files)[1:3] == [6, 7]


def test_each_file_that_is_named_is_there() -> None:
    folder = Path(__file__).parent
    assert [f for f in (BUSY, *chain.from_iterable(BESIDE), *LONGEST) if not (folder / f).is_file()] == []
