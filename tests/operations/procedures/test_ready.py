"""What keeps a release from being ready: more late rows dropped than by the live one, a batch that left too much."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.operations.context import Context
from orchestration.operations.procedures.wait import CaughtUp, _hydration, _late_drops, wait_ready
from pipelines.engine.telemetry import unread_records
from pipelines.errors import Refused, SwitchyardError
from pipelines.model.entries import Entry, Opened, ReadyRecorded, StateSet, Switch, Via, WantedSet
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Counts, Heartbeat
from pipelines.model.registry import RegistryState
from tests.operations.builders import Log, context_of, release, staged

NOWHERE = ResultPosition(topics={})


def at(offset: int) -> SourcePosition:
    return SourcePosition(sources={"trades": {0: offset}})


def dropped(mine: int, lives: int) -> None:
    first = Switch(
        number=1, old=None, old_generation=None, old_end=None, new="a.v1", new_generation=1, new_start=NOWHERE
    )
    live, candidate = release("a.v1", state="live"), release("a.v2")
    state = RegistryState(releases={"a.v1": live, "a.v2": candidate}, chains={"a": (first,)})
    known = {name: SimpleNamespace(total=Counts(late_dropped=n)) for name, n in (("a.v1", lives), ("a.v2", mine))}
    _late_drops(cast(Context, SimpleNamespace(progress=known.get)), state, candidate)


def test_a_release_that_dropped_more_than_the_live_one_is_not_ready() -> None:
    dropped(mine=0, lives=0)
    dropped(mine=3, lives=3)
    more = r"a\.v2 dropped 4 late rows, more than the live release a\.v1, which dropped 3"
    with pytest.raises(SwitchyardError, match=more) as error:
        dropped(mine=4, lives=3)
    assert "SWITCHYARD_MAX_RECORDS_PER_BATCH" in error.value.fix


def test_what_a_batch_from_before_a_restart_left_behind_is_the_distance_to_the_end() -> None:
    source = {"latestOffset": {"trades": {"0": 90, "1": 40}}, "endOffset": {"trades": {"0": 50, "1": 40}}}
    assert unread_records({"sources": [source]}) == 40
    assert unread_records({"sources": [source, {**source, "latestOffset": None}]}) is None
    assert unread_records({}) is None

    def left(behind: int | None) -> Heartbeat:
        return Heartbeat(release="a.v1", generation=1, token=1, host="h", pid=1, at_ms=1, state="running",
                         batch_id=3, lag_records=66_000, behind_records=behind)  # fmt: skip

    assert _hydration(release("a.v1"), left(0)).unread_records == 0
    assert _hydration(release("a.v1"), left(None)).unread_records == 66_000


@pytest.mark.parametrize(
    ("given", "busy"),
    [
        ({"state": "starting", "lag_records": 9}, "its driver is starting"),
        ({"state": "running", "lag_records": 9}, "its first batch is under way"),
        # there is nothing to read
        ({"state": "running", "lag_records": 0}, None),
        ({"state": "running", "lag_records": 9, "batch_id": 0}, None),
    ],
)
def test_it_says_why_nothing_is_read_yet(given: dict[str, Any], busy: str | None) -> None:
    beat = Heartbeat(release="a.v1", generation=1, token=1, host="h", pid=1, at_ms=1, **given)
    assert _hydration(release("a.v1"), beat).busy == busy


def beat(batch_id: int, *, lag: int | None, **facts: Any) -> Heartbeat:
    return Heartbeat(release="a.v1", generation=1, host="h", pid=1, at_ms=1, batch_id=batch_id, lag_records=lag,
                     **{"token": 1, "state": "running", **facts})  # fmt: skip


def test_a_release_has_stayed_caught_up_where_a_later_batch_says_the_same() -> None:
    judge = CaughtUp(unread_records=0, for_s=10)
    assert not judge.by(beat(3, lag=900), 0, 0.0)
    # one batch's word, of ten seconds ago: much has come since
    assert not judge.by(beat(3, lag=20_000), 0, 10.0)
    assert judge.by(beat(4, lag=900), 0, 11.0)


def test_a_release_that_has_nothing_more_to_read_has_stayed_caught_up() -> None:
    judge = CaughtUp(unread_records=5, for_s=10)
    assert not judge.by(beat(3, lag=5), 0, 0.0)
    assert not judge.by(beat(3, lag=5), 0, 9.9)
    assert judge.by(beat(3, lag=5), 0, 10.0)
    # Kafka doesn't tell
    assert not judge.by(beat(3, lag=None), 0, 10.0)


def test_a_moment_is_enough_where_no_more_is_asked_for() -> None:
    assert CaughtUp(unread_records=0, for_s=0).by(beat(3, lag=900), 0, 0.0)


@pytest.mark.parametrize(
    "facts", [{"state": "starting"}, {"error": "x"}, {"batch_id": -1}, {"behind": 6}, {"behind": None}]
)
def test_whatever_breaks_it_begins_the_time_anew(facts: dict[str, Any]) -> None:
    judge = CaughtUp(unread_records=5, for_s=10)
    assert not judge.by(beat(3, lag=0), 0, 0.0)
    behind, batch_id = facts.pop("behind", 0), facts.pop("batch_id", 4)
    assert not judge.by(beat(batch_id, lag=0, **facts), behind, 5.0)
    assert not judge.by(beat(5, lag=0), 0, 12.0)
    assert judge.by(beat(5, lag=0), 0, 22.0)


def test_one_that_is_not_heard_begins_the_time_anew() -> None:
    judge = CaughtUp(unread_records=0, for_s=10)
    assert not judge.by(beat(3, lag=0), 0, 0.0)
    judge.lost()
    assert not judge.by(beat(4, lag=0), 0, 12.0)


def heard(monkeypatch: pytest.MonkeyPatch, beat: Heartbeat) -> None:
    """What every operation hears and sees: this heartbeat, of a driver that holds the release."""
    monkeypatch.setattr(Context, "beats", lambda *_: {beat.release: beat})
    monkeypatch.setattr(Context, "holder_by", lambda *_: "a driver")


@pytest.mark.parametrize("via", [None, "dagster"])
def test_the_entry_says_in_which_program_the_release_was_found_ready(
    via: Via | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(*staged("a.v1"), StateSet(release="a.v1", state="hydrating"))
    heard(monkeypatch, beat(3, lag=0, token=0))
    wait_ready(context_of(log, via=via), "a.v1", for_s=0)
    [entry] = [e for e in log.entries if isinstance(e, ReadyRecorded)]
    assert entry.via == via and log.known.releases["a.v1"].state == "ready"


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (Counts(), []),
        (
            Counts(late_dropped=1_200, dead_lettered=3),
            [
                "a.v1 dropped 1,200 late rows and wrote 3 dead letters; `switchyard dead-letters a.v1` shows the dead letters"
            ],
        ),
        (Counts(dead_lettered=3), ["a.v1 wrote 3 dead letters; `switchyard dead-letters a.v1` shows them"]),
        (
            Counts(late_dropped=3),
            ["a.v1 dropped 3 late rows; `switchyard status a.v1` shows how many there are by now"],
        ),
    ],
)
def test_it_says_what_no_result_has(total: Counts, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    heard(monkeypatch, beat(3, lag=0, token=0, total=total))
    lines: list[str] = []
    found = wait_ready(context_of(Log(*staged("a.v1")), say=lines.append), "a.v1", for_s=0)
    assert lines == said
    assert (found.late_dropped, found.dead_lettered) == (total.late_dropped, total.dead_lettered)


class Waited(Exception):
    """Somebody waits for a driver."""


def wait_without_a_driver(monkeypatch: pytest.MonkeyPatch, *entries: Entry) -> None:
    """Waits for a.v1, which no driver runs. Raises Waited instead of waiting."""

    def wait(_: float) -> None:
        raise Waited

    monkeypatch.setattr(Context, "beats", lambda *_: {})
    wait_ready(context_of(Log(*staged("a.v1"), *entries), sleep=wait), "a.v1")


@pytest.mark.parametrize(
    ("entries", "what", "fix"),
    [
        (
            [],
            "a.v1 isn't running, and nobody has asked it to run",
            "`switchyard start a.v1 --execute`, then wait again",
        ),
        (
            [StateSet(release="a.v1", state="retired")],
            "a.v1 is retired",
            "`switchyard stage a [--from FOLDER] --execute` makes a new version",
        ),
    ],
)
def test_nobody_waits_for_a_release_that_will_not_be_started(
    entries: list[Entry], what: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused) as error:
        wait_without_a_driver(monkeypatch, *entries)
    assert (error.value.what, error.value.fix) == (what, fix)


@pytest.mark.parametrize(
    "entry",
    [
        WantedSet(release="a.v1", wanted="running"),
        # a reset stops it, and starts it again
        Opened(id="reset-1", name="reset", releases=("a.v1",), deadline_ms=2**60),
    ],
)
def test_one_that_will_be_started_is_waited_for(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Waited):
        wait_without_a_driver(monkeypatch, entry)


def test_a_release_that_failed_is_answered_with_what_finds_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(*staged("a.v1"), StateSet(release="a.v1", state="failed", reason="batch 3 (trades[0] 5..9): ValueError"))
    heard(monkeypatch, beat(3, lag=0, state="failed", token=0))
    with pytest.raises(SwitchyardError, match="batch 3") as error:
        wait_ready(context_of(log), "a.v1")
    # first what finds out why, then what to do about it
    assert error.value.fix.startswith("`switchyard bisect a.v1`")
    assert (
        "`switchyard reprocess a [--from FOLDER] --execute`" in error.value.fix
        and "`switchyard start a.v1 --execute`" in error.value.fix
    )
