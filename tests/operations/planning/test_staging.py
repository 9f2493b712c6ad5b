"""What staging decides without a broker: what changed, against which release, and what a refused promotion lacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.operations.comparing.evidence import are_compared, evidence_for
from orchestration.operations.context import Context
from orchestration.operations.journal import aborting
from orchestration.operations.lifecycle import find_release, refuse_blocked, version_of
from orchestration.operations.looking import costs
from orchestration.operations.looking.costs import Cost
from orchestration.operations.looking.tables import TopicRead
from orchestration.operations.planning import stage as module
from orchestration.operations.planning.changes import changes
from orchestration.operations.planning.meeting import far_behind
from orchestration.operations.planning.readiness import MAX_EVIDENCE_AGE_S, not_checked, not_compared
from orchestration.operations.planning.stage import _change, _predecessor, change_in_words, model_for, plan_stage
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.releases import CreateTopic, RecordRelease, StoreTable
from orchestration.operations.procedures.wait import _measured_rate
from orchestration.operations.supervising.overview import _subjects
from pipelines.engine.known import table_beside
from pipelines.engine.table_file import as_file
from pipelines.errors import BadUsage, Refused
from pipelines.kafka.clock import now_ms
from pipelines.kafka.registry import Registry
from pipelines.model.entries import (
    AlignOrdered,
    Closed,
    GenerationStarted,
    Opened,
    Promoted,
    ReadyRecorded,
    ResultSpec,
    Staged,
    StateSet,
    Switch,
    TopicsKnown,
    VerdictRecorded,
)
from pipelines.model.missing import NO_LIMIT_MS, InputNow
from pipelines.model.positions import ResultPosition
from pipelines.model.progress import Heartbeat
from pipelines.model.registry import RegistryState, Release, fold
from pipelines.settings import Settings
from tests.operations.builders import Kafka, Log, context_of, evidence, release, spec, staged, switched, tried

RESULT: dict[str, Any] = {
    "schema_ddl": "`ticker` string, `trades` bigint",
    "key": ("ticker",),
    "table": True,
    "partitions": 1,
    "suite": None,
}


@pytest.mark.parametrize(
    ("result", "window_s", "digest", "expected"),
    [
        ({}, 5, "0" * 64, "none"),
        ({}, 6, "0" * 64, "settings"),
        ({}, 5, "1" * 64, "code"),
        ({}, 6, "1" * 64, "code"),
        ({"schema_ddl": "`ticker` string"}, 5, "0" * 64, "schema"),
        ({"key": ("ticker", "side")}, 5, "1" * 64, "schema"),
    ],
)
def test_a_change_is_classified_by_what_weighs_most(
    result: dict[str, Any], window_s: int, digest: str, expected: str
) -> None:
    results = {"": ResultSpec(**{**RESULT, **result})}
    assert _change(release(), results, {"window_s": window_s}, digest) == expected


def test_the_first_release_changes_nothing() -> None:
    assert _change(None, {"": ResultSpec(**RESULT)}, {}, "0" * 64) == "first"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({}, []),
        ({"key": ("ticker", "side")}, ["the key changes from (ticker) to (ticker, side): consumers get a tombstone for each old key"]),
        ({"schema_ddl": "`ticker` string"}, ["its columns change, without trades: consumers must be able to read both"]),
        (
            {"schema_ddl": "`ticker` string, `trades` int, `s` struct<a:int,b:map<string,int>>"},
            ["its columns change, with s; trades from bigint to int"],
        ),
        ({"partitions": 8}, ["it has 8 partitions instead of 1"]),
        ({"final": True}, ['only the new version is recorded as emit="final": it emits each row once']),
        ({"suite": "word_count"}, ["its suite changes from stock_stats to word_count"]),
        ({"suite": None}, ["its suite changes from stock_stats to none"]),
        (
            {"table": False, "key": (), "schema_ddl": "`trades` bigint"},
            ["the key changes from (ticker) to (): records of one old key", "its columns change, without ticker"],
        ),
    ],
)  # fmt: skip
def test_each_change_of_a_definition_is_told(result: dict[str, Any], said: list[str]) -> None:
    live, new = spec("stock-stats.v1"), spec("stock-stats.v2", **result)
    told = changes(live, new)
    assert len(told) == len(said) and all(one.startswith(other) for one, other in zip(told, said, strict=True)), told
    assert changes(None, new) == ()
    named = (
        {"counts": live.outputs[""]},
        {"counts": new.outputs[""], "new": ResultSpec(**RESULT)},
    )
    of_result = changes(spec("stock-stats.v1", results=named[0]), spec("stock-stats.v2", results=named[1]))
    assert all(one.startswith("result counts: ") for one in of_result) and len(of_result) == len(said)


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ({"watermark": None}, {"watermark": "10 seconds"}, "the watermark changes from none to 10 seconds: rows that"),
        ({}, {"settings": {"window_s": 6}}, "the settings change, window_s from 5 to 6: the results may differ"),
        (
            {"settings": {"window_s": 5, "top": 3, "clock": "event"}},
            {"settings": {"window_s": 5, "clock": "wall", "advance_s": 1}},
            'the settings change, without top; with advance_s; clock from "event" to "wall": ',
        ),
        (
            {},
            {"comparable": "no"},
            "comparable changes from exact to no: one version declares that its runs can't be compared",
        ),
        ({}, {"reset_allowed": False}, "it can't be reset any more"),
        ({"reset_allowed": False}, {}, "resets are now allowed"),
        (
            {"final": True},
            {},
            'only the other version is recorded as emit="final": it emits each row once',
        ),
    ],
)
def test_each_change_of_an_app_is_told(was: dict[str, Any], now: dict[str, Any], said: str) -> None:
    [told] = changes(spec("stock-stats.v1", **was), spec("stock-stats.v2", **now))
    assert told.startswith(said)


def test_a_stream_does_not_emit_what_a_table_did() -> None:
    live, new = spec("a.v1", final=True), spec("a.v2", table=False)
    assert changes(live, new) == ()


def test_a_plan_names_a_changed_setting(stage: Callable[..., Plan]) -> None:
    plan = stage(Log(*staged("a.v1"), *switched(1, None, "a.v1")), suite="stock_stats", settings={"window_s": 60})
    assert plan.warnings == ("the settings change, window_s from 5 to 60: the results may differ because of that",)
    assert plan.facts["change"] == "code differs from a.v1"
    assert plan.facts["settings"] == '{"window_s": 60}'


def test_a_plan_says_what_changes_in_words(stage: Callable[..., Plan]) -> None:
    facts = stage(Log()).facts
    assert (facts["change"], facts["settings"]) == ("first release", "none")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("none", "code and settings as in a.v1"),
        ("settings", "settings differ from a.v1"),
        ("code", "code differs from a.v1"),
        ("schema", "key or columns differ from a.v1"),
    ],
)
def test_each_kind_of_change_has_words(change: str, said: str) -> None:
    assert change_in_words(spec("a.v2", change=change), release("a.v1")) == said


def test_a_plan_records_and_names_that_rows_of_a_table_come_once(stage: Callable[..., Plan]) -> None:
    log = Log(*staged("a.v1"), *switched(1, None, "a.v1"))
    final = {**RESULT, "suite": "stock_stats", "final": True}
    plan = stage(log, settings={"window_s": 5}, results={"": final})
    assert [warning.partition(":")[0] for warning in plan.warnings] == [
        'only the new version is recorded as emit="final"'
    ]
    [record] = [each for each in plan.stages if isinstance(each, RecordRelease)]
    [entry] = [each for each in record.entries if isinstance(each, Staged)]
    assert entry.spec.outputs[""].final
    # an entry of an earlier build does not have the word
    assert "final" not in spec("a.v1").model_dump_json(exclude_defaults=True)


def state(*names: str, live: str | None = None, **states: str) -> RegistryState:
    entries: list[Any] = [Staged(spec=spec(name), at_ms=1) for name in names]
    entries += [StateSet(release=n.replace("_", ".v"), state=s) for n, s in states.items()]  # type: ignore[arg-type]
    if live is not None:
        start = ResultPosition(topics={})
        switch = Switch(
            number=1, old=None, old_generation=None, old_end=None, new=live, new_generation=1, new_start=start
        )
        entries.append(Promoted(alias=live.rpartition(".v")[0], switch=switch))
    return fold(RegistryState(), entries)


def test_a_change_is_against_the_live_release_else_the_newest_that_is_in_use() -> None:
    known = state("a.v1", "a.v2", "a.v3", live="a.v1", a_3="retired")
    found = _predecessor(known, known.of_app("a"), "a")
    assert found is not None and found.name == "a.v1"
    known = state("a.v1", "a.v2", "a.v3", a_3="retired")
    found = _predecessor(known, known.of_app("a"), "a")
    assert found is not None and found.name == "a.v2"
    assert _predecessor(RegistryState(), [], "a") is None


def test_code_is_taken_of_a_folder_or_of_a_release_of_the_same_app() -> None:
    known = state("a.v1", "b.v1")
    assert model_for(known, "a", "a.v1", None).name == "a.v1"
    with pytest.raises(BadUsage, match=r"--from src and --same-as a\.v1 can't be used together"):
        model_for(known, "a", "a.v1", Path("src"))
    with pytest.raises(BadUsage, match=r"b\.v1 is a release of b, not of a"):
        model_for(known, "a", "b.v1", None)
    with pytest.raises(BadUsage, match=r"a\.v9"):
        model_for(known, "a", "a.v9", None)


def test_a_suite_that_there_is_not_is_found_at_staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text("X = 1\n")

    def counted(_: str) -> int:
        raise LookupError("the inputs are looked at")

    context = context_of(Log(), Kafka(partitions=counted))
    for suite, error in (("stock_stat", BadUsage), ("stock_stats", LookupError), (None, LookupError)):
        facts = {
            "suites": {"": suite} if suite else {}, "sources": ["lines"], "inputs": {"lines": "lines"}, "upstream": {},
        }  # fmt: skip
        monkeypatch.setattr(module, "probe", tried(facts))
        with pytest.raises(error) as found:
            plan_stage(context, "sums", code_dir=tmp_path)
        if isinstance(found.value, BadUsage):
            assert found.value.what == "there is no suite 'stock_stat'"
            assert "the nearest is stock_stats" in found.value.fix


def test_every_input_that_there_is_not_is_named_with_the_command_that_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("X = 1\n")
    context = context_of(Log(), Kafka(partitions=lambda topic: 3 if topic == "there" else None))
    create = (
        "kafka-topics.sh --bootstrap-server 127.0.0.1:1 --create --topic {} --partitions {} --config retention.ms=-1 "
        "--config retention.bytes=-1"
    )

    def refused(app: str, **inputs: str) -> BadUsage:
        monkeypatch.setattr(
            module, "probe", tried({"suites": {}, "sources": list(inputs), "inputs": inputs, "upstream": {}})
        )
        with pytest.raises(BadUsage) as found:
            plan_stage(context, app, code_dir=tmp_path)
        return found.value

    found = refused("sums", left="there", right="nowhere", third="not-here")
    assert found.what == (
        "input right of sums: topic nowhere does not exist; input third of sums: topic not-here does not exist"
    )
    assert found.fix == f"create them: `{create.format('nowhere', 4)}`, `{create.format('not-here', 4)}`"
    # an app that comes with input: its topic is as `produce` makes it
    found = refused("stock-stats", trades="trades")
    assert found.fix == (
        f"create it: `{create.format('trades', 4)}`, or let `switchyard produce stock-stats --history 100000` create and fill it"
    )
    secure = replace(context, settings=Settings(bootstrap_servers="b:9093", kafka={"sasl.username": "ann"}))
    lines: dict[str, Any] = {"suites": {}, "sources": ["lines"], "inputs": {"lines": "lines"}, "upstream": {}}
    monkeypatch.setattr(module, "probe", tried({**lines, "watermark": "5 seconds"}))
    with pytest.raises(BadUsage) as error:
        plan_stage(secure, "sums", code_dir=tmp_path)
    assert "--bootstrap-server b:9093 --command-config admin.properties --create" in error.value.fix
    assert "--config message.timestamp.after.max.ms=5000`" in error.value.fix
    # another topic than the one that `produce` fills
    assert "switchyard produce" not in refused("stock-stats", trades="elsewhere").fix


PROBED: dict[str, Any] = {
    "module": "sums", "settings": {}, "inputs": {"trades": "trades"}, "results": {"": RESULT}, "watermark": None,
    "watermark_delay_ms": None,
    "comparable": "exact", "reset_allowed": True, "tables": [], "suites": {}, "notes": [],
    "sources": ["trades"], "upstream": {},
}  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Plans version 3 of app a, of which nobody has measured but v1, at 500 records/s."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("X = 1\n")
    monkeypatch.setattr(module, "processed", lambda *_: ())
    monkeypatch.setattr(costs, "cost_of", lambda *_: Cost(state_bytes=2048, result_records=7, result_bytes=1024))

    def plan(log: Log, *, compacted: bool = False, ahead_ms: int = 0, **facts: Any) -> Plan:
        result = RESULT | {name: facts.pop(name) for name in list(facts) if name in RESULT}
        monkeypatch.setattr(module, "probe", tried({**PROBED, "results": {"": result}, **facts}))
        known = World(
            settings=Settings(state_dir=tmp_path),
            registry=cast(Registry, log),
            launcher=cast(Any, None),
        )
        odd = compacted or ahead_ms
        now = {"trades": InputNow(first={0: 10}, compacted=compacted, ahead_ms=ahead_ms)} if odd else {}
        log.cluster = Kafka(first={"trades": {0: 10}}, end={"trades": {0: 1010}}, inputs=now)
        object.__setattr__(known, "newest", SimpleNamespace())
        return plan_stage(known, "a", version=3, code_dir=tmp_path / "code")

    return plan


class World(Context):
    newest: Any

    def progress(self, release: str) -> Any:
        return self.newest


def test_consumers_of_a_table_are_not_given_a_stream_nor_the_other_way_round(stage: Callable[..., Plan]) -> None:
    log = Log(*staged("a.v1", "a.v2"), *switched(1, None, "a.v1"))
    with pytest.raises(
        Refused, match=r"consumers of a can't move to a\.v3: a\.v1 has a table, a\.v3 has a stream\n"
    ) as caught:
        stage(log, table=False)
    assert caught.value.fix == "give the new app another name, then `switchyard stage` it"
    assert stage(log).stages
    # nobody follows it yet
    assert stage(Log(*staged("a.v1", "a.v2")), table=False).stages


AVRO = '{"type": "record", "name": "trade", "fields": [{"name": "trades", "type": "long"}]}'
STREAM = {**RESULT, "table": False}


@pytest.mark.parametrize(("was", "now", "words"), [(None, AVRO, ("JSON", "Avro")), (AVRO, None, ("Avro", "JSON"))])
@pytest.mark.parametrize("name", ["", "alerts"])
@pytest.mark.parametrize("is_live", [True, False])
def test_a_result_does_not_change_between_json_and_avro(
    stage: Callable[..., Plan], was: str | None, now: str | None, words: tuple[str, str], name: str, is_live: bool
) -> None:
    def results(avro: str | None) -> dict[str, Any]:
        return {name: {**STREAM, "avro": avro}, **({"counts": RESULT} if name else {})}

    earlier = {each: ResultSpec(**result) for each, result in results(was).items()}
    known = spec("a.v1", results=earlier) if name else spec("a.v1", **results(was)[""])
    # an entry of before there were Avro results has no such field
    assert was is not None or "avro" not in known.model_dump_json(exclude_defaults=True)
    log = Log(Staged(spec=known), *(switched(1, None, "a.v1") if is_live else []))
    with pytest.raises(Refused) as refused:
        stage(log, results=results(now))
    result = f"result {name}" if name else "the result"
    assert refused.value.what == (
        f"consumers of a can't read a.v3: {result} is {words[0]} in a.v1 and {words[1]} in a.v3"
    )
    way_out = (
        "give the new app another name, then `switchyard stage` it"
        if is_live
        else "`switchyard retire a.v1 --after 0s --execute`, as nobody reads it yet, then stage again"
    )
    assert refused.value.fix == f"write it as before; or {way_out}"
    assert stage(log, results=results(was)).stages


def test_consumers_of_several_results_find_each_again(stage: Callable[..., Plan]) -> None:
    two = {"counts": RESULT, "alerts": {**RESULT, "table": False, "key": ()}}
    named = {name: ResultSpec(**result) for name, result in two.items()}
    live = [Staged(spec=spec("a.v1", results=named)), *staged("a.v2"), *switched(1, None, "a.v1")]
    plan = stage(Log(*live), results=two, settings={"window_s": 5})
    assert [s.name for s in plan.stages if isinstance(s, CreateTopic)][:2] == ["a.v3.g1.counts", "a.v3.g1.alerts"]
    assert plan.facts["result counts"].startswith("table by ticker: ")
    assert plan.facts["result alerts"].startswith("stream: ")
    assert [w.partition(" of a ")[0] for w in plan.warnings] == ["result counts", "result alerts"]
    for results, said in (
        ({"counts": RESULT}, "a.v1 has a stream called alerts, a.v3 has no result called alerts"),
        ({"counts": RESULT, "alerts": RESULT}, "a.v1 has a stream called alerts, a.v3 has a table called alerts"),
        ({"": RESULT}, "a.v1 has no result without a name, a.v3 has a table"),
    ):
        with pytest.raises(Refused) as refused:
            stage(Log(*live), results=results)
        assert said in refused.value.what


def test_each_topic_of_a_release_keeps_what_is_read_of_it(stage: Callable[..., Plan]) -> None:
    """A topic without a retention of its own has the broker's, which deletes records after a week."""
    two = {"counts": RESULT, "alerts": {**RESULT, "table": False, "key": ()}}
    stream = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    }
    # seven days: an operation may need the deleted and replaced records for so long
    table = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": "604800000",
        "delete.retention.ms": "604800000",
        "message.timestamp.type": "LogAppendTime",
    }
    assert {s.name: s.config for s in stage(Log(), results=two).stages if isinstance(s, CreateTopic)} == {
        "a.v3.g1.counts": table,
        "a.v3.g1.alerts": stream,
        "a.v3.progress": {**table, "segment.ms": "86400000"},
        "a.v3.dead-letters": stream,
    }


