"""What a new version's definition changes, and what its consumers see of that. Plans show it."""

from __future__ import annotations

from collections.abc import Iterator

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
    was, now = live.types, new.types
    gone = [name for name in was if name not in now]
    added = [name for name in now if name not in was]
    other = [f"{name} from {was[name]} to {now[name]}" for name in now if name in was and was[name] != now[name]]
    if gone or added or other:
        parts = (
            f"without {join(gone)}" if gone else "",
            f"with {join(added)}" if added else "",
            f"{join(other)}" if other else "",
        )
        yield f"its columns change, {'; '.join(part for part in parts if part)}: consumers must be able to read both"
    if live.partitions != new.partitions:
        yield (
            f"it has {new.partitions} partitions instead of {live.partitions}: "
            "after a switch a key may be in another partition; a group with several members must expect that"
        )


def _of_app(live: ReleaseSpec, new: ReleaseSpec) -> Iterator[str]:
    if live.watermark != new.watermark:
        yield (
            f"the watermark changes from {live.watermark or 'none'} to {new.watermark or 'none'}: "
            "rows that one of them drops as late count in the other, and the diff shows them as changed"
        )


def _named(key: tuple[str, ...]) -> str:
    return f"({', '.join(key)})"
