"""Entries of the registry that this version can't read: what there is of them, and how they are made not to count."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.operations.context import Context
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, Table, new_id
from orchestration.operations.plans.stages.releases import Repair
from pipelines.errors import BadUsage
from pipelines.model.registry import RegistryState
from pipelines.model.unread import Unread


def in_short(state: RegistryState) -> str | None:
    """What `status` says of entries that can't be read; None: there are none."""
    count, held = unread_count(state)
    return unread_in_words(count, held) if count else None


def unread_count(state: RegistryState) -> tuple[int, int]:
    """How many entries can't be read, and how many of them must be understood."""
    return len(state.unread) + state.unread_before if state.unread else 0, sum(each.must for each in state.unread)


def unread_in_words(count: int, held: int) -> str:
    """That `count` entries can't be read, of which `held` must be understood."""
    said = f"{count:,} {'entry' if count == 1 else 'entries'} of the registry can't be read by this version"
    return said + (f", {held} of which must be understood: what they are about is held" if held else "")


def table_of(unread: Sequence[Unread]) -> Table:
    """Unread entries, one a row."""
    rows = tuple(
        (
            str(each.offset),
            each.kind or "unknown",
            each.writer or "unknown",
            each.reason,
            (", ".join(each.about) or "everything") if each.must else "nobody",
        )
        for each in unread
    )
    return Table(title="entries that can't be read", columns=("offset", "kind", "by", "why", "holds"), rows=rows)


def plan_repair(context: Context, offsets: Sequence[int] = (), *, reason: str | None = None) -> Plan:
    """Has unread entries not count any more: those at `offsets`, or all. The log keeps them.

    Raises BadUsage for an offset at which there is none, and where there is nothing to repair.
    """
    unread = context.registry.state().unread
    known = {each.offset: each for each in unread}
    if not known:
        raise BadUsage("every entry of the registry can be read", fix="nothing is to be repaired")
    wrong = sorted(set(offsets) - set(known))
    if wrong:
        raise BadUsage(f"there is no unread entry at offset {wrong[0]}", fix=f"there are: {', '.join(map(str, known))}")
    chosen = [known[offset] for offset in (sorted(set(offsets)) or known)]
    held = any(each.must for each in chosen)
    return Plan(
        id=new_id("repair"),
        operation=Kind.REPAIR,
        releases=(),
        stages=(Repair(offsets=tuple(each.offset for each in chosen)),),
        tables=(table_of(chosen),),
        reason=reason,
        warnings=(
            *(("what a newer version says there will be ignored here: upgrading is the safe way",) if held else ()),
            "this can't be undone; the entries stay in the log",
        ),
    )