def test_a_plan_says_that_nothing_will_check_the_result(stage: Callable[..., Plan]) -> None:
    [warning] = stage(Log()).warnings
    assert warning == "a has no suite, so nothing checks its result before consumers get it"
    assert stage(Log(), suite="stock_stats").warnings == ()


def test_a_plan_says_that_a_replay_may_give_another_result(stage: Callable[..., Plan]) -> None:
    [warning] = stage(Log(), suite="stock_stats", comparable="no").warnings
    assert warning == "a.v3 may give a different result in a replay: its app says that runs can't be compared"


def test_a_plan_says_what_the_trial_has_found(stage: Callable[..., Plan]) -> None:
    assert stage(Log(), suite="stock_stats", notes=["sum(price) adds up"]).warnings == ("sum(price) adds up",)


def test_a_plan_says_which_inputs_accept_records_from_the_future(stage: Callable[..., Plan]) -> None:
    def said(ahead_ms: int, delay_ms: int | None) -> tuple[str, ...]:
        return stage(Log(), ahead_ms=ahead_ms, suite="stock_stats", watermark_delay_ms=delay_ms).warnings

    [warning] = said(3_600_000, 10_000)
    assert warning.startswith("trades accepts records dated up to 3,600 s in the future: one of them makes")
    assert warning.endswith("--topic trades --add-config message.timestamp.after.max.ms=10000`")
    [warning] = said(NO_LIMIT_MS, 10_000)
    assert "dated at any time in the future" in warning
    # no further than the delay; stamped by the broker; no watermark
    for ahead_ms, delay_ms in ((10_000, 10_000), (0, 10_000), (3_600_000, None)):
        assert said(ahead_ms, delay_ms) == ()


