"""Which parts of releases are lost, by what Kafka and the files say, and what is said of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestration.commands import broker
from orchestration.operations.looking.in_use import notes
from orchestration.operations.looking.parts import told_losses
from orchestration.operations.planning.run import plan_start
from orchestration.operations.plans.stages.releases import CreateTopic
from pipelines.engine import guard
from pipelines.engine import watch as watching
from pipelines.engine.code import code_path
from pipelines.engine.guard import CodeChanged
from pipelines.engine.table_file import table_path
from pipelines.engine.watch import Watch
from pipelines.errors import Refused, Unavailable
from pipelines.model.entries import (
    DeltaSegment,
    Holder,
    InputSpec,
    LeaseTaken,
    ReleaseState,
    Staged,
    StateSet,
    StaticTableSpec,
    TopicsKnown,
)
from pipelines.model.names import HEARTBEATS_TOPIC, REGISTRY_TOPIC
from pipelines.model.parts import Loss
from pipelines.model.positions import ResultPosition, SourcePosition
from pipelines.model.progress import Boundary, Progress
from pipelines.settings import Settings
from tests.operations.builders import EVERY_GROUP, Kafka, Log, context_of, evidence, generation, spec, staged, switched

NAME = "a.v1"
IDS = {
    topic: f"id of {topic}"
    for topic in ("trades", f"{NAME}.g1", f"{NAME}.progress", f"{NAME}.dead-letters", REGISTRY_TOPIC, HEARTBEATS_TOPIC)
}


def live() -> Log:
    """`a.v1` is live, and its topics' ids are known."""
    known = TopicsKnown(
        release=NAME, generation=1, inputs={"trades": IDS["trades"]}, own={f"{NAME}.g1": IDS[f"{NAME}.g1"]}
    )
    return Log(*staged(NAME), *switched(1, None, NAME), known)


def committed(batch: int, generation: int = 1) -> Progress:
    return Progress(
        release=NAME,
        generation=generation,
        token=1,
        boundary=Boundary(batch_id=batch, position=SourcePosition(sources={"trades": {0: 5}})),
        result=ResultPosition(topics={}),
        at_ms=0,
    )


def nowhere() -> tuple[SourcePosition, bool]:
    return SourcePosition(sources={}), True


def told(log: Log, ids: dict[str, str], **also: Any) -> str:
    context = context_of(log, Kafka(ids=lambda topics: {t: ids[t] for t in topics if t in ids}, **also))
    return "\n".join(told_losses(context, log.state()).get(NAME, ()))


def without(topic: str) -> dict[str, str]:
    return {name: found for name, found in IDS.items() if name != topic}


@pytest.mark.parametrize("topic", sorted(IDS))
def test_a_lost_topic_is_reported_with_a_fix(topic: str) -> None:
    assert told(live(), IDS) == ""
    said = told(live(), without(topic))
    how = "was deleted" if topic == "trades" else "is gone"
    assert f"{topic} of {NAME} {how}; " in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(("topic", "how"), [("trades", "was deleted; "), (f"{NAME}.g1", "was deleted and recreated")])
def test_so_is_one_that_was_made_again(topic: str, how: str) -> None:
    said = told(live(), {**IDS, topic: "another"})
    assert f"{topic} of {NAME} {how}" in said and "switchyard reset a.v1" in said


def test_an_input_that_was_made_again_after_its_driver_stopped_is_told_once() -> None:
    log = live()
    gone = Loss(release=NAME, part="input", name="trades")
    log.entries.append(StateSet(release=NAME, state="failed", reason=gone.told))
    assert told(log, without("trades")) == told(log, {**IDS, "trades": "another"}) == ""


@pytest.mark.parametrize("now", [{}, {f"{NAME}.g1": "another"}], ids=["gone", "recreated"])
@pytest.mark.parametrize("table", [True, False], ids=["table", "stream"])
def test_a_lost_result_of_another_release_is_not_made_by_hand(now: dict[str, str], table: bool) -> None:
    log = live()
    reads = {"trades": InputSpec(topic=f"{NAME}.g1", partitions=1, release=NAME)}
    known = TopicsKnown(release="down.v1", generation=1, inputs={f"{NAME}.g1": IDS[f"{NAME}.g1"]})
    log.entries += [
        Staged(spec=spec("down.v1", table=table).model_copy(update={"inputs": reads})),
        generation("down.v1"),
        known,
    ]
    ids = {**without(f"{NAME}.g1"), "down.v1.g1": "", "down.v1.progress": "", "down.v1.dead-letters": "", **now}
    context = context_of(log, Kafka(ids=lambda topics: {t: ids[t] for t in topics if t in ids}))
    found = told_losses(context, log.state())
    assert "switchyard reset a.v1" in found[NAME][0]
    [said] = found["down.v1"]
    assert "create it again" not in said and "switchyard reset down" not in said
    assert f"`switchyard status {NAME}` names the way" in said and "`switchyard start down.v1 --execute`" in said
    # there is no switch between streams that read different topics
    follow = f"`switchyard reprocess down --same-as down.v1 --upstream {NAME} --execute`"
    assert (follow in said) is table and ("under another name" in said) is not table


