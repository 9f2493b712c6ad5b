"""Plans to ignore registry entries that this version can't read."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.operations.looking.unread import table_of
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan, new_id
from orchestration.operations.plans.stages.releases import Repair
from orchestration.operations.reading import Reading
from pipelines.errors import BadUsage


def plan_repair(context: Reading, offsets: Sequence[int] = (), *, reason: str | None = None) -> Plan:
    """Plans to ignore unread entries: those at `offsets`, or all. They stay in the registry.

    Raises BadUsage for an offset without an unread entry, and if there is nothing to repair.
    """
    unread = context.registry.state().unread
    known = {each.offset: each for each in unread}
    if not known:
        raise BadUsage("every entry of the registry can be read", fix="there is nothing to repair")
    wrong = sorted(set(offsets) - set(known))
    if wrong:
        raise BadUsage(
            f"there is no unread entry at offset {wrong[0]}", fix=f"unread entries are at: {', '.join(map(str, known))}"
        )
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
            *(
                ("some of these entries must not be ignored, because that may do harm: if you can, upgrade instead",)
                if held
                else ()
            ),
            "this can't be undone; the entries stay in the registry",
        ),
    )