def test_a_plan_says_what_compaction_takes_from_a_stream_and_from_a_table(stage: Callable[..., Plan]) -> None:
    def said(**facts: Any) -> str:
        [warning] = stage(Log(), compacted=True, suite="stock_stats", **facts).warnings
        return warning

    assert "trades is compacted, so a replay may differ from the first run" in said()
    assert "trades is compacted, so a replay can't see the table as it was then" in said(tables=["trades"])


def test_a_plan_keeps_static_tables_and_counts_their_topics_as_no_input(
    stage: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = as_file([(b"EUR", b"2")])
    read = TopicRead(topic="rates", id="an-id", position={0: 7}, records=tmp_path / "0.parquet")
    Path(table_beside(str(read.records))).write_bytes(file.data)
    monkeypatch.setattr(module, "read_topics", lambda *_: {"rates": read})
    found = {
        "digest": file.digest,
        "rows": 1,
        "size_bytes": len(file.data),
        "malformed": 1,
        "said": "1 malformed record",
    }
    plan = stage(Log(), suite="stock_stats", static={"rates": "rates"}, static_tables={"rates": found})
    assert plan.stages[0] == StoreTable(digest=file.digest, data=file.data)
    assert plan.facts["static table rates"].startswith("1 row, read up to rates[0] 7, as ")
    assert any(warning.startswith("static table rates: 1 malformed record; ") for warning in plan.warnings)
    [record] = [each for each in plan.stages if isinstance(each, RecordRelease)]
    entered, begun, known, *_ = record.entries
    assert isinstance(entered, Staged) and entered.spec.static_tables["rates"].digest == file.digest
    assert isinstance(begun, GenerationStarted) and list(begun.start.sources) == list(entered.spec.inputs) == ["trades"]
    assert isinstance(known, TopicsKnown) and "rates" not in known.inputs


def test_a_plan_says_how_long_all_of_history_takes_and_how_much_room(stage: Callable[..., Plan]) -> None:
    first = stage(Log())
    assert first.facts["to read"] == "1,000 records, duration unknown, because its rate was never measured"
    assert first.facts["disk"].startswith("unknown, because nothing was measured yet; ") and first.facts[
        "disk"
    ].endswith(" are free")
    ready = [
        ReadyRecorded(release=r, generation=1, facts={"records_per_s": n}) for r, n in (("a.v1", 500), ("a.v2", 2))
    ]
    # v2 read but what came: that says nothing of history
    plan = stage(Log(*staged("a.v1", "a.v2"), *ready))
    assert plan.facts["to read"] == "1,000 records, about 2 s at 500 records/s, measured on a.v1"
    assert plan.facts["disk"].startswith("state about 2.0 KiB, result up to 7 records, 1.0 KiB, the same as a.v2; ")


@pytest.mark.slow
def test_a_suite_is_looked_up_without_loading_great_expectations() -> None:
    code = "import sys, orchestration.operations.planning.stage; from expectations.names import require_suite; "
    code += "require_suite('stock_stats'); print('great_expectations' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_time_of_a_replay_is_by_the_rate_of_the_last_one() -> None:
    ready = ReadyRecorded(release="a.v1", generation=1, facts={"records_per_s": 40_000})
    assert _measured_rate(release("a.v1", ready=ready)) == 40_000
    assert _measured_rate(release("a.v1")) is None
    assert _measured_rate(release("a.v1", ready=ReadyRecorded(release="a.v1", generation=1))) is None


@pytest.mark.parametrize(("lag", "far"), [(None, False), (0, False), (400_000, False), (400_001, True)])
def test_a_release_meets_another_in_one_batch_of_the_usual_size_or_not_at_all(lag: int | None, far: bool) -> None:
    context = cast(Context, SimpleNamespace(settings=Settings(max_records_per_batch=400_000)))
    beat = Heartbeat(release="a.v1", generation=1, token=1, host="h", pid=1, at_ms=1, state="running", lag_records=lag)
    said = far_behind(context, release("a.v1"), {"a.v1": beat})
    assert (said is not None) is far
    if said is not None:
        assert (
            "a.v1 is 400,001 records behind; to meet another release, it may be at most one batch behind: 400,000"
            in said
        )
    assert far_behind(context, release("a.v1"), {}) is None
    # of large records its batches hold fewer
    beat = beat.model_copy(update={"batch_records": 500})
    said = far_behind(context, release("a.v1"), {"a.v1": beat.model_copy(update={"lag_records": 501})})
    assert said is not None and "at most one batch behind: 500" in said
    assert far_behind(context, release("a.v1"), {"a.v1": beat.model_copy(update={"lag_records": 500})}) is None


def test_an_app_s_name_means_its_only_release_in_use() -> None:
    known = state("a.v1", "a.v2", "ab.v1", a_1="retired")
    assert find_release(known, "a").name == "a.v2"
    assert find_release(known, "ab.v1").name == "ab.v1"


@pytest.mark.parametrize("name", ["b", "a.v9", "a", "A.v1", ""])
def test_a_name_that_means_none_or_several_is_bad_usage_and_says_what_there_is(name: str) -> None:
    with pytest.raises(BadUsage) as error:
        find_release(state("a.v1", "a.v2"), name)
    assert "a" in error.value.fix


def test_an_app_whose_releases_are_over_is_not_said_to_have_none() -> None:
    with pytest.raises(BadUsage, match=r"no release of a is in use: a\.v1 is retired") as error:
        find_release(state("a.v1", "b.v1", a_1="retired"), "a")
    assert error.value.fix == "`switchyard stage a [--from FOLDER] --execute` makes a new version"


def test_without_a_version_the_newest_that_waits_is_meant() -> None:
    known = state("a.v1", "a.v2", "a.v3", a_1="live", a_2="ready", a_3="retired")
    assert version_of(known, "a", None).name == "a.v2"
    assert version_of(known, "a", 1).name == "a.v1"
    for states, way in (
        ({"a_1": "live"}, "change the app, then `switchyard reprocess a [--from FOLDER] --execute`"),
        ({"a_1": "retired"}, "`switchyard stage a [--from FOLDER] --execute` makes a new version"),
    ):
        with pytest.raises(BadUsage, match="has no candidate to promote") as error:
            version_of(state("a.v1", **states), "a", None)
        assert error.value.fix.startswith(way)
    for unknown, said, known_instead in (
        ("a.v9", "there is no release a.v9", "the releases are: a.v1"),
        ("b", "b has no release", "the apps with a release are: a"),
    ):
        with pytest.raises(BadUsage, match=said) as error:
            version_of(state("a.v1", a_1="live"), unknown, None)
        assert known_instead in error.value.fix


def test_an_operation_under_way_blocks_its_releases_and_tells_whose_it_is() -> None:
    opened = Opened(id="promote-1", name="promote", releases=("a.v1",), deadline_ms=1, actor="ada")
    known = fold(state("a.v1", "a.v2"), [opened])
    with pytest.raises(Refused) as error:
        refuse_blocked(known, "a.v1")
    assert "promote-1" in error.value.what and "ada" in error.value.what
    assert "switchyard resume promote-1" in error.value.fix
    refuse_blocked(known, "a.v2")
    refuse_blocked(known, "a.v1", but="promote-1")
    refuse_blocked(fold(known, [Closed(id="promote-1", outcome="done")]), "a.v1")


def test_an_abort_ends_the_operation_too_and_comes_too_late_for_a_promotion() -> None:
    align = AlignOrdered(id="promote-1", release="a.v2", other="a.v1", switch=2)
    opened = Opened(id="promote-1", name="promote", releases=("a.v1", "a.v2"), alias="a", deadline_ms=1, actor="ada")
    known = fold(state("a.v1", "a.v2", live="a.v1"), [opened, align])
    aborted = fold(known, aborting(known, "promote-1", "not tonight"))
    assert aborted.operations["promote-1"].aborted
    for name in ("a.v1", "a.v2"):
        refuse_blocked(aborted, name)
    assert aborting(aborted, "promote-1", None) == []
    start = ResultPosition(topics={})
    switch = Switch(
        number=2, old="a.v1", old_generation=1, old_end=start, new="a.v2", new_generation=1, new_start=start
    )
    with pytest.raises(Refused, match="has already switched") as error:
        aborting(fold(known, [Promoted(alias="a", switch=switch, op="promote-1")]), "promote-1", None)
    assert "switchyard rollback a" in error.value.fix


# -- what a promotion needs


def verdict(**changes: Any) -> VerdictRecorded:
    values = {
        "release": "a.v2",
        "generation": 1,
        "evidence": "diff-1",
        "upto": ResultPosition(topics={}),
        "passed": 3,
        "failed": 0,
        "errored": 0,
    }
    return VerdictRecorded(**{**values, **changes})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "is not checked"),
        (verdict(generation=2), "is not checked"),
        (verdict(failed=1, failures=("volume",)), "checks failed: volume"),
        (verdict(errored=1, failures=("volume",)), "checks failed: volume"),
        (verdict(evidence="diff-0"), "before the last diff"),
        # as the watch leaves it: of the live release, later than the diff
        (verdict(evidence=None), "was not at the cut of a diff"),
        (verdict(passed=0), "none of its checks passed, because all were skipped"),
    ],
)
def test_a_verdict_opens_the_gate_only_for_what_it_looked_at(given: VerdictRecorded | None, said: str) -> None:
    new = release("a.v2", verdict=given)
    found = not_checked(new, evidence("a.v1", "a.v2"), release("a.v1"), MAX_EVIDENCE_AGE_S, now_ms=now_ms())
    assert len(found) == 1 and said in found[0]