@pytest.mark.parametrize(
    ("end", "said"), [(None, "is gone"), (0, "was deleted and recreated"), (3, "was deleted and recreated"), (4, "")]
)
def test_a_delta_that_was_made_again_is_too_short(end: int | None, said: str) -> None:
    log, delta = live(), "a.delta.diff-1"
    segments = {
        "forward": DeltaSegment(topic=delta, start=0, end=2),
        "backward": DeltaSegment(topic=delta, start=2, end=4),
    }
    log.entries += [*staged("a.v2"), evidence(NAME, "a.v2", **segments)]

    def ids(topics: Iterable[str]) -> dict[str, str]:
        return {t: IDS.get(t, "") for t in topics if t != delta or end is not None}

    kafka = Kafka(ids=ids, end={} if end is None else {delta: {0: end}})
    found = told_losses(context_of(log, kafka), log.state()).get("a.v2", [])
    assert len(found) == bool(said)
    assert all(f"delta {delta} of a.v2 {said}" in each and "`switchyard diff a.v2` again" in each for each in found)


def test_a_loss_by_which_a_release_has_failed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its failure, which names the way back; what was lost beside it is told, too."""
    monkeypatch.setattr(watching, "_AGAIN_S", 0.0)
    log, result, progress = live(), f"{NAME}.g1", f"{NAME}.progress"
    cluster = SimpleNamespace(settings=Settings(), topic_ids=lambda _: without(result))
    lost = Watch(cast(Any, cluster), log.state().releases[NAME], position=nowhere).look()
    assert lost is not None
    log.entries.append(StateSet(release=NAME, state="failed", reason=f"{lost.what}; {lost.fix}"))
    assert notes(log.state(), log.state().releases[NAME]) == [f"{lost.what}; {lost.fix}"]
    assert told(log, without(result)) == ""
    both = {topic: found for topic, found in IDS.items() if topic not in (result, progress)}
    assert told(log, both).startswith(f"progress {progress} of {NAME} is gone; run `switchyard reset {NAME}")
    # one that was recreated since is another loss
    assert told(log, {**IDS, result: "another"}).startswith(f"result {result} of {NAME} was deleted and recreated")


def test_so_is_one_that_its_driver_has_ended_by(capsys: pytest.CaptureFixture[str]) -> None:
    release = live().state().releases[NAME]
    path = Path("code.zip")
    with pytest.raises(CodeChanged) as gone:
        guard.checked(path, "0" * 64, NAME)
    beat = SimpleNamespace(error=gone.value.in_one_line)
    loss = Loss(release=NAME, part="frozen code", name=str(path))
    status = SimpleNamespace(release=release, beat=beat, notes=(loss.told, "held"))
    broker._tell_notes([cast(Any, status)], alone=True)
    both = " ".join(capsys.readouterr().out.split())
    assert both.count("code.zip of a.v1 is gone") == 1 and "a.v1: held" in both
    broker._tell_notes([cast(Any, status)], alone=False)
    assert "code.zip of a.v1 is gone" in " ".join(capsys.readouterr().out.split())


def test_a_release_that_is_over_has_no_parts() -> None:
    log = live()
    log.entries.append(StateSet(release=NAME, state="retired"))
    assert told(log, {}) == ""


@pytest.mark.parametrize(("batch", "expected"), [(3, True), (-1, False)])
def test_a_group_is_missed_once_it_has_committed(monkeypatch: pytest.MonkeyPatch, batch: int, expected: bool) -> None:
    last = committed(batch)
    monkeypatch.setattr("orchestration.operations.reading.newest_progress", lambda *_, **__: last)
    said = told(live(), IDS, groups={"another"})
    assert (f"group {NAME} of {NAME} is gone; the next driver creates it again" in said) is expected
    assert told(live(), IDS, groups=EVERY_GROUP) == ""


@pytest.mark.parametrize("state", ["hydrating", "ready", "live", "standby", "failed"])
@pytest.mark.parametrize(("generation", "expected"), [(1, True), (0, False)])
def test_files_are_missed_where_its_driver_ran_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, generation: int, expected: bool, state: ReleaseState
) -> None:
    monkeypatch.setattr("orchestration.operations.reading.newest_progress", lambda *_, **__: committed(3, generation))
    settings = Settings(bootstrap_servers="127.0.0.1:1", state_dir=tmp_path)
    for host, here in ((settings.host, True), ("another", False)):
        log = live()
        log.entries.append(StateSet(release=NAME, state=state))
        log.entries.append(LeaseTaken(release=NAME, token=1, holder=Holder(host=host, boot_id="b", pid=1, started=1)))
        context = replace(context_of(log, Kafka(ids=lambda _: IDS)), settings=settings)
        said = "\n".join(told_losses(context, log.state()).get(NAME, ()))
        assert ("frozen code" in said) is here
        # a generation that has just begun has no checkpoint yet
        assert ("checkpoint" in said) is (here and expected)


def test_the_file_of_a_static_table_is_missed_and_its_topic_is_not(tmp_path: Path) -> None:
    settings = Settings(bootstrap_servers="127.0.0.1:1", state_dir=tmp_path)
    table = StaticTableSpec(topic="rates", topic_id="old", position={0: 7}, rows=2, size_bytes=4, digest="1" * 64)
    holder = Holder(host=settings.host, boot_id="b", pid=1, started=1)
    staged = Staged(spec=spec(NAME, static_tables={"rates": table}))
    log = Log(staged, generation(NAME), LeaseTaken(release=NAME, token=1, holder=holder))
    context = replace(
        context_of(log, Kafka(ids=lambda topics: {t: "" for t in topics if t != "rates"})), settings=settings
    )
    for path in (code_path(settings, "0" * 64), table_path(settings, "1" * 64)):
        path.parent.mkdir()
        path.touch()
    assert told_losses(context, log.state()) == {}
    path.unlink()
    [said] = told_losses(context, log.state())[NAME]
    assert said.startswith(
        f"static table rates ({path}) of {NAME} is gone; set SWITCHYARD_STATE_DIR to the state folder"
    )
    assert "restore it from a backup, or stage a new version" in said


def test_a_user_who_may_not_ask_is_shown_the_rest() -> None:
    def refuse(*_: object) -> dict[str, str]:
        raise Unavailable("not allowed", fix="ask for the ACL")

    heard: list[str] = []
    log = live()
    assert told_losses(context_of(log, Kafka(ids=refuse), say=heard.append), log.state()) == {}
    assert heard == ["can't tell whether releases have lost parts: not allowed; ask for the ACL"]


def test_an_app_that_a_user_may_not_ask_about_hides_no_loss_of_another() -> None:
    def ids(topics: Iterable[str]) -> dict[str, str]:
        if any(topic.startswith("b.v1") for topic in topics):
            raise Refused("b.v1.g1 is not yours", fix="ask for the ACL")
        return {t: found for t, found in without(f"{NAME}.g1").items() if t in topics}

    heard: list[str] = []
    log = live()
    log.entries += [*staged("b.v1"), generation("b.v1")]
    found = told_losses(context_of(log, Kafka(ids=ids), say=heard.append), log.state())
    assert [*found] == [NAME] and f"result {NAME}.g1 of {NAME} is gone" in found[NAME][0]
    assert heard == ["can't tell whether releases of b have lost parts: b.v1.g1 is not yours; ask for the ACL"]


def test_progress_that_can_not_be_read_hides_no_other_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Refused("the newest record of a.v1.progress can't be read", fix="upgrade")

    monkeypatch.setattr("orchestration.operations.reading.newest_progress", refuse)
    heard: list[str] = []
    log = live()
    log.entries += staged("b.v1")
    ids = without(f"{NAME}.dead-letters")
    kafka = Kafka(
        ids=lambda topics: {t: ids.get(t, "") for t in topics if t in ids or t == "b.v1.g1"}, groups={"another"}
    )
    found = told_losses(context_of(log, kafka, say=heard.append), log.state())
    assert len(found[NAME]) == 1 and f"{NAME}.dead-letters of {NAME} is gone" in found[NAME][0] and "b.v1" in found
    assert heard == [f"can't tell whether {NAME} has lost its checkpoint or its group: the newest record of a.v1.progress can't be read; upgrade"]  # fmt: skip


def test_a_start_makes_lost_dead_letters_again_for_a_driver_that_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.operations.planning.run._refuse_cut_off", lambda *_: None)
    monkeypatch.setattr("orchestration.operations.planning.run.moved_by_hand", lambda *_: None)
    letters = f"{NAME}.dead-letters"
    context = context_of(live(), Kafka(ids=lambda topics: {t: IDS[t] for t in topics if t in without(letters)}))
    plan = plan_start(context, NAME)
    assert [type(stage).__name__ for stage in plan.stages] == ["CreateTopic", "Want", "Launch"]
    made = plan.stages[0]
    assert isinstance(made, CreateTopic) and made.name == letters and any("is gone" in each for each in plan.warnings)
    assert made.config["retention.ms"] == "-1"


@pytest.mark.parametrize("topic", ["trades", f"{NAME}.g1", f"{NAME}.progress"])
def test_a_live_release_is_not_started_without_them(topic: str) -> None:
    context = context_of(live(), Kafka(ids=lambda topics: {t: IDS[t] for t in topics if t in without(topic)}))
    how = "was deleted" if topic == "trades" else "is gone"
    with pytest.raises(Refused, match=f"{topic} of {NAME} {how}"):
        plan_start(context, NAME)
