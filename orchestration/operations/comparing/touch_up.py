"""The keys that two tables touched since their diff. Pure, except that it looks into the fold."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from operator import ne
from pathlib import Path

from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.comparing.fold_file import KeyCounts, values_of
from pipelines.errors import SwitchyardError
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.switch import touch_ups


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchUp:
    """Keys that either result touched since the evidence cut, with their values in the old and in the new result at the
    switch cut. Both mappings have the same keys; None: the result does not have the key.
    """

    old: Mapping[str, str | None]
    new: Mapping[str, str | None]

    def __len__(self) -> int:
        return len(self.new)

    @property
    def differing(self) -> int:
        """The number of keys in which the results differ."""
        return sum(map(ne, map(self.old.__getitem__, self.new), self.new.values()))

    @property
    def ratio(self) -> float:
        """Share of the touched keys in which the results differ. `since.changed_ratio` gives the share of all keys."""
        return self.differing / len(self) if len(self) else 0.0

    def changes(self, keys: Set[str], ahead: Mapping[str, str | None]) -> dict[str, str | None]:
        """What a consumer must get for `keys`: key -> new value; None: the new result does not have it. Leaves out what
        the segment `ahead` already says.
        """
        return touch_ups(keys, {key: self.new[key] for key in keys}, ahead)


def touch_up(
    old: Mapping[str, str | None],
    new: Mapping[str, str | None],
    one_sided: Set[str],
    fold: Path,
    *,
    of: str,
    reverse: bool,
) -> TouchUp:
    """Brings evidence up to date with the keys that `old` and `new` touched since (key -> last value).

    A key that only one side touched (`one_sided`) still has the value of the evidence cut on the other side; that value
    comes from the fold. `of`: the evidence's new release. `reverse`: it is the old one of this switch.

    Raises SwitchyardError if the fold is deleted.
    """
    if not one_sided:
        return TouchUp(old=old, new=new)
    before_old: dict[str, str | None] = {}
    before_new: dict[str, str | None] = {}
    at_cut = values_of(fold, one_sided, of)
    for key in one_sided:
        live, candidate = at_cut.get(key, (None, None))
        before_old[key], before_new[key] = (candidate, live) if reverse else (live, candidate)
    return TouchUp(old={**before_old, **old}, new={**before_new, **new})


def since_diff(evidence: EvidenceRecorded, touched: TouchUp, before: KeyCounts) -> tuple[int, int]:
    """How many more keys there are than at the diff of two tables, and in how many more they differ, by the keys that
    were touched since. `before`: the counts of these keys in the evidence.

    The second number is never too small. A diff may count a key as identical although its texts differ, because of its
    tolerance, or because the same value can be written in several ways. It keeps how many such keys there are, but not
    which. So a touched key counts as differing now if its texts differ. Among the touched keys whose texts already
    differed at the diff, up to that many are assumed to have counted as identical.
    """
    if evidence.forward is None:
        raise SwitchyardError(f"evidence {evidence.id} has no delta", fix=f"run `switchyard diff {evidence.new}` again")
    found = Comparison.of(evidence)
    differed = found.total - found.identical
    # the evidence's delta has every key whose texts differ
    alike = max(0, evidence.forward.end - evidence.forward.start - differed)
    no_more = before.one_sided + max(0, before.differing - alike)
    nowhere = sum(touched.old[key] is None for key, new in touched.new.items() if new is None)
    return len(touched) - nowhere - before.keys, touched.differing - no_more
