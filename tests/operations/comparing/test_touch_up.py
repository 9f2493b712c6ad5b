"""An evidence brought up to date: by the keys touched since, from the fold for those that only one side touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestration.operations.applying.applier import Applier
from orchestration.operations.comparing.delta import Delta
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.comparing.fold_file import KeyCounts, count_keys, differing_rows
from orchestration.operations.comparing.since import changed_ratio
from orchestration.operations.comparing.touch_up import TouchUp, since_diff, touch_up
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import WriteDelta
from pipelines.errors import Refused, SwitchyardError
from pipelines.model.entries import DeltaSegment, EvidenceRecorded
from tests.operations.builders import NOWHERE, Log, context_of, evidence, staged

Fold = Mapping[str, str]
Changes = Mapping[str, str | None]
Pairs = dict[str, tuple[str | None, str | None]]


def written(folder: Path, live: Fold, new: Fold) -> Path:
    path = folder / "fold.parquet"
    keys = sorted({*live, *new})
    columns = {"key": keys, "live_value": [live.get(k) for k in keys], "new_value": [new.get(k) for k in keys]}
    path.mkdir(exist_ok=True)
    pq.write_table(pa.table({n: pa.array(c, pa.string()) for n, c in columns.items()}), path / "part-0.parquet")
    return path


def touched_by(old: Changes, new: Changes, fold: Path, *, reverse: bool = False) -> TouchUp:
    return touch_up(old, new, old.keys() ^ new.keys(), fold, of="a.v2", reverse=reverse)


def pairs(found: TouchUp) -> Pairs:
    """Key -> old and new value."""
    assert found.old.keys() == found.new.keys()
    return {key: (found.old[key], found.new[key]) for key in found.new}


def of(values: Pairs) -> TouchUp:
    return TouchUp(old={k: old for k, (old, _) in values.items()}, new={k: new for k, (_, new) in values.items()})


@pytest.fixture
def fold(tmp_path: Path) -> Path:
    """same: equal; moved: differs; gone: only the live result has it; come: only the new one."""
    return written(tmp_path, {"same": "1", "moved": "1", "gone": "1"}, {"same": "1", "moved": "2", "come": "2"})


def test_a_key_that_both_touched_needs_no_fold(tmp_path: Path) -> None:
    found = touched_by({"k": "1"}, {"k": "2"}, tmp_path / "none")
    assert pairs(found) == {"k": ("1", "2")}
    assert found.changes(found.new.keys(), {}) == {"k": "2"}


def test_a_key_that_one_side_touched_has_the_other_side_s_value_of_the_cut(fold: Path) -> None:
    found = touched_by({"moved": "9", "same": "8"}, {"come": "7"}, fold)
    assert pairs(found) == {"moved": ("9", "2"), "same": ("8", "1"), "come": (None, "7")}


def test_a_key_that_the_new_result_does_not_have_is_told_as_gone(fold: Path) -> None:
    found = touched_by({"gone": "5", "fresh": "5"}, {}, fold)
    assert found.changes(found.new.keys(), {}) == {"gone": None, "fresh": None}


def test_a_deletion_since_the_cut_is_not_undone_by_the_fold(fold: Path) -> None:
    found = touched_by({"same": None}, {"moved": None}, fold)
    assert pairs(found) == {"same": (None, "1"), "moved": ("1", None)}


def test_backwards_the_sides_of_the_fold_change_places(fold: Path) -> None:
    found = touched_by({"moved": "9"}, {"gone": "8"}, fold, reverse=True)
    assert pairs(found) == {"moved": ("9", "1"), "gone": (None, "8")}


def test_the_ratio_is_the_share_of_touched_keys_that_differ() -> None:
    assert of({}).ratio == 0
    assert of({"a": ("1", "1"), "b": ("1", None), "c": (None, None), "d": ("1", "2")}).ratio == 0.5


def table(identical: int, differing: int, *, alike: int = 0) -> EvidenceRecorded:
    """What a diff of so many keys recorded; of the identical ones the texts of `alike` differ."""
    summary = {"only_live": 0, "only_new": 0, "changed": differing, "identical": identical}
    return evidence(
        "a.v1", "a.v2", summary=summary, forward=DeltaSegment(topic="d", start=7, end=7 + differing + alike)
    )


def share(recorded: EvidenceRecorded, touched: TouchUp, before: KeyCounts) -> float:
    """Of all keys, in how many the tables differ now."""
    more, differing = since_diff(recorded, touched, before)
    return changed_ratio(recorded, more=more, differing=differing)


def test_a_few_touched_keys_do_not_stand_for_the_table() -> None:
    # 4 of 100 keys differ, and 2 of the 20 that were touched: the same 2
    touched = of({**{str(n): ("1", "1") for n in range(18)}, "x": ("3", "4"), "y": ("3", "4")})
    assert touched.ratio == 0.1
    assert share(table(96, 4), touched, KeyCounts(keys=20, one_sided=0, differing=2)) == 0.04
    # 2 more
    assert share(table(96, 4), touched, KeyCounts(keys=20, one_sided=0, differing=0)) == 0.06


def test_touched_keys_that_are_equal_now_count_down_and_new_ones_are_of_the_table() -> None:
    touched = of({"healed": ("2", "2"), "both": (None, None), "come": (None, "2"), "nowhere": (None, None)})
    # `nowhere` came and went since; one of the other three was in one result only
    before = KeyCounts(keys=3, one_sided=1, differing=1)
    assert share(table(8, 2), touched, before) == 1 / 9


def test_what_the_diff_took_for_identical_though_it_is_written_otherwise_is_not_counted_down() -> None:
    touched = of({"a": ("1", "1.0"), "b": ("1", "1.0")})
    before = KeyCounts(keys=2, one_sided=0, differing=2)
    # the two may be among those that were taken for identical: then 6 differ now
    assert share(table(96, 4, alike=2), touched, before) == 0.06
    assert share(table(96, 4, alike=1), touched, before) == 0.05
    assert share(table(96, 4), touched, before) == 0.04


def test_a_limit_holds_for_the_table_at_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = WriteDelta(evidence="diff-1", old="a.v1", new="a.v2", max_changed=0.05)
    touched = of({"x": ("3", "4"), "y": ("3", "3")})
    written: list[TouchUp] = []

    def write(found: TouchUp) -> tuple[()]:
        written.append(found)
        return ()

    def applied(ratio: float) -> None:
        applier = Applier(
            context_of(Log(*staged("a.v2"))), Plan(id="p", operation=Kind.PROMOTE, releases=(), stages=(stage,))
        )
        end = SimpleNamespace(result=NOWHERE)
        monkeypatch.setattr(applier._work, "end", lambda *_: end)
        delta = SimpleNamespace(
            counts=Delta.counts, came=Delta.came, read_to=lambda *_: touched, changed_ratio=lambda _: ratio,
            write=write,
        )  # fmt: skip
        monkeypatch.setattr(applier._work, "since", {Delta: delta})
        applier.apply(stage)

    applied(0.05)
    assert written == [touched]
    with pytest.raises(
        Refused,
        match=r"5\.10% of the keys now differ \(compared as text, without --tolerance\), more than --max-changed 5\.00%: 2 were touched",
    ):
        applied(0.051)
    assert len(written) == 1


def test_evidence_that_is_gone_is_said_with_the_way_out(tmp_path: Path) -> None:
    gone = tmp_path / "gone.parquet"
    for asked in (lambda: touched_by({"k": "1"}, {}, gone), lambda: count_keys(gone, {"k"}, "a.v2")):
        with pytest.raises(SwitchyardError, match="is deleted") as error:
            asked()
        assert error.value.fix == "run `switchyard diff a.v2` again"


values = st.sampled_from(["1", "2", "3"])
folds = st.dictionaries(st.sampled_from("abcdef"), values, max_size=6)
updates = st.dictionaries(st.sampled_from("abcdef"), st.one_of(st.none(), values), max_size=6)


def applied(fold: Fold, changes: Changes) -> dict[str, str]:
    return {k: v for k, v in {**fold, **changes}.items() if v is not None}


# a file is written per example: how long that takes is the machine's affair
@pytest.mark.slow
@settings(max_examples=50)
@given(live=folds, new=folds, live_since=updates, new_since=updates, reverse=st.booleans())
def test_evidence_and_touch_up_take_a_consumer_from_one_result_to_the_other(
    tmp_path_factory: pytest.TempPathFactory,
    live: Fold,
    new: Fold,
    live_since: Changes,
    new_since: Changes,
    reverse: bool,
) -> None:
    path = written(tmp_path_factory.mktemp("evidence"), live, new)
    (old, old_since), (to, to_since) = (live, live_since), (new, new_since)
    if reverse:
        (old, old_since), (to, to_since) = (to, to_since), (old, old_since)
    base = {k: (v_live if reverse else v_new) for k, v_live, v_new in differing_rows(path)}
    found = touched_by(old_since, to_since, path, reverse=reverse)
    touched = found.changes(found.new.keys(), {})
    # the touch-ups first; a key that they held is left out of what the evidence says
    seen = applied(applied(old, old_since), {**base, **touched})
    assert seen == applied(to, to_since)


@settings(max_examples=50)
@given(live=folds, new=folds, live_since=updates, new_since=updates, reverse=st.booleans())
def test_the_ratio_is_that_of_a_diff_at_the_switch(
    tmp_path_factory: pytest.TempPathFactory,
    live: Fold,
    new: Fold,
    live_since: Changes,
    new_since: Changes,
    reverse: bool,
) -> None:
    path = written(tmp_path_factory.mktemp("evidence"), live, new)
    keys = live.keys() | new.keys()
    differing = sum(live.get(key) != new.get(key) for key in keys)
    sides = (new_since, live_since) if reverse else (live_since, new_since)
    touched = touched_by(*sides, path, reverse=reverse)
    now_live, now_new = applied(live, live_since), applied(new, new_since)
    left = now_live.keys() | now_new.keys()
    differ_now = sum(now_live.get(key) != now_new.get(key) for key in left) / len(left) if left else 0.0
    found = share(table(len(keys) - differing, differing), touched, count_keys(path, touched.new.keys(), "a.v2"))
    assert found == differ_now


def test_a_comparison_survives_the_registry() -> None:
    found = Comparison(
        only_live=1, only_new=2, changed=3, identical=4, columns={"trades": 3},
        samples=({"key": {"ticker": "IBM"}, "live": None, "new": {"trades": 1}},), live_late_dropped=5, new_watermark_ms=6,
    )  # fmt: skip
    assert found.total == 10
    assert found.ratio == 0.6
    assert Comparison.from_json({**found.as_json(), "of a later version": 1}) == found


def test_nothing_to_compare_differs_in_nothing() -> None:
    assert Comparison(only_live=0, only_new=0, changed=0, identical=0).ratio == 0
