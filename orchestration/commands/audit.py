"""What `switchyard log` says of an entry of the registry. The same line names who wrote the entry, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pipelines.model.entries import (
    AlignOrdered,
    Carried,
    Closed,
    Entry,
    EvidenceRecorded,
    FollowerRegistered,
    FollowerRemoved,
    GenerationStarted,
    HistoryAccepted,
    LeaseEnded,
    LeaseTaken,
    MarkOrdered,
    Opened,
    Promoted,
    Proposed,
    ReadyRecorded,
    Repaired,
    Staged,
    StateSet,
    SwitchAborted,
    TopicsKnown,
    VerdictRecorded,
    WantedSet,
)
from pipelines.model.missing import told


def in_words(entry: Entry) -> str:
    """What the entry says, in one line."""
    return _WORDS[type(entry)](entry)


def _opened(entry: Opened) -> str:
    facts = entry.plan.get("facts", {})
    # earlier builds named it otherwise
    request = facts.get("request") or facts.get("asked")
    return f"opened {entry.id}" + (f": {request}" if request else "")


def _closed(entry: Closed) -> str:
    return f"{entry.id} ended: {entry.outcome}" + (f"; {entry.detail}" if entry.detail else "")


def _align(entry: AlignOrdered) -> str:
    return f"asked {entry.release} to meet {entry.other}" + _for_switch(entry.switch)


def _mark(entry: MarkOrdered) -> str:
    return f"asked {entry.release} to flag a boundary" + _for_switch(entry.switch)


def _for_switch(number: int | None) -> str:
    return f" for switch {number}" if number is not None else " for a diff"


def _promoted(entry: Promoted) -> str:
    switch = entry.switch
    return f"switch {switch.number} of {entry.alias}: {switch.old or 'nothing'} -> {switch.new}"


def _aborted(entry: SwitchAborted) -> str:
    return f"ended {entry.id} without a switch" + (f" of {entry.alias}" if entry.alias else "")


def _evidence(entry: EvidenceRecorded) -> str:
    found = entry.summary
    return f"compared {entry.new} with {entry.live}: {found['changed']} changed, {found['identical']} identical"


def _verdict(entry: VerdictRecorded) -> str:
    counts = f"{entry.passed} passed, {entry.failed} failed, {entry.errored} errored"
    return f"checked {entry.release}, generation {entry.generation}: {counts}"


_CHANGES = {"none": "nothing changed", "first": "first release"}
_WORDS: Mapping[type[Entry], Callable[[Any], str]] = {
    Staged: lambda e: f"staged {e.spec.release} ({_CHANGES.get(e.spec.change, e.spec.change)})",
    GenerationStarted: lambda e: f"started generation {e.generation} of {e.release}",
    StateSet: lambda e: f"{e.release} is now {e.state}",
    WantedSet: lambda e: f"asked {e.release} to {'run' if e.wanted == 'running' else 'stop'}",
    LeaseTaken: lambda e: f"took lease {e.token} of {e.release}",
    LeaseEnded: lambda e: f"lease {e.token} of {e.release} ended",
    Opened: _opened,
    Carried: lambda e: f"process {e.holder.pid} on {e.holder.host} carries out {e.id}",
    Proposed: lambda e: f"proposed {e.id}, which waits for approval",
    Closed: _closed,
    AlignOrdered: _align,
    MarkOrdered: _mark,
    Promoted: _promoted,
    SwitchAborted: _aborted,
    EvidenceRecorded: _evidence,
    VerdictRecorded: _verdict,
    ReadyRecorded: lambda e: f"{e.release} has caught up, generation {e.generation}",
    HistoryAccepted: lambda e: f"accepted that {e.release} lacks input {told(e.missing)}",
    TopicsKnown: lambda e: f"recorded the topics of {e.release}, generation {e.generation}",
    FollowerRegistered: lambda e: f"registered {e.group} as a follower of {e.alias}",
    FollowerRemoved: lambda e: f"removed {e.group} as a follower of {e.alias}",
    Repaired: lambda e: f"ignored the entries at these offsets for good: {', '.join(map(str, e.offsets))}",
}
