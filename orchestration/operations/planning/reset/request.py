"""A reset as it is asked for: position, state and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestration.operations.plans.requests import ResetRequest, asked_inputs, asked_position
from pipelines.model.reset import Output, State, Target

# of each of its waits: for a driver, a replay, followers
TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A reset as asked for. `inputs`: topic -> partitions that move (None: all of them); empty: every input."""

    target: Target
    inputs: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    until: Target | None = None
    state: State | None = None
    output: Output | None = None
    stop: bool = False
    stay_stopped: bool = False
    force: bool = False
    max_records_per_batch: int | None = None
    timeout_s: float = TIMEOUT_S
    # the new result may lack input that the old one has and that Kafka no longer keeps
    accept_missing: bool = False

    @property
    def chosen_state(self) -> State:
        """Skipping a record keeps the state by default; every other reset clears it."""
        return self.state or ("keep" if self.target.kind == "skip" else "clear")

    @property
    def chosen_output(self) -> Output:
        """With a kept state the release keeps writing the same result; with a cleared one it writes a new topic."""
        return self.output or ("keep" if self.chosen_state == "keep" else "new")

    def asked(self) -> ResetRequest:
        """What was asked for, as data. With it, the same command finds the operation that it started."""
        return ResetRequest(
            to=asked_position(self.target),
            state=self.chosen_state,
            output=self.chosen_output,
            inputs=asked_inputs(self.inputs),
            until=asked_position(self.until) if self.until is not None else None,
            max_records_per_batch=self.max_records_per_batch,
            stay_stopped=self.stay_stopped,
        )

    def words(self) -> str:
        """What was asked for, in one line, for people. An older version, which keeps no request, finds its operation by
        it.
        """
        parts = [self.target.text, f"--state {self.chosen_state}", f"--output {self.chosen_output}"]
        return " ".join([*parts, *self._limits()])

    def command(self, name: str) -> str:
        """The command that asks for this reset of release `name`, as it is typed. Only the file's name is to be filled in."""
        parts = ["--from-file FILE" if self.target.kind == "file" else self.target.text]
        parts += [f"--state {self.state}"] if self.state else []
        parts += [f"--output {self.output}"] if self.output else []
        parts += self._limits()
        parts += ["--stop"] if self.stop else []
        parts += ["--force"] if self.force else []
        parts += [f"--timeout {self.timeout_s:g}s"] if self.timeout_s != TIMEOUT_S else []
        parts += ["--missing-history accept"] if self.accept_missing else []
        return " ".join(["switchyard reset", name, *parts, "--execute"])

    def _limits(self) -> list[str]:
        """The options that limit what moves, how far, and how fast."""
        named = sorted((t, ":" + ",".join(map(str, p)) if p else "") for t, p in self.inputs.items())
        scope = ",".join(f"{topic}{partitions}" for topic, partitions in named)
        parts = [f"--input-topics {scope}"] if scope else []
        parts += [f"--until {self.until.text}"] if self.until else []
        parts += [f"--max-records-per-batch {self.max_records_per_batch}"] if self.max_records_per_batch else []
        return [*parts, *(["--stay-stopped"] if self.stay_stopped else [])]
