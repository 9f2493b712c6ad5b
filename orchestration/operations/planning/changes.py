"""What a new version's definition changes, and what its consumers see of that. Plans show it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from orchestration.operations.planning.tables import table_changes
from orchestration.operations.plans.plan import join
from pipelines.model.entries import ReleaseSpec, ResultSpec


def changes(live: ReleaseSpec | None, new: ReleaseSpec) -> tuple[str, ...]:
    """A warning for each change of definition between a release and the one that follows it; nothing for the first."""
    if live is None:
        return ()
    of_results = [
        f"{f'result {name}: ' if name else ''}{said}"
        for name, result in new.outputs.items()
        if name in live.outputs
        for said in _of_result(live.outputs[name], result)
    ]
    return (*of_results, *_of_app(live, new), *table_changes(live, new))


def _of_result(live: ResultSpec, new: ResultSpec) -> Iterator[str]:
    if live.key != new.key:
        yield (
            f"the key changes from {_named(live.key)} to {_named(new.key)}: "
            + (
                "consumers get a tombstone for each old key, and every row of the new table"
                if new.table
                else "records of one old key may come in another order"
            )
        )
    if parts := _differing(live.types, new.types):
        yield f"its columns change, {parts}: consumers must be able to read both"
    if live.partitions != new.partitions:
        yield (
            f"it has {new.partitions} partitions instead of {live.partitions}: "
            "after a switch a key may be in another partition; a group with several members must expect that"
        )
    if live.table and new.table and live.final is not new.final:
        # the entry of an earlier build never says "final"
        yield (
            f'only {"the new" if new.final else "the other"} version is recorded as emit="final": '
            "it emits each row once, when the watermark has passed it"
        )
    if live.suite != new.suite:
        yield f"its suite changes from {live.suite or 'none'} to {new.suite or 'none'}: other checks decide what consumers get"


def _of_app(live: ReleaseSpec, new: ReleaseSpec) -> Iterator[str]:
    was, now = ({name: json.dumps(value) for name, value in spec.settings.items()} for spec in (live, new))
    if parts := _differing(was, now):
        yield f"the settings change, {parts}: the results may differ because of that"
    if live.watermark != new.watermark:
        yield (
            f"the watermark changes from {live.watermark or 'none'} to {new.watermark or 'none'}: "
            "rows that one of them drops as late count in the other, and the diff shows them as changed"
        )
    if live.comparable != new.comparable:
        yield (
            f"comparable changes from {live.comparable} to {new.comparable}: "
            "one version declares that its runs can't be compared, so a diff is not exact"
        )
    if live.reset_allowed is not new.reset_allowed:
        yield "resets are now allowed" if new.reset_allowed else "it can't be reset any more"


def _differing(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What `now` lacks, what it adds, and what has another value in it, in words; empty if nothing differs."""
    gone = [name for name in was if name not in now]
    added = [name for name in now if name not in was]
    other = [f"{name} from {was[name]} to {now[name]}" for name in now if name in was and was[name] != now[name]]
    parts = (
        f"without {join(gone)}" if gone else "",
        f"with {join(added)}" if added else "",
        join(other) if other else "",
    )
    return "; ".join(part for part in parts if part)


def _named(key: tuple[str, ...]) -> str:
    return f"({', '.join(key)})"
