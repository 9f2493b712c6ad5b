"""What a rollback and a diff say where there is nothing to go back to, or to compare with."""

from __future__ import annotations

import pytest

from orchestration.operations.planning.diff import plan_diff
from orchestration.operations.planning.rollback import plan_rollback
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.model.entries import Entry, Opened
from tests.operations.builders import Log, context_of, staged, switched

FIRST = Opened(id="promote-1", name="promote", releases=("a.v1",), alias="a", deadline_ms=2**60)


@pytest.mark.parametrize(
    ("entries", "app", "kind", "what", "fix"),
    [
        ([FIRST], "a", Refused, "the first switch of a is under way", "`switchyard abort a --execute`"),
        ([], "a", Refused, "no release of a has been live yet", "`switchyard promote a --execute`"),
        (
            switched(1, None, "a.v1"),
            "a",
            Refused,
            "a.v1 is the first live release of a",
            "change the app, then `switchyard reprocess a [--from FOLDER] --execute`",
        ),
        ([], "b", BadUsage, "b has no release", "the apps with a release are: a"),
        ([], "a.v1", BadUsage, "a.v1 is a release, not an app", "`switchyard rollback a`"),
    ],
)
def test_without_an_earlier_live_release_it_says_so_and_what_helps(
    entries: list[Entry], app: str, kind: type[SwitchyardError], what: str, fix: str
) -> None:
    log = Log(*staged("a.v1"), *entries)
    with pytest.raises(kind) as error:
        plan_rollback(context_of(log), app)
    assert type(error.value) is kind and error.value.what.startswith(what) and fix in error.value.fix
    assert kind is BadUsage or error.value.what.endswith("so there is nothing to go back to")


def test_without_a_standby_the_live_release_is_not_compared() -> None:
    log = Log(*staged("a.v1"), *switched(1, None, "a.v1"))
    with pytest.raises(Refused, match=r"a\.v1 is live and has no standby to compare with") as error:
        plan_diff(context_of(log), "a.v1")
    # unchanged code would be refused
    assert error.value.fix == (
        "change the app, then `switchyard reprocess a [--from FOLDER] --execute` stages it as the next version and compares it; "
        "for unchanged code, add --correction REASON"
    )
