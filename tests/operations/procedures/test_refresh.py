"""A diff that is kept up to date: what is kept, when it is refused, and what a switch makes of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestration.operations import reading
from orchestration.operations.comparing.backlog import MEANWHILE_RECORDS, backlog_of
from orchestration.operations.comparing.saving import save
from orchestration.operations.comparing.upkeep import Upkeep, load, path_of, too_old, upkeep_of
from orchestration.operations.context import Context
from orchestration.operations.planning.rollback import plan_rollback
from orchestration.operations.procedures import refresh as ref
from orchestration.operations.procedures.refresh import refresh, refreshable, to_refresh
from pipelines.errors import BadUsage, Refused, SwitchyardError
from pipelines.kafka.clock import now_ms
from pipelines.kafka.topics import DAY_MS
from pipelines.model.entries import Entry, EvidenceRecorded, Opened, Staged, StateSet
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.model.switch import choose_start
from pipelines.settings import Settings
from tests.operations.builders import Log, context_of, evidence, staged, switched
from tests.operations.comparing.test_backlog import kinds, results


def at(side: str, offset: int) -> ResultPosition:
    return ResultPosition(topics={f"a.{side}.g1": {0: offset}})


def compared(**changes: Any) -> EvidenceRecorded:
    return evidence(
        "a.v1", "a.v2", **{"at_ms": now_ms(), "live_result": at("v1", 100), "new_result": at("v2", 100), **changes}
    )


def settled(**changes: Any) -> Log:
    """v2 went live by switch 2, from v1, after a diff."""
    return Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"), compared(**changes), *switched(2, "a.v1", "a.v2"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = Settings(bootstrap_servers="127.0.0.1:1", state_dir=tmp_path)
    (tmp_path / "evidence" / "diff-1").mkdir(parents=True)
    return found


def context(settings: Settings, log: Log, **offsets: int) -> Context:
    class World(Context):
        def progress(self, release: str) -> Any:
            return results(**offsets).get(release)

    plain = context_of(log)
    return World(settings=settings, registry=plain.registry, launcher=plain.launcher)


def test_what_is_kept_is_read_as_it_was(settings: Settings) -> None:
    one = compared()
    assert load(settings, one) == (upkeep_of(settings, one), {}, {})
    assert upkeep_of(settings, one) == Upkeep(
        live_result=one.live_result, new_result=one.new_result, at_ms=one.at_ms, keys=0
    )
    kept = Upkeep(live_result=at("v1", 130), new_result=at("v2", 140), at_ms=7)
    save(settings, one, kept, {"a": "1", "ü": None}, {"a": ""})
    found = load(settings, one)
    assert found[1:] == ({"a": "1", "ü": None}, {"a": ""})
    assert found[0] == upkeep_of(settings, one)
    assert (found[0].live_result, found[0].new_result, found[0].at_ms, found[0].keys) == (at("v1", 130), at("v2", 140), 7, 3)  # fmt: skip
    # all at once, and nothing else is left
    save(settings, one, kept, {}, {})
    assert load(settings, one)[1:] == ({}, {})
    assert [p.name for p in path_of(settings, one).parent.iterdir()] == ["since.parquet"]


@pytest.mark.slow
def test_more_than_is_written_at_once_is_kept(settings: Settings) -> None:
    many = {f"k{n}": str(n) if n % 3 else None for n in range(250_001)}
    save(settings, compared(), upkeep_of(settings, compared()), many, {"k": "1"})
    assert load(settings, compared())[1:] == (many, {"k": "1"})


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"x" * 10_000])
def test_a_damaged_file_counts_as_none(settings: Settings, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """It saves time and no more: nobody is kept from going back by it."""
    path_of(settings, compared()).write_bytes(content)
    one = compared()
    none = Upkeep(live_result=one.live_result, new_result=one.new_result, at_ms=one.at_ms)
    assert upkeep_of(settings, one) == none and load(settings, one) == (none, {}, {})
    assert caplog.text.count("since.parquet") == 2


def test_a_file_that_can_not_be_written_leaves_what_was_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(settings, compared(), upkeep_of(settings, compared()), {"a": "1"}, {})
    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_batch", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(SwitchyardError, match=r"since\.parquet can't be written: full"):
        save(settings, compared(), upkeep_of(settings, compared()), {"b": "1"}, {})
    assert load(settings, compared())[1:] == ({"a": "1"}, {})
    assert len(list(path_of(settings, compared()).parent.iterdir())) == 1


def test_what_was_kept_is_not_read_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    save(settings, compared(), Upkeep(live_result=at("v1", 10_000_000), new_result=at("v2", 9_000_000), at_ms=now_ms()), {"a": "1"}, {"a": "1"})  # fmt: skip
    found = backlog_of(context(settings, settled(), v1=10_000_002, v2=9_000_003), compared())
    assert (found.records, found.kept, found.long) == (5, 2, False)
    assert str(found).startswith(
        "5 result records and 2 keys from the last refresh to read while the releases meet: under 1 s"
    )
    # what was kept has to be told, too
    assert not backlog_of(context(settings, settled(), v1=10_000_000), compared()).long
    many = {str(n): None for n in range(MEANWHILE_RECORDS + 1)}
    save(settings, compared(), upkeep_of(settings, compared()), many, {})
    assert backlog_of(context(settings, settled(), v1=10_000_000), compared()).long


def test_a_diff_that_is_kept_up_never_grows_too_old(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.operations.reading.held_by", lambda *_, **options: "someone")
    beat = SimpleNamespace(at_ms=now_ms(), lag_records=0, batch_records=None)
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {"a.v1": beat, "a.v2": beat})
    weeks_ago = now_ms() - 20 * DAY_MS
    log = settled(at_ms=weeks_ago)
    with pytest.raises(Refused, match=r"the diff diff-1 is 20\.0 days old"):
        plan_rollback(context(settings, log, v1=100, v2=100), "a")
    one = compared(at_ms=weeks_ago)
    save(settings, one, Upkeep(live_result=at("v1", 100), new_result=at("v2", 100), at_ms=now_ms() - DAY_MS), {}, {})
    assert "WriteDelta" in kinds(plan_rollback(context(settings, log, v1=100, v2=100), "a"))
    assert too_old(one, now_ms(), kept_ms=now_ms() - DAY_MS) is None
    said = too_old(one, now_ms(), kept_ms=now_ms() - 8 * DAY_MS)
    assert said is not None and said.startswith("the diff diff-1 was refreshed 8.0 days ago: after 7 days, compaction")


def test_who_can_not_go_back_by_a_diff_has_none_to_refresh() -> None:
    refusals = {
        "no release of a is live": Log(*staged("a.v1")),
        "a.v1 has no standby to go back to": Log(*staged("a.v1"), *switched(1, None, "a.v1")),
        "a.v2 has no standby": Log(*settled().entries, StateSet(release="a.v1", state="failed")),
        "under way on a.v2": Log(
            *settled().entries, Opened(id="stop-1", name="stop", releases=("a.v2",), deadline_ms=2**60)
        ),
        "were never compared in their current generations": settled(new_generation=7),
    }
    for text, log in refusals.items():
        with pytest.raises((Refused, BadUsage), match=text) as caught:
            refreshable(log.known, "a")
        assert caught.value.fix
        # unchanged code would be refused
        assert ("`switchyard reprocess" in caught.value.fix) is caught.value.fix.startswith("change the app, then")
        assert to_refresh(log.known) == []
    assert to_refresh(settled().known) == ["a"]
    assert refreshable(settled().known, "a").id == "diff-1"


def test_a_stream_has_no_diff_to_go_back_by() -> None:
    log = Log(*streams("a.v1", "a.v2"), *switched(1, None, "a.v1"), compared(), *switched(2, "a.v1", "a.v2"))
    with pytest.raises(Refused, match="no result of a is a table, so a rollback needs no diff"):
        refreshable(log.known, "a")
    assert to_refresh(log.known) == []


def streams(*names: str) -> list[Entry]:
    return [
        e.model_copy(update={"spec": e.spec.model_copy(update={"table": False})}) if isinstance(e, Staged) else e
        for e in staged(*names)
    ]


def progress(release: str, read: int, written: int, *, at_ms: int = 5) -> Progress:
    return Progress(
        release=release, generation=1, token=1, at_ms=at_ms, result=at(release.rpartition(".")[2], written),
        boundary=Boundary(batch_id=read, position=SourcePosition(sources={"trades": {0: read}})),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("standby", "written", "age"),
    [
        # it stands level, or somewhat behind: all that it has written
        ([(8, 180), (10, 200)], 200, None),
        ([(8, 180)], 180, None),
        # the live one is stuck: consumers would go to where the standby was then, of what is further on nothing is kept
        ([(8, 180), (9, 190), (30, 900), (40, 990)], 190, 30),
        ([(30, 900), (40, 990)], 100, 30),
    ],
)
def test_of_the_standby_nothing_is_kept_that_lies_behind_the_live_one_s_end(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, standby: list[tuple[int, int]], written: int, age: int | None
) -> None:
    monkeypatch.setattr(ref, "progress_of", lambda _, release: progress(release.name, 10, 300))
    monkeypatch.setattr(
        ref, "progress_history", lambda _, name: [progress(name, read, w, at_ms=read) for read, w in standby]
    )
    known = context(settings, settled())
    found = ref._goal(known, "a", compared())
    assert (found.live_result, found.new_result) == (at("v1", written), at("v2", 300))
    assert found.at_ms == age if age is not None else found.at_ms > 1_000_000
    # wherever consumers would go, all of it is part of the delta
    starts = []
    for allowed in ("duplicates", "gap", "either"):
        with suppress(Refused):
            starts.append(
                choose_start(
                    [progress("a.v1", *each) for each in standby], progress("a.v2", 10, 300).boundary.position, allowed
                )
            )
    assert starts and all(start.result.dominates(found.live_result) for start in starts)


def test_nothing_is_kept_where_one_of_them_is_dead(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    monkeypatch.setattr(reading, "held_by", lambda release, *_, **__: None if release.name == "a.v2" else "someone")
    with pytest.raises(Refused, match=r"a\.v2 isn't running"):
        refresh(context(settings, settled()), "a")


def test_nothing_is_kept_where_a_switch_has_begun_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.operations.context.Context.beats", lambda *_: {})
    monkeypatch.setattr(reading, "held_by", lambda *_, **__: "someone")
    monkeypatch.setattr(ref, "_goal", lambda *_: None)
    log = settled()

    def read_on(*_: Any, before_saving: Any) -> None:
        log.entries.append(Opened(id="rollback-1", name="rollback", releases=("a.v1", "a.v2"), deadline_ms=2**60))
        before_saving()
        pytest.fail("it would be kept")

    monkeypatch.setattr(ref, "read_on", read_on)
    with pytest.raises(Refused, match="rollback-1"):
        refresh(context(settings, log), "a")
