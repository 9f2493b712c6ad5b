"""What a driver notices of its input without a batch, and that nothing is committed once it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from pipelines.engine import watch as module
from pipelines.engine.sink import Sink, Target
from pipelines.engine.watch import PartLost, Watch
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.settings import Settings
from tests.operations.builders import release

NAME = "sums.v1"
RESULT = f"{NAME}.g1"
AT = SourcePosition(sources={"trades": {0: 500}})


def looked(at: SourcePosition = AT, *, busy: bool = False, **options: Any) -> PartLost | None:
    """What a watch of the release, which stands `at`, finds."""
    settings = Settings(bootstrap_servers="127.0.0.1:1")
    return Watch(settings, release(NAME, state="live"), stands=lambda: (at, busy), **options).look()


def test_input_that_retention_deletes_before_it_is_read_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "admin", lambda _: None)
    monkeypatch.setattr(module, "first_of", lambda *_, **__: {0: 600})
    alarmed: list[PartLost] = []
    found = looked(alarm=alarmed.append)
    assert found is not None and "deleted by retention: trades[0] 500 to 599" in found.what
    assert "--missing-history accept" in found.fix and alarmed == [found]
    # a batch under way may have read it
    assert looked(busy=True) is None
    assert looked(SourcePosition(sources={"trades": {0: 600}})) is None


def test_a_batch_that_ends_while_kafka_is_asked_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "admin", lambda _: None)
    monkeypatch.setattr(module, "first_of", lambda *_, **__: {0: 600})
    stands = iter([(AT, False), (SourcePosition(sources={"trades": {0: 600}}), False)])
    settings = Settings(bootstrap_servers="127.0.0.1:1")
    assert Watch(settings, release(NAME, state="live"), stands=lambda: next(stands)).look() is None


class Forgetful:
    """A writer that counts what is committed."""

    def __init__(self) -> None:
        self.committed, self.given_up = 0, 0
        self.connected = True

    def commit(self, *_: object) -> None:
        self.committed += 1

    def begin(self) -> None:
        """Nothing to begin."""

    def give_up(self) -> None:
        self.given_up += 1


def test_nothing_is_committed_once_it_is_known(tmp_path: Path) -> None:
    writer = Forgetful()
    target = Target(release=NAME, generation=1, token=1, result_topic=RESULT, partitions=1, inputs={"trades": "trades"},
                    start=AT, watermarked=False)  # fmt: skip
    sink = Sink(target, cast(Any, writer), cast(Any, None), serialise=cast(Any, None), metrics=cast(Any, None))
    progress = Progress(release=NAME, generation=1, token=1, boundary=Boundary(batch_id=0, position=AT),
                        result=ResultPosition(topics={}), at_ms=0)  # fmt: skip
    sink._write(progress)
    assert writer.committed == 1
    sink.halt(PartLost("gone", fix="bring it back"))
    assert writer.given_up == 1
    with pytest.raises(PartLost):
        sink._write(progress)
    with pytest.raises(PartLost):
        sink.process_batch(cast(Any, None), 1)
    assert writer.committed == 1 and sink.failure is not None and sink.failure[0] == 1
