"""What two streams got since they were compared: compared again at the switch, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.operations.applying.applier import Applier
from orchestration.operations.comparing.agreement import Agreement, Disagreement, Tally, identity_of
from orchestration.operations.comparing.since import changed_ratio
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.switching import VerifyStream
from pipelines.errors import Refused
from pipelines.kafka.offsets import end_of
from pipelines.model.entries import EvidenceRecorded
from pipelines.model.positions import ResultPosition
from pipelines.settings import Settings
from tests.operations.builders import Log, context_of, evidence, staged
from tests.shared.transactions import await_ends, transactional

# value and source record, or no source
Record = tuple[str, str | None]


@given(old=st.lists(st.sampled_from("abcd")), new=st.lists(st.sampled_from("abcd")))
def test_what_only_one_has_is_counted_whatever_the_order(old: list[str], new: list[str]) -> None:
    tally = Tally()
    for side, records in ((False, old), (True, new)):
        for record in records:
            tally.add(record.encode(), new=side)
    more = [sum(max(0, here.count(r) - there.count(r)) for r in "abcd") for here, there in ((old, new), (new, old))]
    assert tally.since == Disagreement(records=max(len(old), len(new)), differing=max(more))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"ab", b"c", "t:0:1"), (b"a", b"bc", "t:0:1")),
        ((b"a", b"1:1", "t:0:"), (b"a", b":1", "t:0:1")),
        ((b"a", b"b", "t:0:1"), (b"a", b"b", "t:0:2")),
        ((b"a", b"b", "t:0:1"), (b"a", b"b", None)),
    ],
)
def test_records_that_differ_in_anything_are_told_apart(one: Any, other: Any) -> None:
    def identity(record: tuple[bytes, bytes, str | None]) -> bytes:
        key, value, source = record
        headers = [("source", source.encode())] if source is not None else None
        message: Any = SimpleNamespace(key=lambda: key, value=lambda: value, headers=lambda: headers)
        return identity_of(message)

    assert identity(one) == identity(one) != identity(other)


def test_the_share_is_of_all_records() -> None:
    # 1 only live, 2 only new, 3 changed, 4 identical
    assert changed_ratio(evidence("a.v1", "a.v2"), more=90, differing=0) == 6 / 100
    assert changed_ratio(evidence("a.v1", "a.v2"), more=10, differing=4) == 10 / 20


@pytest.mark.parametrize(("limit", "refused"), [(None, False), (0.6, False), (0.4, True)])
def test_more_than_was_allowed_is_refused(limit: float | None, refused: bool) -> None:
    class Known(Agreement):
        def __init__(self) -> None:
            self._evidence = evidence("a.v1", "a.v2")

        def read_to(self, *_: object) -> Disagreement:
            return Disagreement(records=10, differing=4)

    said: list[str] = []
    stage = VerifyStream(evidence="diff-1", old="a.v1", new="a.v2", max_changed=limit)
    plan = Plan(id="promote-1", operation=Kind.PROMOTE, releases=("a.v2", "a.v1"), stages=(stage,))
    log = Log(*staged("a.v1", "a.v2"), evidence("a.v1", "a.v2"))
    applier: Any = Applier(context_of(log, say=said.append), plan)
    applier._work.since = {Agreement: Known()}
    applier._work.end = lambda *_: SimpleNamespace(result=ResultPosition(topics={}))
    if refused:
        with pytest.raises(
            Refused,
            match=r"50\.00% of the records now differ \(compared as text, without --tolerance\), more than --max-changed 40\.00%: 10 came since",
        ):
            applier.apply(stage)
    else:
        applier.apply(stage)
        assert said == ["10 records came since the evidence cut; 40.0% of them differ"]


class Streams:
    """Two results of two partitions each, compared when they held nothing."""

    def __init__(self, settings: Settings, topics: tuple[str, str]) -> None:
        self.settings, self.topics = settings, topics
        self._writers = [transactional(settings, topic, topic) for topic in topics]
        self._made: list[Agreement] = []
        self.evidence = EvidenceRecorded(
            **{**evidence("sums.v1", "sums.v2").model_dump(), "live_result": self.end(0), "new_result": self.end(1)}
        )

    def write(self, side: int, records: Mapping[int, Sequence[Record]], *, commit: bool = True) -> None:
        client = self._writers[side]
        client.begin_transaction()
        for partition, found in records.items():
            for value, source in found:
                headers: Any = [("replay", b"1"), ("source", source.encode())] if source else []
                client.produce(self.topics[side], value, "k", partition=partition, headers=headers)
        client.flush(10)
        (client.commit_transaction if commit else client.abort_transaction)(10)
        await_ends(self.settings, self.topics[side], 2)

    def end(self, side: int) -> ResultPosition:
        return ResultPosition(topics={self.topics[side]: end_of(self.settings, self.topics[side], 2)})

    def agreement(self, *, to: str = "sums.v2") -> Agreement:
        self._made.append(Agreement(self.settings, self.evidence, to=to))
        return self._made[-1]

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture
def streams(broker: Settings, fresh_topic: Callable[..., str]) -> Iterator[Streams]:
    with ExitStack() as made:
        yield made.enter_context(closing(Streams(broker, (fresh_topic(2), fresh_topic(2)))))


@pytest.mark.broker
@pytest.mark.parametrize("how", ["at the cut", "meanwhile", "before"])
@pytest.mark.parametrize("to", ["sums.v2", "sums.v1"])
def test_only_records_that_differ_do(streams: Streams, how: str, to: str) -> None:
    alike = [(str(n), f"orders:0:{n}") for n in range(40)]
    # other batches, another order of partitions, one that was aborted
    streams.write(0, {0: alike[:20]})
    streams.write(0, {1: alike[20:], 0: [("x", None)]})
    streams.write(1, {1: [("never", "orders:0:77")]}, commit=False)
    streams.write(1, {1: alike[20:], 0: [*alike[:20], ("x", None)]})
    agreement = streams.agreement(to=to)
    if how == "meanwhile":
        agreement.begin()
    elif how == "before":
        agreement.advance(lambda: None, few=1)
    # until the cut: one record of another value, one of another source, one twice
    streams.write(0, {0: [("1", "orders:1:1"), ("2", "orders:1:2"), ("3", "orders:1:3"), ("4", "orders:1:4")]})
    streams.write(1, {0: [("9", "orders:1:1"), ("2", "orders:1:9"), ("3", "orders:1:3"), ("3", "orders:1:3"), ("4", "orders:1:4")]})  # fmt: skip
    sides = (0, 1) if to == "sums.v2" else (1, 0)
    assert agreement.read_to(*(streams.end(side) for side in sides)) == Disagreement(records=46, differing=3)


@pytest.mark.broker
def test_what_was_read_past_the_cut_does_not_count(streams: Streams) -> None:
    """An operation that was left and is resumed."""
    for side in (0, 1):
        streams.write(side, {0: [("1", "orders:0:1")]})
    cut = streams.end(0), streams.end(1)
    streams.write(0, {0: [("2", "orders:0:2")]})
    agreement = streams.agreement()
    agreement.advance(lambda: None, few=1)
    assert agreement.read_to(*cut) == Disagreement(records=1, differing=0)


@pytest.mark.broker
def test_what_fails_meanwhile_is_read_at_the_cut(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    streams.write(0, {0: [("1", "orders:0:1")]})
    agreement = streams.agreement()
    with monkeypatch.context() as patch:
        patch.setattr("orchestration.operations.comparing.agreement.identity_of", lambda *_: 1 / 0)
        agreement.begin()
        agreement._in_advance.wait()
    assert "could not be read in advance: division by zero" in caplog.text
    assert agreement.read_to(streams.end(0), streams.end(1)) == Disagreement(records=1, differing=1)
