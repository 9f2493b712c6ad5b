"""Applies the stages of a plan. Each stage does only what is left of it, so applying a plan again resumes it."""

from __future__ import annotations

from contextlib import suppress

from confluent_kafka import KafkaException

from orchestration.operations.applying.effects import EFFECTS
from orchestration.operations.applying.generations import give_back
from orchestration.operations.applying.meeting import order
from orchestration.operations.applying.switching import begin_reading
from orchestration.operations.applying.work import Work
from orchestration.operations.context import Context
from orchestration.operations.journal import has_started_generation
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.generations import BeginGeneration
from orchestration.operations.plans.stages.switching import Align, PrepareDelta
from pipelines.errors import Unavailable
from pipelines.kafka.failures import failure
from pipelines.model.entries import Entry


class Applier:
    """Applies the stages of one plan, in order."""

    def __init__(self, context: Context, plan: Plan) -> None:
        self._context = context
        self._plan = plan
        self._work = Work(context, plan)
        self._reached = 0

    def orders(self) -> list[Entry]:
        """The orders to drivers that may go into the step that opens the operation. That saves a step when seconds
        count.
        """
        if any(isinstance(stage, PrepareDelta) for stage in self._plan.stages):
            # preparing takes long, and must end before drivers pause
            return []
        return [order(self._plan.id, stage) for stage in self._plan.stages if isinstance(stage, Align)]

    @property
    def reached(self) -> int:
        """The number of the last stage that any attempt has begun, from 1; 0 before the first."""
        return self._reached

    def run(self) -> None:
        """Applies every stage that is left, and reports each one before it starts. Gives back every lease that is still
        held. After an outage it can be called again.
        """
        try:
            begin_reading(self._work, at_once=bool(self.orders()))
            left = self._left()
            for number, stage in enumerate(left, 1 + len(self._plan.stages) - len(left)):
                self._work.now()
                self._reached = max(self._reached, number)
                self._context.say(stage.describe())
                self.apply(stage)
        except BaseException:
            # an outage may not hide what has ended it: after Ctrl-C, nothing is tried again
            with suppress(Unavailable):
                self._give_back()
            raise
        else:
            self._give_back()
        finally:
            self._work.close()
            # for an attempt after an outage
            self._work = Work(self._context, self._plan, self._work.tokens)

    def _give_back(self) -> None:
        """Gives back the leases that are still held."""
        for name in list(self._work.tokens):
            give_back(self._work, name)

    def _left(self) -> tuple[Stage, ...]:
        """The stages that are left: once the plan has started its generation, only those after that stage."""
        stages = self._plan.stages
        if has_started_generation(self._context.registry.known, self._plan.id):
            return stages[1 + next(n for n, s in enumerate(stages) if isinstance(s, BeginGeneration)) :]
        return stages

    def apply(self, stage: Stage) -> None:
        """Applies one stage. Raises Refused if something is not as planned, Unavailable in an outage of Kafka or the bucket,
        SwitchyardError if the stage fails.
        """
        try:
            EFFECTS[type(stage)](self._work, stage)
        except KafkaException as error:
            raise failure(self._context.settings, error.args[0]) from error
