"""Applies the stages that move consumers from one release to another: the preparations, and the one step that counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestration.operations.applying.effects import applies
from orchestration.operations.applying.work import Work
from orchestration.operations.comparing.agreement import Agreement
from orchestration.operations.comparing.backlog import MEANWHILE_RECORDS
from orchestration.operations.comparing.delta import Delta
from orchestration.operations.comparing.delta_topic import write_delta
from orchestration.operations.comparing.evidence import narrowed
from orchestration.operations.comparing.fold import compare_at
from orchestration.operations.comparing.since import Since
from orchestration.operations.journal import aborting
from orchestration.operations.lifecycle import left_by_consumers
from orchestration.operations.plans.stages.switching import (
    AbortSwitch,
    AppendSwitch,
    Compare,
    PrepareDelta,
    VerifyStream,
    WriteDelta,
)
from pipelines.errors import Refused, SwitchyardError
from pipelines.kafka.progress import ProgressLost
from pipelines.model.entries import Entry, EvidenceRecorded, StateSet, Switch
from pipelines.model.registry import RegistryState
from pipelines.model.switch import promotion


@applies(Compare)
def compare_both(work: Work, stage: Compare) -> None:
    context, settings, plan_id = work.context, work.context.settings, work.plan.id
    state = context.registry.state()
    if any(e.id == plan_id for e in state.evidence):
        return
    live, new = state.releases[stage.live], state.releases[stage.new]
    here, there = work.end(stage.live, "evidence"), work.end(stage.new, "aligned")
    found = compare_at(
        settings,
        plan_id,
        live=(live.spec, here.result),
        new=(new.spec, there.result),
        tolerance=stage.tolerance,
        samples=stage.samples,
        check=work.check,
    )
    summary = {
        **found.as_json(),
        "live_late_dropped": _late(work, stage.live),
        "new_late_dropped": _late(work, stage.new),
        "live_watermark_ms": here.boundary.watermark_ms,
        "new_watermark_ms": there.boundary.watermark_ms,
    }
    tables = new.spec.tables
    # comparing may have taken long
    work.now()
    forward, backward = write_delta(settings, new.spec.app, plan_id, tables) if tables else (None, None)
    entry = EvidenceRecorded(
        id=plan_id,
        live=stage.live,
        live_generation=live.generation,
        new=stage.new,
        new_generation=new.generation,
        cut=here.boundary.position,
        live_result=here.result,
        new_result=there.result,
        summary=summary,
        forward=forward,
        backward=backward,
        apart=not here.boundary.position.same(there.boundary.position),
    )
    work.step(lambda _: [entry])


def _late(work: Work, name: str) -> int:
    try:
        newest = work.tail(name).newest
    except ProgressLost as error:
        work.context.say(f"{error.what}: how many late rows it dropped is unknown, and counts as 0")
        return 0
    return newest.total.late_dropped if newest is not None else 0


# -- what both wrote since the evidence


def begin_reading(work: Work, *, at_once: bool) -> None:
    """Opens what the plan reads of both results before it moves consumers. `at_once`: reads while the drivers meet."""
    for stage in work.plan.stages:
        # a plan that makes its own evidence has nothing to read yet
        if isinstance(stage, VerifyStream) or (isinstance(stage, WriteDelta) and stage.evidence != work.plan.id):
            _since(work, stage)
    if at_once:
        for since in work.since.values():
            since.begin()


def _since(work: Work, stage: WriteDelta | VerifyStream) -> Since[Any]:
    """What both have written since the evidence: in the tables of an app, or in its streams."""
    kind: type[Delta | Agreement] = Agreement if isinstance(stage, VerifyStream) else Delta
    if kind not in work.since:
        state = work.context.registry.known
        evidence = next(e for e in state.evidence if e.id == stage.evidence)
        spec = state.releases[stage.new].spec
        part = narrowed(evidence, spec.streams if kind is Agreement else spec.tables)
        work.since[kind] = kind(work.context.settings, part, to=stage.new)
    return work.since[kind]


@applies(PrepareDelta)
def read_ahead(work: Work, stage: PrepareDelta) -> None:
    if work.operation(work.context.registry.state()).align is not None:
        # resumed: the drivers are already meeting, and consumers may wait
        for since in work.since.values():
            since.begin()
        return

    def in_time() -> None:
        """Raises if the operation was ended, or is past its deadline, when anyone may end it."""
        work.context.registry.poll(0)
        if work.operation(work.context.registry.known).opened.deadline_ms < work.context.now_ms():
            raise SwitchyardError(
                f"the changes since the evidence could not be read before the deadline of {work.plan.id}",
                fix=f"run `switchyard diff {stage.new}` again first, so that there is less to read",
            )

    for since in work.since.values():
        since.advance(in_time, MEANWHILE_RECORDS)


@applies(WriteDelta)
def write_what_changed(work: Work, stage: WriteDelta) -> None:
    _read_to_the_cut(work, stage)


@applies(VerifyStream)
def verify_stream(work: Work, stage: VerifyStream) -> None:
    _read_to_the_cut(work, stage)


def _read_to_the_cut(work: Work, stage: WriteDelta | VerifyStream) -> None:
    """Reads what both wrote up to the cut. Raises Refused if the results now differ by more than `max_changed`."""
    since, spec = _since(work, stage), work.context.registry.known.releases[stage.new].spec
    results = spec.streams if isinstance(stage, VerifyStream) else spec.tables
    old, new = work.end(stage.old, "barrier").result, work.end(stage.new, "aligned").result
    found = since.read_to(old.only(results), new.only(results))
    came = f"{len(found):,} {since.came} since the evidence cut"
    if stage.max_changed is not None and (ratio := since.changed_ratio(found)) > stage.max_changed:
        raise Refused(
            f"{ratio:.2%} of the {since.counts} now differ (compared as text, without --tolerance), more than --max-changed {stage.max_changed:.2%}: {came}",
            fix=f"run `switchyard diff {stage.new}` again and look at it",
        )
    work.context.say(
        f"{len(found):,} {since.counts} {since.came} since the evidence cut; {found.ratio:.1%} of them differ"
    )
    work.now()
    work.segments += since.write(found)


# -- the switch


@applies(AppendSwitch)
def append_switch(work: Work, stage: AppendSwitch) -> None:
    work.step(lambda state: _switch(work, state, stage))


def _switch(work: Work, state: RegistryState, stage: AppendSwitch) -> Sequence[Entry]:
    if work.operation(state).promoted is not None:
        return []
    new = state.releases[stage.new]
    if stage.old is None:
        switch = Switch(number=stage.number, old=None, old_generation=None, old_end=None, new=stage.new,
                        new_generation=new.generation, new_start=new.result_start)  # fmt: skip
        return [*promotion(state, stage.alias, work.plan.id, switch), StateSet(release=stage.new, state="live")]
    barrier, aligned = work.end(stage.old, "barrier"), work.end(stage.new, "aligned")
    switch = Switch(
        number=stage.number,
        old=stage.old,
        # the generation whose result consumers read; a later generation may write to it too
        old_generation=state.chains[stage.alias][-1].new_generation,
        old_end=barrier.result,
        new=stage.new,
        new_generation=new.generation,
        new_start=aligned.result,
        delta=work.segments,
        cut=barrier.boundary.position,
        allowed=stage.allowed,
    )
    return [
        *promotion(state, stage.alias, work.plan.id, switch),
        StateSet(release=stage.new, state="live"),
        *left_by_consumers(state.releases[stage.old]),
    ]


@applies(AbortSwitch)
def abort_switch(work: Work, stage: AbortSwitch) -> None:
    work.step(lambda state: aborting(state, stage.operation, work.plan.reason))
