"""Decides a reset: where the release is, where it goes, and whether position, state and output make sense together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestration.operations.looking.in_use import unfinished_move
from orchestration.operations.looking.inputs import look
from orchestration.operations.looking.parts import losses
from orchestration.operations.looking.progress import by_group, progress_of
from orchestration.operations.planning.reset.consumers import is_read, read_by_consumers
from orchestration.operations.planning.reset.positions import Course, ends_of, filled, scope_of, where_to
from orchestration.operations.planning.reset.refusals import (
    must_be_stopped,
    refuse_lost_parts,
    refuse_objections,
    refuse_readers,
    refuse_unmoved_consumers,
    refuse_without_checkpoint,
)
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.reading import Reading
from pipelines.engine.copies import has_state
from pipelines.errors import Refused
from pipelines.model.parts import Loss, Part
from pipelines.model.positions import SourcePosition, Span
from pipelines.model.progress import Progress
from pipelines.model.registry import RegistryState, Release
from pipelines.model.reset import Choice, Partitions, in_one_piece, means_the_same, move, objections


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A reset that makes sense. `last`: the newest progress record; None: there is none. `old`: the current position;
    `new`: the position that it starts from. `end`: where it stops; None: it continues. `left_out`: the record that it
    skips.

    `seen`: the partitions of its inputs; `scope`: those that move. `lost`: its lost parts; `gone`: the kinds of lost
    parts without which no batch can be committed.
    """

    state: RegistryState
    release: Release
    request: Request
    choice: Choice
    lost: list[Loss]
    gone: set[Part]
    last: Progress | None
    seen: Partitions
    scope: set[tuple[str, int]]
    old: SourcePosition
    new: SourcePosition
    end: SourcePosition | None
    left_out: Span | None

    @property
    def generation(self) -> int:
        """The generation that the reset starts."""
        return self.release.next_generation

    @property
    def keeps(self) -> bool:
        """Whether the release has a state and the reset keeps it."""
        return self.choice.state == "keep" and not is_fresh(self.last)

    @property
    def has_own_topic(self) -> bool:
        """Whether the new generation writes a result topic of its own."""
        return self.choice.output in ("new", "truncate")

    @property
    def meets(self) -> bool:
        """Whether consumers move only when the new generation has read to the old one's end. Otherwise they move at
        once.
        """
        # a lost result, progress topic or input has no end to reach
        return self.choice.live and in_one_piece(self.choice) and not self.gone & {"result", "progress", "input"}

    @property
    def read(self) -> int:
        """The generation whose result consumers read."""
        return read_by_consumers(self.state, self.release)

    @property
    def for_consumers(self) -> Choice:
        """The choice as consumers see it. They may still read an earlier result, if an unfinished reset did not move
        them.
        """
        end = self.release.ended.get(self.read)
        if end is None or self.read == self.release.generation:
            return self.choice
        return replace(self.choice, move=move(filled(end.boundary.position, self.seen), self.continues))

    @property
    def continues(self) -> SourcePosition:
        """Where it reads input that it has not read before."""
        return self.left_out.end if self.left_out is not None else self.new

    @property
    def replay(self) -> int:
        """How many records the release reads again."""
        end = SourcePosition(sources=ends_of(self.seen)) if self.end is None else self.end
        left_out = 0 if self.left_out is None else self.left_out.end.records_since(self.left_out.start)
        return end.records_since(self.new) - left_out


def is_fresh(last: Progress | None) -> bool:
    """Whether there was no batch yet. Then there is no state to keep, and `--state keep` starts from nothing."""
    return last is None or last.boundary.batch_id < 0


def decide(context: Reading, state: RegistryState, release: Release, request: Request) -> Reset:
    """What `request` means for a release now. Raises as `plan_reset` does."""
    # an unfinished reset left the consumers of the live release on a result that it no longer writes
    if unfinished_move(state, release) is not None and request.chosen_output != "truncate":
        refuse_unmoved_consumers(state, release)
    runs = must_be_stopped(context, release, request)
    lost = losses(context, state, release)
    gone = refuse_lost_parts(lost, request)
    last = by_group(context, release) if "progress" in gone else progress_of(context, release)
    old = last.boundary.position if last else release.generations[release.generation].start
    seen = look(context, release, old)
    scope = scope_of(release, seen, request)
    if request.chosen_state == "keep" and not is_fresh(last):
        refuse_without_checkpoint(context, release)
    course = where_to(context, release, request, seen, scope, old)
    if is_fresh(last) and course.left_out is not None and course.left_out.start.same(old):
        # nothing to stop for: it starts after the record that is left out
        course = Course(new=course.left_out.end)
    choice = Choice(
        state=request.chosen_state,
        output=request.chosen_output,
        move=move(old, course.new if course.left_out is None else course.left_out.end),
        table=bool(release.spec.tables),
        stream=bool(release.spec.streams),
        stateful=_has_state(context, release),
        scoped=scope != set(seen),
        bounded=course.end is not None,
        live=is_read(state, release),
    )
    refuse_objections(objections(choice), force=request.force)
    if runs:
        _refuse_moving(release, request, choice)
    refuse_readers(context, state, release, choice)
    return Reset(
        state=state, release=release, request=request, choice=choice, lost=lost, gone=gone, last=last,
        seen=seen, scope=scope, old=old, new=course.new, end=course.end, left_out=course.left_out,
    )  # fmt: skip


def _has_state(context: Reading, release: Release) -> bool:
    """Whether this release's checkpoint holds state; False before the first batch, when there is nothing to lose."""
    return has_state(context.settings, release.name, release.generation)


def _refuse_moving(release: Release, request: Request, choice: Choice) -> None:
    """Raises Refused for a running release if the request depends on its current position."""
    until = request.until if request.until is not None and request.until.kind in ("current", "shift") else None
    if until is not None or not means_the_same(choice, request.target):
        which = request.target.text if until is None else f"--until {until.text}"
        raise Refused(
            f"{which} depends on the position of {release.name}, which changes until the release has stopped",
            fix=f"`switchyard stop {release.name} --execute` first",
        )