def test_a_verdict_at_a_diff_with_another_release_is_called_that() -> None:
    [found] = not_checked(
        release("a.v3", verdict=verdict(release="a.v3")), None, release("a.v2"), MAX_EVIDENCE_AGE_S, now_ms=now_ms()
    )
    assert "was at the cut of diff-1, which compared other releases" in found


def test_a_verdict_on_the_evidence_is_enough_and_no_suite_needs_none() -> None:
    there = evidence("a.v1", "a.v2")
    assert not_checked(release("a.v2", verdict=verdict()), there, release("a.v1"), 600, now_ms=now_ms()) == []
    assert not_checked(release("a.v2", suite=None), there, release("a.v1"), 600, now_ms=now_ms()) == []


@pytest.mark.parametrize("live", [None, release("a.v1", table=False)])
def test_where_nothing_is_compared_the_verdict_must_be_young(live: Release | None) -> None:
    new = release("a.v2", table=False, comparable="no")
    young, old = verdict(evidence=None, at_ms=now_ms()), verdict(evidence=None, at_ms=now_ms() - 700_000)
    assert not_checked(replace(new, verdict=young), None, live, MAX_EVIDENCE_AGE_S, now_ms=now_ms()) == []
    found = not_checked(replace(new, verdict=old), None, live, MAX_EVIDENCE_AGE_S, now_ms=now_ms())
    assert len(found) == 1 and "it was checked 700 s ago, more than --max-evidence-age 600" in found[0]


