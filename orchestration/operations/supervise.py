"""What the supervisor starts: what is wanted and runs nowhere, with a growing pause between starts of the same release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestration.operations.overview import ReleaseStatus

# a driver that dies at once must not be started in a loop: 5 s, 10 s, 20 s ... 5 min
_FIRST_PAUSE_MS = 5_000
_LONGEST_PAUSE_MS = 300_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Starts of a release in a row that didn't last. `at_ms`: the last one, milliseconds since the epoch."""

    count: int
    at_ms: int

    def due(self, now: int) -> bool:
        """Whether the pause after this attempt is over."""
        pause_ms = min(_FIRST_PAUSE_MS * (1 << min(self.count - 1, 10)), _LONGEST_PAUSE_MS)
        return now - self.at_ms >= pause_ms


def to_start(found: list[ReleaseStatus], attempts: Mapping[str, Attempt], now: int) -> list[str]:
    """Names of the releases that are wanted running, are run by nobody, and whose pause is over."""
    down = [
        s.release.name for s in found if s.health == "down" and s.release.state not in ("failed", "retired", "aborted")
    ]
    return [name for name in down if name not in attempts or attempts[name].due(now)]
