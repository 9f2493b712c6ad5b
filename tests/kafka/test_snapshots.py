"""A snapshot of the registry limits a start and changes nothing else: a process knows the same as from the full log."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from orchestration.local.presence import say_gone
from orchestration.operations.context import open_context
from orchestration.operations.supervising.alerts import to_nobody
from orchestration.operations.supervising.decide import Memory
from orchestration.operations.supervising.turns import turn
from pipelines.follow.control import Control
from pipelines.kafka import snapshots
from pipelines.kafka.log import FencedWriter, read_tail
from pipelines.kafka.registry import Registry
from pipelines.kafka.snapshots import Folding
from pipelines.kafka.topics import delete_topics
from pipelines.model import snapshot as model
from pipelines.model.entries import Entry, FollowerRegistered, Promoted, Staged, Switch, encode, read
from pipelines.model.names import REGISTRY_TOPIC, SNAPSHOTS_TOPIC
from pipelines.model.registry import RegistryState, fold
from pipelines.model.snapshot import Snapshot, digest_of, newest_of, to_parts
from pipelines.settings import Settings
from tests.engine.test_lease import SPEC
from tests.model.test_registry_entries import ENTRIES, OLD_END

FIRST = Switch(
    number=1, old=None, old_generation=None, old_end=None, new="sums.v0", new_generation=1, new_start=OLD_END
)
EARLIER = [
    Staged(spec=SPEC.model_copy(update={"release": "sums.v0", "version": 0})),
    Promoted(alias="sums", switch=FIRST),
]
VALUES = [
    *map(encode, [*EARLIER, *ENTRIES]),
    b"garbage",
    b'{"kind": "moved", "release": "a.v1", "must_understand": true}',
]
RECORDS = [(2 * n, value) for n, value in enumerate(VALUES)]


def whole(records: Sequence[tuple[int, bytes]] = RECORDS) -> RegistryState:
    return fold(RegistryState(), [read(value, offset) for offset, value in records])


def after(count: int) -> Snapshot:
    """The snapshot after the first `count` entries."""
    return Snapshot(state=whole(RECORDS[:count]), offset=RECORDS[count - 1][0], digest=digest_of(VALUES[count - 1]))


@pytest.mark.parametrize("part_bytes", [200, 500_000])
def test_a_snapshot_is_read_back_as_it_was(part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_PART_BYTES", part_bytes)
    parts = to_parts(after(len(RECORDS)))
    assert (len(parts) > 3) == (part_bytes == 200)
    assert newest_of(parts.values()) == after(len(RECORDS))


@pytest.mark.parametrize("count", range(1, len(RECORDS) + 1))
def test_a_reader_that_starts_from_a_snapshot_knows_what_the_whole_log_says(count: int) -> None:
    found = newest_of(to_parts(after(count)).values())
    folding = Folding(found)
    assert folding.start == RECORDS[count - 1][0] and not folding.proven
    assert folding.take(RECORDS[count - 1 : count + 1]) and folding.proven
    assert folding.take(RECORDS[count + 1 :])
    assert folding.state == whole()
    last = folding.snapshot()
    assert last == Snapshot(state=whole(), offset=RECORDS[-1][0], digest=digest_of(VALUES[-1]))


@pytest.mark.parametrize("records", [[(8, b"other")], [(9, VALUES[4])], [(2, VALUES[4])]])
def test_a_snapshot_of_another_registry_is_ignored(records: list[tuple[int, bytes]]) -> None:
    folding = Folding(after(5))
    assert not folding.take(records)
    assert (folding.start, folding.proven, folding.state) == (0, True, RegistryState())
    assert folding.take(RECORDS) and folding.state == whole()


@pytest.mark.slow
def test_the_newest_complete_snapshot_of_this_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_PART_BYTES", 200)
    old, new = [*to_parts(after(5)).values()], [*to_parts(after(9)).values()]
    with monkeypatch.context() as patch:
        patch.setattr(model, "fold_version", lambda: "another")
        others = [*to_parts(after(12)).values()]
    assert newest_of([*others, *new, *old]) == after(9)
    # one that is cut off, one that is damaged, and one that is no snapshot
    assert newest_of([*old, *new[1:]]) == after(5)
    head, _, part = new[0].partition(b"\n")
    assert newest_of([*old, head + b"\n" + part[::-1], *new[1:]]) == after(5)
    lied = zlib.compress(b'{"releases": 3}')
    said = json.loads(head) | {"parts": 1, "sha256": digest_of(lied), "offset": 99}
    heads = [said | {"offset": inf} for inf in (float("inf"), float("nan"))] + [said | {"parts": float("inf")}]
    bomb = zlib.compress(b" " * 100 * 2**20 + b"{}", 9)
    heads.append(said | {"sha256": digest_of(bomb)})
    bodies = [lied, lied, lied, bomb]
    odd = [json.dumps(head).encode() + b"\n" + body for head, body in zip(heads, bodies, strict=True)]
    odd += [b"", b"null\n", b"[1]\n", b"{}\n", b"\xff\n", json.dumps(said).encode() + b"\n" + lied]
    assert newest_of([*old, *odd]) == after(5)
    assert newest_of(odd) is None


def test_one_with_another_state_than_it_names_is_ignored() -> None:
    [old], [new] = to_parts(after(5)).values(), to_parts(after(9)).values()
    # both are whole in themselves
    swapped = new.partition(b"\n")[0] + b"\n" + old.partition(b"\n")[2]
    assert newest_of([old, swapped]) == after(5)
    assert newest_of([swapped]) is None


@pytest.mark.parametrize(
    ("table", "name"),
    [("releases", "../../etc"), ("chains", "sums\x1b[2J"), ("operations", "a/b"), ("followers", "Sums")],
)
def test_a_name_that_no_entry_could_have_is_in_no_snapshot(table: str, name: str) -> None:
    state = after(len(RECORDS)).state
    odd = replace(state, **cast(Any, {table: {name: next(iter(getattr(state, table).values()))}}))
    assert newest_of(to_parts(replace(after(len(RECORDS)), state=odd)).values()) is None


def test_any_change_of_the_rules_makes_another_version() -> None:
    assert len(model.fold_version()) == 16
    assert {"registry.py", "unread.py", "progress.py"} <= {path.name for path in model.rules()}


# -- on a broker


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "EVERY", 20)


@pytest.fixture
def log(broker: Settings) -> Iterator[Callable[[int], None]]:
    """Writes that many more entries, three per transaction."""
    writer = FencedWriter(broker, REGISTRY_TOPIC, REGISTRY_TOPIC)
    count = 0

    def write(more: int) -> None:
        nonlocal count
        with Registry(broker) as registry:
            registry.step(lambda _: [FollowerRegistered(alias="a", group="first")])
        for at in range(count, count + more, 3):
            entries: list[Entry] = [FollowerRegistered(alias="a", group=f"g-{n}") for n in range(at, at + 3)]
            values = list(map(encode, entries))
            writer.append(lambda values=values: values)  # type: ignore[misc]
        count += more

    yield write
    delete_topics(broker, [REGISTRY_TOPIC, SNAPSHOTS_TOPIC])


def state_of(settings: Settings) -> RegistryState:
    """What the whole log says."""
    with Registry(settings) as registry:
        return fold(RegistryState(), registry.history())


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.usefixtures("often")
def test_readers_and_followers_start_from_the_newest_snapshot(broker: Settings, log: Callable[[int], None]) -> None:
    log(60)
    with Registry(broker) as registry:
        assert registry._folding.start == 0
        first = registry.state()
        assert first == state_of(broker)
    log(9)
    with Registry(broker) as registry:
        assert registry._folding.start >= 60
        state = registry.state()
        assert state == state_of(broker) != first
        # a few new entries are not worth a snapshot: there is still only one
        assert len(read_tail(broker, SNAPSHOTS_TOPIC, 10)) == 1
    control = Control(broker, "a")
    try:
        assert control._folding.start >= 60 and control.sync() == state
    finally:
        control.close()
    # the next one is written after as many entries again
    log(60)
    with Registry(broker) as registry:
        state = registry.state()
    with Registry(broker) as registry:
        assert registry._folding.start >= 129 and registry.state() == state == state_of(broker)


@pytest.mark.broker
@pytest.mark.usefixtures("often")
def test_a_supervisor_writes_a_snapshot_if_none_is_of_its_version(
    broker: Settings, log: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log(60)
    with Registry(broker) as registry:
        registry.state()
    # an upgrade: the snapshot is from another version
    monkeypatch.setattr(model, "fold_version", lambda: "another")
    context = open_context(broker)
    assert context.registry._folding.start == 0
    try:
        turn(context, Memory(), alert=to_nobody)
    finally:
        say_gone(broker)
        context.registry.close()
    with Registry(broker) as registry:
        assert registry._folding.start >= 60 and registry.state() == state_of(broker)
    control = Control(broker, "a")
    assert control._folding.start >= 60
    control.close()


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.usefixtures("often")
def test_a_snapshot_of_a_registry_that_was_deleted_is_ignored(broker: Settings, log: Callable[[int], None]) -> None:
    log(60)
    with Registry(broker) as registry:
        registry.state()
    assert read_tail(broker, SNAPSHOTS_TOPIC)
    delete_topics(broker, [REGISTRY_TOPIC])
    log(120)
    with Registry(broker) as registry:
        assert registry._folding.start == 0 and registry.state() == state_of(broker)
    assert len(state_of(broker).followers["a"]) == 121
