"""How long a release waits from the start of one batch to the start of the next."""

from __future__ import annotations

from dataclasses import dataclass

# A batch that takes longer has a large state, or busy cores. If the target can't be met, the pause after it is as long as
# the batch. Without that pause, records would have their results a quarter sooner, for twice the processor time
COSTLY_S = 0.5
# A longer pause means a larger batch. If pauses grew with batches without end, so would batches, at half of the load that a
# driver can bear
LONGEST_PAUSE_S = 1.0
# from the start of a batch to the start of the next while `reset --max-records-per-batch` slows a replay down, unless the
# setting `trigger_s` says something else
THROTTLED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """`least_s`: the least time from the start of a batch to the start of the next. `target_s`: how long a record should
    wait for its results, on average; 0: no longer than it must.
    """

    least_s: float = 0.0
    target_s: float = 0.0

    def every_s(self, batch_s: float, *, full: bool) -> float:
        """The time from the start of a batch that took `batch_s` to the start of the next.

        `full`: it has left records unread, so the next one does not wait. Records that come meanwhile wait for the next
        batch, which is half of this time on average, and then until that batch is committed.
        """
        if full or not self.target_s:
            return self.least_s
        every_s = 2 * (self.target_s - batch_s)
        if every_s < batch_s:
            # the target can't be met
            every_s = batch_s + (min(batch_s, LONGEST_PAUSE_S) if batch_s > COSTLY_S else 0.0)
        return max(self.least_s, every_s)
