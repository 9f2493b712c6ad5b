"""What the plan of a reset shows: costs, positions, warnings, and the way back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from orchestration.operations.looking.costs import Cost
from orchestration.operations.planning.reset.decision import Reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.plans.plan import Table
from orchestration.operations.plans.requests import asked_position
from orchestration.operations.reading import Reading
from pipelines.model.positions import SourcePosition, Span
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import Choice, Partitions, Target, objections


def cost_facts(cost: Cost, choice: Choice, *, fresh: bool = False) -> dict[str, str]:
    """What becomes of the state and the result. `fresh`: the present generation has not run a batch."""
    state = {"clear": "archived", "keep": "kept, and archived as it is now"}[choice.state]
    if choice.output == "truncate":
        state = "deleted, with its result"
    result = {
        "new": "archived; the replay writes a new topic",
        "truncate": "deleted, once its followers have passed the switch",
        "tombstone": "cleared by a tombstone per key",
        "keep": "kept; the release continues to write it",
    }[choice.output]
    # without its progress topic, a release may seem never to have run, though it has a state
    none = fresh and cost.state_bytes == 0
    return {
        "app state": "none: this generation has not run a batch" if none else f"{cost.state}: {state}",
        "result": f"{cost.result}: {result}",
    }


def positions_table(
    seen: Partitions,
    scope: set[tuple[str, int]],
    new: SourcePosition,
    end: SourcePosition | None = None,
    left_out: Span | None = None,
) -> Table:
    """Old and new positions per partition. `end`: where the replay stops. `left_out`: the record that it skips."""
    rows = []
    for (source, partition), here in sorted(seen.items()):
        to, out = new.sources[source][partition], 0
        stop = here.end if end is None else end.sources[source][partition]
        name = f"{here.topic}[{partition}]"
        if left_out is not None:
            first = left_out.start.sources[source][partition]
            if out := left_out.end.sources[source][partition] - first:
                name += f" (skips {first:,})"
        if (source, partition) not in scope:
            name += " (not moved)"
        rows.append((name, f"{here.position:,}", f"{to:,}", f"{to - here.position:+,}", f"{max(0, stop - to - out):,}"))
    return Table(title="positions", columns=("input", "old", "new", "difference", "to read"), rows=tuple(rows))


def figures_of(seen: Partitions, new: SourcePosition) -> list[dict[str, Any]]:
    return [
        {"topic": here.topic, "partition": partition, "old": here.position, "new": new.sources[source][partition]}
        for (source, partition), here in sorted(seen.items())
    ]


def warnings_of(reset: Reset, replay_s: float | None) -> tuple[str, ...]:
    """What an operator should know before starting the reset. `replay_s`: how long the replay takes, in seconds; None:
    unknown.
    """
    release = reset.release
    return (
        *_of_choice(reset.state, release, reset.choice),
        *([_fails_again(release)] if release.state == "failed" and reset.choice.state == "clear" else ()),
        *_left_out_before(reset),
        *_not_cleared(reset),
        *(loss.what for loss in reset.lost),
        *(_too_long(reset.request, replay_s) if reset.meets else ()),
    )


def _of_choice(state: RegistryState, release: Release, choice: Choice) -> list[str]:
    found = [f"{o.reason}; --force overrides this" for o in objections(choice) if o.forced]
    if choice.output == "keep" and choice.has_stream and choice.move in ("back", "mixed"):
        found.append("the same result gets these records again; they carry the header replay")
    if choice.bounded and choice.live:
        found.append(
            f"the release stops at the given end: consumers get no new results until `switchyard start {release.name} --execute`"
        )
    if choice.output in ("truncate", "tombstone"):
        gone = "deleted" if choice.output == "truncate" else "cleared"
        found.append(f"the {gone} result can't be brought back: this reset has no undo")
    if any(r.state == "standby" for r in state.of_app(release.spec.app) if r.name != release.name):
        found.append(
            "after this, a rollback needs a new `switchyard diff`, because the last one compared the old result"
        )
    return found


def _fails_again(release: Release) -> str:
    return f"{release.name} failed: {release.failure}; if a record caused that, it will fail again at that record"


def _left_out_before(reset: Reset) -> list[str]:
    """A warning that a table that starts from the middle of its input lacks what the old table has from before that."""
    release, choice = reset.release, reset.choice
    if not choice.table or choice.state == "keep" or release.generations[release.generation].start.dominates(reset.new):
        return []
    earliest = all(reset.new.sources[source][p] == here.first for (source, p), here in reset.seen.items())
    what = "retention deleted that input" if earliest else "--to-earliest reads that input again too"
    return [f"the result will not contain input from before the new position; {what}"]


def _not_cleared(reset: Reset) -> list[str]:
    if not reset.choice.live or not reset.choice.table or "result" not in reset.gone:
        return []
    return ["consumers keep the rows that only the lost result had, because their keys are no longer known"]


def _too_long(request: Request, replay_s: float | None) -> list[str]:
    if replay_s is None or replay_s < request.timeout_s:
        return []
    return [
        f"the replay takes about {replay_s:,.0f} s, but the reset waits only {request.timeout_s:,.0f} s for it; give a longer --timeout"
    ]


def left_out_record(target: Target) -> str | None:
    """The one record that `target` skips, as `--skip` names it; None: it skips none."""
    record = asked_position(target).record
    return ":".join(map(str, record)) if record is not None else None


def way_back(context: Reading, plan_id: str, *, same: bool) -> str:
    """The command that takes `plan_id` back, and until when. `same`: the release keeps writing the same result."""
    until = datetime.fromtimestamp(context.now_ms() / 1000 + context.settings.archive_keep_s, UTC)
    what = "; records written to the same result in the meantime stay" if same else ""
    return f"switchyard undo {plan_id} --stop --execute (until {until:%Y-%m-%d %H:%M} UTC){what}"
