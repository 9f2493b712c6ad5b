"""Releases, entries and states of a registry without a broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

from expectations.verdict import CheckResult, Verdict
from orchestration.operations.comparing.evidence import Comparison
from orchestration.operations.context import Context
from orchestration.operations.procedures.examine import ChecksFailed
from orchestration.operations.trials import Check
from pipelines.engine.code import FrozenCode
from pipelines.kafka.clock import now_ms
from pipelines.kafka.heartbeats import Heartbeats
from pipelines.kafka.registry import Registry
from pipelines.model.entries import (
    Entry,
    EvidenceRecorded,
    GenerationStarted,
    Holder,
    InputSpec,
    Promoted,
    ReleaseSpec,
    Staged,
    StateSet,
    Switch,
)
from pipelines.model.missing import InputNow, Replication
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Heartbeat, Progress
from pipelines.model.registry import RegistryState, Release, fold
from pipelines.model.signs import Sign
from pipelines.settings import Settings

NOWHERE = ResultPosition(topics={})
POSITION = SourcePosition(sources={"trades": {0: 5}})
# where the first generation of a.v1 ended
ENDED = Progress(
    release="a.v1",
    generation=1,
    token=1,
    boundary=Boundary(batch_id=1, position=POSITION),
    result=ResultPosition(topics={"a.v1.g1": {0: 9}}),
    at_ms=0,
)


def spec(name: str = "stock-stats.v1", **changes: Any) -> ReleaseSpec:
    app, _, version = name.rpartition(".v")
    return ReleaseSpec(
        **{
            "release": name,
            "app": app,
            "version": int(version),
            "module": "stock_stats",
            "code_digest": "0" * 64,
            "settings": {"window_s": 5},
            "inputs": {"trades": InputSpec(topic="trades", partitions=1)},
            "table": True,
            "key": ("ticker",),
            "partitions": 1,
            "schema_ddl": "`ticker` string, `trades` bigint",
            "suite": "stock_stats",
            "watermark": None,
            "comparable": "exact",
            "change": "first",
            **changes,
        }
    )


def generation(name: str, number: int = 1, **changes: Any) -> GenerationStarted:
    return GenerationStarted(**{"release": name, "generation": number, "start": POSITION, **changes})


def release(
    name: str = "stock-stats.v1", *, number: int = 1, start: SourcePosition = POSITION, **changes: Any
) -> Release:
    """A release in generation `number`, which began at `start`."""
    known = {name: changes.pop(name) for name in list(changes) if name in Release.__dataclass_fields__}
    under = generation(name, number, start=start)
    return Release(
        spec=spec(name, **changes), **{"generations": {number: under}, "under": under, "state": "ready", **known}
    )


def evidence(live: str, new: str, **changes: Any) -> EvidenceRecorded:
    summary = {"only_live": 1, "only_new": 2, "changed": 3, "identical": 4}
    return EvidenceRecorded(
        **{
            "id": "diff-1",
            "live": live,
            "live_generation": 1,
            "new": new,
            "new_generation": 1,
            "cut": POSITION,
            "live_result": ResultPosition(topics={}),
            "new_result": ResultPosition(topics={}),
            "summary": summary,
            **changes,
        }
    )


class _Every(frozenset[str]):
    def __contains__(self, name: object) -> bool:
        return True


EVERY_GROUP = _Every()
Offsets = Mapping[str, Mapping[int, int]]


@dataclass
class Kafka:
    """What a test says of the cluster. Where it says nothing: every topic and group is there, and nothing is known of them."""

    ids: Callable[[Iterable[str]], Mapping[str, str]] = lambda topics: dict.fromkeys(topics, "")
    inputs: Mapping[str, InputNow] = field(default_factory=dict)
    kept: Mapping[str, Replication] = field(default_factory=dict)
    groups: Set[str] = EVERY_GROUP
    names: Set[str] = frozenset()
    partitions: Callable[[str], int | None] = lambda _: 1
    first: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    # group -> topic -> partition -> offset and note
    committed: Mapping[str, Mapping[str, Mapping[int, tuple[int, str]]]] = field(default_factory=dict)

    def topic_ids(self, names: Iterable[str]) -> Mapping[str, str]:
        return self.ids(names)

    def inputs_now(self, names: Iterable[str]) -> Mapping[str, InputNow]:
        return self.inputs

    def replication(self, names: Iterable[str]) -> Mapping[str, Replication]:
        return {name: self.kept[name] for name in names if name in self.kept}

    def group_names(self) -> Set[str]:
        return self.groups

    def group_offsets(self, group: str) -> Mapping[str, Mapping[int, tuple[int, str]]]:
        return self.committed.get(group, {})

    def topic_names(self) -> Set[str]:
        return self.names

    def partition_count(self, name: str) -> int | None:
        return self.partitions(name)

    def first_offsets(self, names: Iterable[str]) -> Offsets:
        return self.first

    def end_offsets(self, names: Iterable[str]) -> Offsets:
        return self.end


class Heard(Heartbeats):
    """No driver is heard. `signs`: a process that carries out an operation -> the time of its newest sign of life."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.signs: dict[Holder, int] = {}

    def latest(self, *, window_s: float | None = None, now_ms: int | None = None) -> dict[str, Heartbeat]:
        return {}

    def sign_ms(self, sign: Sign) -> int | None:
        return self.signs.get(sign.holder)