def test_tables_are_compared_always_as_the_delta_comes_of_it() -> None:
    stream, table = release("a.v2", table=False, comparable="no"), release("a.v2", comparable="no")
    assert not are_compared(stream, release("a.v1", table=False))
    assert not are_compared(release("a.v1", table=False), stream)
    assert are_compared(table, release("a.v1", comparable="no"))
    assert are_compared(release("a.v2", table=False), release("a.v1", table=False))


def test_a_promotion_needs_recent_evidence_within_the_limit() -> None:
    new, live = release("a.v2"), release("a.v1")
    young = evidence("a.v1", "a.v2", at_ms=now_ms())
    assert not_compared(new, live, young, MAX_EVIDENCE_AGE_S, None, now_ms=now_ms()) == []
    assert "is not compared" in not_compared(new, live, None, MAX_EVIDENCE_AGE_S, None, now_ms=now_ms())[0]
    old = evidence("a.v1", "a.v2", at_ms=now_ms() - 700_000)
    assert "--max-evidence-age 600" in not_compared(new, live, old, MAX_EVIDENCE_AGE_S, None, now_ms=now_ms())[0]
    # 6 of 10 keys differ
    assert "60.00% of the keys differ" in not_compared(new, live, young, MAX_EVIDENCE_AGE_S, 0.5, now_ms=now_ms())[0]
    assert not_compared(new, live, young, MAX_EVIDENCE_AGE_S, 0.6, now_ms=now_ms()) == []
    stream = release("a.v2", table=False, comparable="no")
    assert not_compared(stream, release("a.v1", table=False), None, MAX_EVIDENCE_AGE_S, None, now_ms=now_ms()) == []


