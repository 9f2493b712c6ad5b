"""What `switchyard log` says of an entry."""

from __future__ import annotations

from typing import get_args

import pytest

from orchestration.commands.audit import in_words
from pipelines.model.entries import AlignOrdered, AnyEntry, Closed, MarkOrdered, Opened, SwitchAborted, WantedSet
from tests.model.test_registry_entries import AT, ENTRIES, NAME, OP

SAID = """\
staged sums.v1 (first release)
started generation 1 of sums.v1
sums.v1 is now hydrating
asked sums.v1 to run
took lease 4 of sums.v1
lease 4 of sums.v1 ended
opened promote-1
asked sums.v1 to meet sums.v0 for switch 2
asked sums.v0 to flag a boundary for switch 2
compared sums.v1 with sums.v0: 2 changed, 9 identical
checked sums.v1, generation 1: 3 passed, 1 failed, 0 errored
sums.v1 has caught up, generation 1
process 1 on h carries out promote-1
proposed promote-2, which waits for approval
staged sums.v0 (first release)
switch 2 of sums: sums.v0 -> sums.v1
ended promote-2 without a switch of sums
registered reader as a follower of sums
removed gone as a follower of sums
ignored the entries at these offsets for good: 3, 5
accepted that sums.v1 lacks input deleted by retention: lines[0] 0 to 4 (5 offsets)
recorded the topics of sums.v1, generation 1
promote-1 ended: done; fine
started generation 2 of sums.v0
"""


def test_each_kind_of_entry_has_words_of_its_own() -> None:
    assert [in_words(entry) for entry in ENTRIES] == SAID.splitlines()
    assert {type(entry) for entry in ENTRIES} == set(get_args(get_args(AnyEntry)[0]))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (WantedSet(release=NAME, wanted="stopped"), "asked sums.v1 to stop"),
        (Closed(id=OP, outcome="expired"), "promote-1 ended: expired"),
        (SwitchAborted(alias="", id=OP), "ended promote-1 without a switch"),
        (AlignOrdered(id=OP, release=NAME, other="sums.v0", switch=None), "asked sums.v1 to meet sums.v0 for a diff"),
        (
            MarkOrdered(id=OP, release=NAME, past=AT, switch=None, alias=None, deadline_ms=9),
            "asked sums.v1 to flag a boundary for a diff",
        ),
        (
            Opened(id=OP, name="reset", releases=(NAME,), deadline_ms=9, plan={"facts": {"request": "--to-latest"}}),
            "opened promote-1: --to-latest",
        ),
    ],
)
def test_an_entry_without_a_detail_says_the_rest(entry: AnyEntry, words: str) -> None:
    assert in_words(entry) == words