class Log:
    """A registry of this process alone: every step is taken, its entries are kept."""

    # there is no broker
    kept = None
    topic_id = "a topic"
    refuses_signs: Exception | None = None
    knows_time = True

    def __init__(self, *entries: Entry) -> None:
        self.entries = list(entries)
        self.cluster = Kafka()
        self.heartbeats = Heard()

    @property
    def known(self) -> RegistryState:
        return fold(RegistryState(), self.entries)

    def now_ms(self) -> int:
        return now_ms()

    def state(self, *, snapshots: bool = True) -> RegistryState:
        return self.known

    def history(self) -> Iterator[Entry]:
        return iter(self.entries)

    def signs_of_life(self, sign: Sign) -> AbstractContextManager[None]:
        if self.refuses_signs is not None:
            raise self.refuses_signs
        return nullcontext()

    def poll(self, timeout_s: float) -> bool:
        return False

    def ensure(self) -> None:
        """It is there."""

    def ensure_heartbeats(self) -> bool:
        return False

    def step(
        self, decide: Callable[[RegistryState], Sequence[Entry]], *, op: str | None = None, reason: str | None = None
    ) -> RegistryState:
        taken = decide(self.known)
        self.entries += [e.model_copy(update={"op": e.op or op, "reason": e.reason or reason}) for e in taken]
        return self.known


def context_of(log: Log, kafka: Kafka | None = None, **also: Any) -> Context:
    """A context of that registry, with settings of nowhere: what would ask a broker fails. `kafka`: what is asked instead."""
    if kafka is not None:
        log.cluster = kafka
    registry, launcher = cast(Registry, log), cast(Any, None)
    return Context(settings=Settings(bootstrap_servers="127.0.0.1:1"), registry=registry, launcher=launcher, **also)


def tried(facts: Mapping[str, Any]) -> Callable[..., Mapping[str, Any]]:
    """A trial of an app without static tables, `trials.probe`, that finds `facts`."""
    facts = {"static": {}, "static_tables": {}, "watermark": None, **facts}

    def probe(settings: Settings, code: FrozenCode, app: str, given: Mapping[str, Any], check: Check) -> Any:
        check(facts)
        return facts

    return probe


def switch(number: int, old: str | None, new: str) -> Switch:
    return Switch(number=number, old=old, old_generation=1 if old else None, old_end=NOWHERE if old else None,
                  new=new, new_generation=1, new_start=ResultPosition(topics={f"{new}.g1": {0: 0}}))  # fmt: skip


def switched(number: int, old: str | None, new: str, *, op: str | None = None) -> list[Entry]:
    """What a switch enters: the link of the chain, and the states of both."""
    app = new.rpartition(".v")[0]
    entries: list[Entry] = [
        Promoted(alias=app, switch=switch(number, old, new), op=op),
        StateSet(release=new, state="live"),
    ]
    return entries if old is None else [*entries, StateSet(release=old, state="standby")]


def staged(*names: str) -> list[Entry]:
    """Releases in their first generation."""
    return [
        e
        for name in names
        for e in (Staged(spec=spec(name)), GenerationStarted(release=name, generation=1, start=POSITION))
    ]


def failed_checks() -> ChecksFailed:
    """What is said of `sums.v2`, of which 3 keys have changed, and whose volume is not what it should be."""
    volume = CheckResult(name="volume", outcome="failed", detail="between 9 and 11", unexpected=1)
    verdict = Verdict(suite="sums", release="sums.v2", generation=1, rows=4, results=(volume,))
    return ChecksFailed("sums.v2", Comparison(only_live=0, only_new=0, changed=3, identical=4), verdict)
