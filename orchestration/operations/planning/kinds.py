"""Whether the consumers of one release can move to another: its results must have the same names and kinds."""

from __future__ import annotations

from pipelines.errors import Refused
from pipelines.model.entries import ReleaseSpec


def refuse_other_results(live: ReleaseSpec, new: ReleaseSpec) -> None:
    """Raises Refused if a consumer of one of `live`'s results would find none of that name and kind in `new`."""
    differing = [name for name in dict.fromkeys([*live.outputs, *new.outputs]) if _kind(live, name) != _kind(new, name)]
    if differing:
        what = "; ".join(
            f"{live.release} has {_kind(live, name)}, {new.release} has {_kind(new, name)}" for name in differing
        )
        raise Refused(
            f"consumers of {live.app} can't move to {new.release}: {what}",
            fix="give the new app another name, then `switchyard stage` it",
        )


def _kind(spec: ReleaseSpec, name: str) -> str:
    result, called = spec.outputs.get(name), f" called {name}" if name else ""
    if result is None:
        return f"no result{called or ' without a name'}"
    return f"a {'table' if result.table else 'stream'}{called}"
