"""Whether the consumers of one release can move to another: by its results, their names, kinds and encodings, and its input."""

from __future__ import annotations

from pipelines.errors import Refused
from pipelines.model.entries import ReleaseSpec, ResultSpec


def refuse_other_results(live: ReleaseSpec, new: ReleaseSpec) -> None:
    """Raises Refused if `live` has a result, and `new` has none of that name and kind for its consumers."""
    differing = [name for name in dict.fromkeys([*live.outputs, *new.outputs]) if _kind(live, name) != _kind(new, name)]
    if differing:
        what = "; ".join(
            f"{live.release} has {_kind(live, name)}, {new.release} has {_kind(new, name)}" for name in differing
        )
        raise Refused(
            f"consumers of {live.app} can't move to {new.release}: {what}",
            fix="give the new app another name, then `switchyard stage` it",
        )


def refuse_other_encoding(earlier: ReleaseSpec, new: ReleaseSpec, *, is_live: bool) -> None:
    """Raises Refused if one of two releases writes a result in Avro, and the other writes it as JSON. `is_live`: the
    earlier one is.

    A release that was staged before results could be Avro has no schema in the registry: its results are JSON.
    """
    told = []
    for name, was in earlier.outputs.items():
        now = new.outputs.get(name)
        # consumers of another kind of result can't move anyway
        if now is None or now.table is not was.table or (was.avro is None) is (now.avro is None):
            continue
        result = f"result {name}" if name else "the result"
        told.append(f"{result} is {_encoding(was)} in {earlier.release} and {_encoding(now)} in {new.release}")
    if told:
        raise Refused(
            f"consumers of {earlier.app} can't read {new.release}: {'; '.join(told)}",
            fix="write it as before; or "
            + (
                "give the new app another name, then `switchyard stage` it"
                if is_live
                else f"`switchyard retire {earlier.release} --after 0s --execute`, as nobody reads it yet, then stage again"
            ),
        )


def refuse_other_input(live: ReleaseSpec, new: ReleaseSpec) -> None:
    """Raises Refused if a stream of `new` comes from different topics than that of `live`: consumers can't continue
    exactly.
    """
    if live.topics != new.topics and new.streams:
        raise Refused(
            f"consumers of a stream of {live.app} would miss records or get them twice: {other_input(live, new)}",
            fix="give the new app another name; or read the same topics, with --upstream if they are results of other apps",
        )


def other_input(live: ReleaseSpec, new: ReleaseSpec) -> str:
    """In words: which topics each of two releases reads."""
    one, other = (", ".join(f"{topic} as {source}" for source, topic in spec.topics.items()) for spec in (live, new))
    return f"{live.release} reads {one}; {new.release} reads {other}"


def _encoding(result: ResultSpec) -> str:
    return "JSON" if result.avro is None else "Avro"


def _kind(spec: ReleaseSpec, name: str) -> str:
    result, called = spec.outputs.get(name), f" called {name}" if name else ""
    if result is None:
        return f"no result{called or ' without a name'}"
    return f"a {'table' if result.table else 'stream'}{called}"
