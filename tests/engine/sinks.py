"""A sink whose writer keeps lists instead of Kafka's topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.engine.checkpoint import Checkpoint
from pipelines.engine.destination import Destination
from pipelines.engine.metrics import BatchMetrics, DeadLetter
from pipelines.engine.records import Letter, Unsent
from pipelines.engine.sink import Sink
from pipelines.engine.writer import OutcomeUnknown
from pipelines.errors import SwitchyardError
from pipelines.model.app import Oversized
from pipelines.model.positions import ResultPosition, SourcePosition, Span
from pipelines.model.progress import Progress
from pipelines.model.reset import Replays
from tests.engine.test_checkpoint import commit, plan

RELEASE, RESULT, DEAD = "sums.v1", "sums.v1.g1", "sums.v1.dead-letters"
START = SourcePosition(sources={"trades": {0: 0}})


@dataclass
class FakeWriter:
    """A writer whose topics are lists. `fail`: method -> the error that it raises once."""

    written: list[tuple[str, Any]] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    offsets: list[Any] = field(default_factory=list)
    fail: dict[str, Exception] = field(default_factory=dict)
    # whether a commit with a lost answer was carried out
    lost_commit_counts: bool = False
    connected: bool = False
    connects: int = 0
    aborts: int = 0
    # what happens elsewhere at that moment
    while_connecting: Callable[[], object] = dict
    _open: list[tuple[str, Any]] | None = None

    def _may(self, name: str) -> None:
        if name in self.fail:
            raise self.fail.pop(name)

    def drop(self) -> None:
        self.connected = False

    def connect(self) -> Progress | None:
        self.connects += 1
        self.while_connecting()
        self.connected = True
        self._open = None
        return self.progress[-1] if self.progress else None

    def begin(self) -> None:
        self._may("begin")
        assert self._open is None, "a transaction is open already"
        self._open = []

    def write(
        self, records: Rows, topics: Mapping[str, str], replays: Replays, replayed: str, *, in_turn: bool
    ) -> list[Unsent]:
        assert self._open is not None
        unsent = []
        for key, value in records.values:
            if value == "too large":
                unsent.append(Unsent(RESULT, key.encode(), len(value), again=replayed == "all"))
            else:
                headers = [("replay", b"true")] if replayed == "all" else None
                self._open.append((topics[""], (key, value, headers)))
        self._may("write")
        return unsent

    def send(self, topic: str, letters: Iterable[Letter]) -> None:
        assert self._open is not None
        self._open += [(topic, (key, value, dict(headers))) for key, value, headers in letters]

    def acknowledged(self) -> ResultPosition:
        self._may("acknowledged")
        return ResultPosition(topics={RESULT: {0: len(self.written) + len(self._open or [])}})

    def commit_progress(self, progress: Progress, offsets: Mapping[str, Mapping[int, int]] | None) -> None:
        assert self._open is not None
        error = self.fail.pop("commit", None)
        if error is None or (isinstance(error, OutcomeUnknown) and self.lost_commit_counts):
            self.written += self._open
            self.progress.append(progress)
            self.offsets.append(offsets)
        if error is not None:
            self.connected = not isinstance(error, OutcomeUnknown)
            raise error
        self._open = None

    def abort(self) -> None:
        self.aborts += 1
        self._open = None


class Rows:
    """A batch's rows: how often they were executed, and into what."""

    def __init__(self, *values: tuple[str, str | None]) -> None:
        self.values, self.rows = values, len(values)
        self.executed: list[str] = []

    def execute(self) -> Rows:
        self.executed.append("written")
        return self

    def close(self) -> None:
        self.executed.append("closed")

    @property
    def write(self) -> Rows:
        return self

    def format(self, name: str) -> Rows:
        self.executed.append(name)
        return self

    def mode(self, _: str) -> Rows:
        return self

    def save(self) -> None:
        return


class World:
    """A sink on a fake writer, and a checkpoint whose batches the test plans."""

    def __init__(
        self,
        folder: Path,
        *,
        watermarked: bool = True,
        processed: tuple[Span, ...] = (),
        oversized: Oversized = "dead-letter",
    ) -> None:
        self.processed, self.oversized = processed, oversized
        self.checkpoint = Checkpoint(folder, {"trades": "trades"}, "sums.v1")
        self.writer = FakeWriter()
        self.malformed: list[DeadLetter] = []
        self.newer: SwitchyardError | None = None
        # time on the sink's clock, and how long Spark takes for a batch
        self.now_s, self.batch_s = 12.0, 0.0
        # whether a batch has read less than there is
        self.leaves_records = False
        # what happens elsewhere while it runs a batch
        self.while_reading: Callable[[], object] = dict
        self.sink = self.make(watermarked)
        self.sink.connect()
        self.sink.open()

    def make(self, watermarked: bool = True, token: int = 1) -> Sink:
        destination = Destination(release=RELEASE, generation=1, token=token, results={"": RESULT},
                        inputs={"trades": "trades"}, start=START, watermarked=watermarked, processed=self.processed,
                        oversized=self.oversized)  # fmt: skip
        return Sink(
            destination,
            self.writer,  # type: ignore[arg-type]
            self.checkpoint,
            serialize=self._spark,
            metrics=lambda: BatchMetrics(5, 1, self.malformed),
            execute=lambda rows: rows.execute(),  # type: ignore[operator, return-value]
            admit=self._admit,
            after_batch=lambda: self.leaves_records,
            clock=lambda: self.now_s,
            timer=lambda: self.now_s,
        )

    def _spark(self, rows: Any) -> Any:
        self.now_s += self.batch_s
        self.while_reading()
        return rows

    def _admit(self) -> None:
        if self.newer is not None:
            raise self.newer

    def plan(self, number: int, upto: int, *, watermark_ms: int = 0) -> None:
        plan(self.checkpoint, number, {"trades": {0: upto}}, watermark_ms=watermark_ms)

    def run(self, number: int, *rows: tuple[str, str | None], upto: int | None = None) -> Rows:
        """Plans batch `number`, runs it, and writes Spark's commit."""
        self.plan(number, (number + 1) * 10 if upto is None else upto)
        batch = Rows(*rows)
        self.sink.process_batch(batch, number)  # type: ignore[arg-type]
        commit(self.checkpoint, number, next_watermark_ms=0)
        return batch

    def comes(self, what: Callable[[], bool]) -> None:
        """Waits until it is so."""
        deadline = time.monotonic() + 10
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def comes_to_rest(self) -> None:
        """Waits for that, then shuts the sink."""
        self.comes(lambda: self.sink.turnstile.at_rest)
        self.sink.turnstile.shut()

    @contextmanager
    def under_way(self, number: int, *rows: tuple[str, str | None]) -> Iterator[None]:
        """Batch `number` runs while the block does."""
        begun, go_on, serialize = threading.Event(), threading.Event(), self.sink._serialize

        def slowly(found: Any) -> Any:
            begun.set()
            assert go_on.wait(10)
            return found

        self.sink._serialize = slowly
        with ThreadPoolExecutor(1) as pool:
            batch = pool.submit(self.run, number, *rows)
            try:
                assert begun.wait(10)
                yield
            finally:
                self.sink._serialize = serialize
                go_on.set()
            batch.result(10)