def test_evidence_is_of_both_generations_whichever_was_live() -> None:
    known = replace(RegistryState(), evidence=(evidence("a.v1", "a.v2"), evidence("a.v2", "a.v1", id="diff-2")))
    one, other = release("a.v1"), release("a.v2")
    found = evidence_for(known, one, other)
    assert found is not None and found.id == "diff-2"
    assert evidence_for(known, other, one) == found
    assert evidence_for(known, one, release(other.name, number=2)) is None


# -- the audit


def test_an_entry_is_about_its_release_its_app_and_its_operation() -> None:
    assert {"a.v1", "a"} <= _subjects(Staged(spec=spec("a.v1")))
    assert "stock-stats" in _subjects(StateSet(release="stock-stats.v10", state="live"))
    assert "stock-stats.v1" not in _subjects(StateSet(release="stock-stats.v10", state="live"))
    opened = _subjects(Opened(id="promote-1", name="promote", releases=("a.v2", "a.v1"), alias="a", deadline_ms=1))
    assert {"promote-1", "a.v1", "a.v2", "a"} <= opened
    assert "promote-1" in _subjects(StateSet(release="a.v1", state="live", op="promote-1"))


def test_a_switch_is_about_both_of_its_releases() -> None:
    switch = Switch(
        number=2, old="a.v1", old_generation=1, old_end=ResultPosition(topics={}), new="a.v2", new_generation=1,
        new_start=ResultPosition(topics={}),
    )  # fmt: skip
    assert {"a.v1", "a.v2", "a"} <= _subjects(Promoted(alias="a", switch=switch))
