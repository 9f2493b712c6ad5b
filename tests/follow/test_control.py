"""In what order a follower learns: a progress record counts only once the registry was read after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

from pipelines.follow.control import Control
from pipelines.kafka.snapshots import Folding
from pipelines.model.entries import Entry, encode
from pipelines.model.names import REGISTRY_TOPIC, progress_topic
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.settings import Settings
from tests.operations.builders import staged, switched

NAME = "sums.v1"
TOPIC = progress_topic(NAME)
PROGRESS = Progress(
    release=NAME, generation=1, token=1, boundary=Boundary(batch_id=7, position=SourcePosition(sources={})),
    result=ResultPosition(topics={}), at_ms=0,
)  # fmt: skip


def record(topic: str, offset: int, value: bytes) -> Any:
    said = {"topic": topic, "offset": offset, "value": value, "key": None, "error": None}
    return SimpleNamespace(**{name: lambda each=each: each for name, each in said.items()})


class Broker:
    """A consumer of both topics that hears of the progress first; of the registry's entries only when it asks again."""

    def __init__(self, *entries: Entry, away: bool = False) -> None:
        self.entries, self.away = entries, away
        self.coming = [[record(TOPIC, 40, PROGRESS.model_dump_json().encode())], []]
        self.coming.append([record(REGISTRY_TOPIC, n, encode(entry)) for n, entry in enumerate(entries)])

    def consume(self, **_: object) -> list[Any]:
        return self.coming.pop(0) if self.coming else []

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return 0, len(self.entries)


def control(broker: Broker) -> Control:
    made = Control.__new__(Control)
    made._settings, made._alias, made._told = Settings(bootstrap_servers="127.0.0.1:1"), "sums", None
    made._consumer = made._asking = cast(Any, broker)
    made._folding, made._next = Folding(), {REGISTRY_TOPIC: 0, TOPIC: 40}
    made._watched, made._incoming, made._progress = TOPIC, [], None
    return made


def test_who_knows_that_a_result_goes_on_knows_whether_it_was_told_to_leave_it() -> None:
    entries = [*staged(NAME, "sums.v2"), *switched(1, None, NAME), *switched(2, NAME, "sums.v2")]
    follower = control(Broker(*entries))
    assert follower.poll(0)
    assert follower.progress == PROGRESS
    assert [switch.new for switch in follower.state.chains["sums"]] == [NAME, "sums.v2"]


def test_progress_waits_where_the_registry_can_not_be_read() -> None:
    broker = Broker(*staged(NAME), *switched(1, None, NAME), away=True)
    follower = control(broker)
    assert not follower.poll(0)
    assert follower.progress is None
    broker.away = False
    follower.poll(0)
    assert follower.progress == PROGRESS and len(follower.state.chains["sums"]) == 1
