"""Positions, states and outputs that are not refused, one after the other, on a live release with a consumer.

After each reset, the result and what the consumer has must equal a recompute of the same input that shares no code with the
apps. docs/reset.md shows the cells as a table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.operations.planning.reset.plan import plan_reset
from orchestration.operations.planning.reset.request import Request
from orchestration.operations.plans.positions import PositionOptions
from pipelines.errors import Refused
from pipelines.kafka.clock import now_ms
from pipelines.model.reset import Target
from pipelines.settings import Settings
from tests.reset.world import PARTITIONS, Following, World, ends, folded, following, reader_of, world_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.broker]

# an offset within both partitions of every kind's input
MIDDLE = 20
TARGETS = {
    "earliest": Target(kind="earliest", text="--to-earliest"),
    "middle": Target(kind="offset", text=f"--to-offset {MIDDLE}", number=MIDDLE),
    "current": Target(kind="current", text="--to-current"),
    "latest": Target(kind="latest", text="--to-latest"),
}
TABLES, STREAMS = ("count", "windowed", "reader"), ("stateless", "joined", "stateful")
POSITIONS = (*TARGETS, "mixed")
# positions that leave out input come last: later resets would read it for the first time
TABLE = [
    ("clear", output, position)
    for positions in (("earliest", "middle"), ("current", "latest", "mixed"))
    for output in ("new", "truncate", "tombstone")
    for position in positions
]
STREAM = [("clear", output, position) for output in ("new", "truncate", "keep") for position in POSITIONS]
# `make test` runs these: each way for state, result and position once; the others are long tests
USUAL = {
    ("count", "clear", "new", "middle"),
    ("count", "clear", "truncate", "earliest"),
    ("count", "clear", "tombstone", "current"),
    ("count", "clear", "new", "mixed"),
    ("count", "keep", "keep", "latest"),
}
# a kept state with a position before the end of its input, which only a stream without state allows
WITHOUT_STATE = [("keep", "keep", "middle"), ("keep", "keep", "mixed")]
# a table and a stream go through all their cells; the other kinds through each position and each output at least once
WHOLE = ("count", "stateless")


def cells_of(kind: str) -> list[tuple[str, str, str]]:
    """State, output and position of each cell of a kind, in the order of its story. All other cells are refused."""
    cells = TABLE if kind in TABLES else STREAM
    if kind not in WHOLE:
        outputs = list(dict.fromkeys(output for _, output, _ in cells))
        # another pair of output and position for each kind
        turn = (*TABLES, *STREAMS).index(kind)
        cells = [("clear", outputs[(turn + number) % 3], position) for number, position in enumerate(POSITIONS)]
    return [*cells, ("keep", "keep", "latest"), *(WITHOUT_STATE if kind == "stateless" else [])]


# test_positions.py shows that every other name of a position gives one of these
ALL = [(kind, *cell) for kind in (*TABLES, *STREAMS) for cell in cells_of(kind)]
CELLS = [pytest.param(*cell, marks=[] if cell in USUAL else pytest.mark.long) for cell in ALL]


@dataclass
class Story:
    """A live release, its follower, and what both should have. `ranges`: the ranges of offsets in the result."""

    world: World
    follower: Following
    ranges: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)
    # a stream's consumer keeps what it got
    given: Counter[Any] = field(default_factory=Counter)
    # what its generations have read: from and to
    read: list[tuple[dict[int, int], dict[int, int]]] = field(default_factory=list)
    # whether no cell has failed in it
    whole: bool = True

    def at(self) -> dict[int, int]:
        last = self.world.context.progress(self.world.name)
        assert last is not None
        return dict(next(iter(last.boundary.position.sources.values())))

    def processed(self, partition: int, offset: int) -> bool:
        return any(begin.get(partition, 0) <= offset < end[partition] for begin, end in self.read)

    def in_result(self, until: Mapping[int, int] | None = None) -> Any:
        """What the result holds when it has read up to `until`; None: to the end."""
        chosen = [
            r for r in self.world.records()
            if any(start <= r.offset and (end is None or r.offset < end) for start, end in self.ranges[r.partition])
            and (until is None or r.offset < until[r.partition])
        ]  # fmt: skip
        return self.world.recompute(chosen)

    def moved(self, state: str, before: Mapping[int, int], start: Mapping[int, int]) -> None:
        for p in range(PARTITIONS):
            earlier = [(a, before[p] if b is None else b) for a, b in self.ranges[p]] if state == "keep" else []
            self.ranges[p] = [*earlier, (start[p], None)]


@contextmanager
def world_for(kind: str, settings: Settings, spark: SparkSession, folder: Path) -> Iterator[World]:
    if kind != "reader":
        with world_of(settings, spark, kind, folder) as world:
            yield world
        return
    with world_of(settings, spark, "stateless", folder) as upstream:
        upstream.make_live()
        inner = folder / "reader"
        inner.mkdir()
        with reader_of(upstream, inner) as world:
            yield world


Stories = Callable[[str], Story]


@pytest.fixture(scope="module")
def stories(broker: Settings, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stories]:
    """The story of a kind, which goes through all its cells. After a failed cell, a new one."""
    settings = broker.model_copy(update={"trigger_s": 0.1, "heartbeat_s": 0.2, "max_records_per_batch": 250})
    told: dict[str, Story] = {}
    with ExitStack() as stack:

        def of(kind: str) -> Story:
            if kind not in told or not told[kind].whole:
                # only one runs and is followed at a time
                for other in told.values():
                    other.follower.end()
                    other.world.stop()
                told[kind] = stack.enter_context(_story(kind, settings, spark, tmp_path_factory.mktemp(kind)))
            return told[kind]

        yield of


@contextmanager
def _story(kind: str, settings: Settings, spark: SparkSession, folder: Path) -> Iterator[Story]:
    with world_for(kind, settings, spark, folder) as world:
        world.make_live()
        with following(world) as follower:
            follower.comes_to(world.expected({}))
            story = Story(world, follower, {p: [(0, None)] for p in range(PARTITIONS)})
            if kind in STREAMS:
                story.given = Counter(world.expected({}))
            yield story


@pytest.mark.parametrize(("kind", "state", "output", "position"), CELLS)
def test_a_cell(stories: Stories, kind: str, state: str, output: str, position: str) -> None:
    story = stories(kind)
    assert story.follower.is_alive(), "another kind's story came between two cells of this one"
    story.whole = False
    _play(story, state, output, position)
    story.whole = True


def _play(story: Story, state: str, output: str, position: str) -> None:
    world, table = story.world, story.world.kind in ("count", "windowed")
    # a running release is stopped and started by the reset, unless the position depends on where it stands
    runs = state == "clear" and position in ("earliest", "middle")
    if not runs:
        world.stop()
    before, known_rows = story.at(), len(story.follower.got)
    if position in ("latest", "mixed"):
        # the reset leaves out these records
        world.produce(20)
    had = story.in_result(before)
    begun = dict(next(iter(world.release.under.start.sources.values()))) if world.release.under else {}
    story.read.append((begun, before))
    world.reset(_target(world, position), state=state, output=output, stop=True)
    start = dict(next(iter(world.release.generations[world.release.generation].start.sources.values())))
    story.moved(state, before, start)
    if not runs:
        world.start()
    world.produce(20)
    world.settle()
    if table:
        assert world.result() == story.in_result()
        story.follower.comes_to(story.in_result())
        behind = output in ("truncate", "tombstone") and position in ("earliest", "middle")
        if (
            world.kind == "count"
            and behind
            and all(story.processed(p, offset) for p in range(PARTITIONS) for offset in range(start[p], before[p]))
        ):
            # no row comes from both: the marked ones make the table as it was at the old end
            rows = story.follower.got[known_rows:]
            assert folded(world.kind, [r for r in rows if r.replay or r.value is None]) == story.in_result(before)
            assert not all(r.replay for r in rows)
        return
    met = output == "new" and position in ("earliest", "middle")
    if state == "keep" and position in ("middle", "mixed"):
        # without state: what is read again is written again
        had = Counter({source: count for source, count in had.items() if not _is_behind(source, start)})
    # consumers get what the new result has after the old one's end; of a kept result, everything new
    known = had if state == "keep" else story.in_result(before) if met else Counter()
    news = story.in_result() - known
    story.given += news
    story.follower.comes_to(story.given)
    if world.kind == "joined":
        # a pair is written with its later half, and names the other
        return
    # what was processed before is marked; what is new or was left out before is not
    for got in story.follower.got[len(story.follower.got) - news.total() :]:
        _, partition, offset = (got.source or "").rsplit(":", 2)
        assert got.replay == story.processed(int(partition), int(offset)), got


def _target(world: World, position: str) -> Target:
    """`mixed`: one partition goes back, the other to its end."""
    if position != "mixed":
        return TARGETS[position]
    return Target(
        kind="file", text="--from-file", offsets={world.topic: {0: MIDDLE, 1: ends(world.settings, world.topic)[1]}}
    )


def _is_behind(source: str, start: Mapping[int, int]) -> bool:
    _, partition, offset = source.rsplit(":", 2)
    return int(offset) >= start[int(partition)]


NAMES = ("earliest", "latest", "current", "offset", "shift", "datetime", "duration")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.long) for kind in (*WHOLE, "stateful")])
def test_however_a_position_is_named_it_is_the_same_reset(stories: Stories, kind: str, tmp_path: Path) -> None:
    """Each cell of position, state and output is refused or done just as with a file of the same offsets. So the cells
    above stand for all.
    """
    story = stories(kind)
    world = story.world
    world.stop()
    world.produce(20)
    for position in NAMES:
        target, offsets = _named(story, position)
        lines = tmp_path / f"{position}.csv"
        lines.write_text("".join(f"{world.topic},{p},{offset}\n" for p, offset in offsets.items()))
        by_file = PositionOptions(from_file=lines).target()
        done = 0
        for state in ("clear", "keep"):
            for output in ("new", "truncate", "tombstone", "keep"):
                found, expected = (_outcome(world, t, state, output) for t in (target, by_file))
                assert found == expected, (position, state, output)
                if (position, state, output) == ("offset", "keep", "keep"):
                    # with a kept state, going back would count its input twice
                    assert (found[0] == "refused" and "would count twice" in found[1]) == (kind != "stateless")
                done += found[0] == "stages"
        assert done >= 3, "no cell of it is run"


def _named(story: Story, position: str) -> tuple[Target, dict[int, int]]:
    """A position by its name, and the offsets that it means, found in another way."""
    world, here = story.world, story.at()
    end = ends(world.settings, world.topic)
    first = min(r.time_ms for r in world.records() if r.offset >= MIDDLE)
    at = {p: min(r.offset for r in world.records() if r.partition == p and r.time_ms >= first) for p in here}
    since_s = (now_ms() - first) / 1000
    match position:
        case "earliest":
            return PositionOptions(to_earliest=True).target(), dict.fromkeys(here, 0)
        case "latest":
            return PositionOptions(to_latest=True).target(), end
        case "current":
            return PositionOptions(to_current=True).target(), here
        case "offset":
            return PositionOptions(to_offset=MIDDLE).target(), dict.fromkeys(here, MIDDLE)
        case "shift":
            return PositionOptions(shift_by=-5).target(), {p: offset - 5 for p, offset in here.items()}
        case "datetime":
            text = datetime.fromtimestamp(first / 1000, UTC).isoformat(timespec="milliseconds")
            return PositionOptions(to_datetime=text).target(), at
        case "duration":
            return PositionOptions(by_duration=f"PT{since_s:.3f}S").target(lambda: first + round(since_s * 1000)), at
    raise AssertionError(position)


def _outcome(world: World, target: Target, state: Any, output: Any) -> tuple[str, Any]:
    try:
        plan = plan_reset(world.context, world.name, Request(target=target, state=state, output=output))
    except Refused as error:
        return "refused", str(error)
    stages = json.dumps(plan.for_journal()["stages"], default=lambda o: o.model_dump(mode="json"))
    found = json.loads(stages.replace(plan.id, "this"))
    for stage in found:
        # where it stood, which a plan that depends on it is checked against
        if stage["stage"] == "BeginGeneration":
            del stage["at"]
    return "stages", found
