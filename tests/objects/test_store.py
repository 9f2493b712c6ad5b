"""The files of a store in a bucket: written on one host, read and deleted on another."""

from __future__ import annotations

import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from orchestration.local import data_docs
from orchestration.local.data_docs import folder_of, in_store, server_of
from orchestration.operations.applying.applier import Applier
from orchestration.operations.comparing import fold
from orchestration.operations.comparing.evidence import evidence_path
from orchestration.operations.comparing.saving import save
from orchestration.operations.comparing.upkeep import Upkeep, load, upkeep_of
from orchestration.operations.context import Context
from orchestration.operations.looking.files import is_left
from orchestration.operations.looking.parts import belongs_elsewhere, told_losses
from orchestration.operations.plans.kind import Kind
from orchestration.operations.plans.plan import Plan
from orchestration.operations.plans.stages.base import Stage
from orchestration.operations.plans.stages.releases import DeleteFiles, RecordRelease, StoreCode, StoreTable
from pipelines.engine import code as frozen
from pipelines.engine.code import code_path, freeze
from pipelines.engine.guard import CodeChanged
from pipelines.engine.table_file import TableChanged, as_file, checked
from pipelines.errors import Unavailable
from pipelines.kafka.registry import Registry
from pipelines.model.entries import Entry, Holder, LeaseTaken, ReleaseSpec, Staged, StateSet, StaticTableSpec
from pipelines.model.positions import ResultPosition
from pipelines.objects import fetch_folder
from pipelines.settings import Settings
from tests.objects.conftest import Host, store_of
from tests.operations.builders import Kafka, Log, context_of, evidence, generation, spec

pytestmark = pytest.mark.slow

NAME = "sums.v1"
TABLE = as_file([(b"EUR", b"2"), (b"CHF", b"3")])
APP = """
from pipelines.model import AppSettings, Stream, Table, Text, app

@app(name="sums", inputs={"lines": Stream(topic="lines", value=Text("line"))}, result=Table(key=("word",)))
def sums(lines, settings: AppSettings):
    return lines
"""
# nobody listens there
AWAY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_stays_imported() -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("app_")]:
        del sys.modules[name]


@pytest.fixture
def code(tmp_path: Path) -> frozen.FrozenCode:
    folder = tmp_path / "code-of-the-app"
    folder.mkdir()
    (folder / "sums.py").write_text(APP)
    return freeze(folder)


def staged(code: frozen.FrozenCode) -> ReleaseSpec:
    table = StaticTableSpec(topic="rates", topic_id="t", position={0: 1}, rows=2, size_bytes=9, digest=TABLE.digest)
    return spec(NAME, code_digest=code.digest, static_tables={"rates": table})


def apply(settings: Settings, log: Log, *stages: Stage, kind: Kind = Kind.STAGE) -> None:
    context = Context(settings=settings, registry=cast(Registry, log), launcher=cast(Any, None))
    applier = Applier(context, Plan(id="op-1", operation=kind, releases=(NAME,), stages=stages))
    for stage in stages:
        applier.apply(stage)


def stages_of(code: frozen.FrozenCode) -> tuple[Stage, ...]:
    return (
        StoreCode(digest=code.digest, data=code.data),
        StoreTable(digest=TABLE.digest, data=TABLE.data),
        RecordRelease(release=NAME, entries=(Staged(spec=staged(code)), generation(NAME))),
    )


def test_what_one_host_stages_another_runs(host: Host, code: frozen.FrozenCode) -> None:
    one, other = host("one"), host("other")
    apply(one, Log(), *stages_of(code))
    path = code_path(other, code.digest)
    found, module = frozen.load(path, code.digest, "sums", of=NAME)
    assert (found.name, module) == ("sums", "sums") and path.is_relative_to(other.state_dir)
    assert checked(other, TABLE.digest, "rates", NAME) == TABLE
    # from then on, it needs no bucket
    away = host("other", endpoint_override=AWAY)
    assert frozen.frozen(away, code.digest, NAME) == code and checked(away, TABLE.digest, "rates", NAME) == TABLE
    with pytest.raises(Unavailable):
        code_path(host("a third", endpoint_override=AWAY), code.digest)


def test_a_release_is_recorded_only_once_its_files_are_in_the_bucket(host: Host, code: frozen.FrozenCode) -> None:
    log, away = Log(), host("one", endpoint_override=AWAY)
    for first in (0, 1):
        with pytest.raises(Unavailable):
            apply(away, log, *stages_of(code)[first:])
    assert log.entries == []
    # what it wrote on this host doesn't count as published
    apply(host("one"), log, *stages_of(code))
    assert code_path(host("other"), code.digest).is_file() and len(log.entries) == 2


def test_what_is_in_neither_place_is_missed_as_before(host: Host) -> None:
    settings = host("one")
    with pytest.raises(CodeChanged, match=r"frozen code .* of sums\.v1 is gone"):
        frozen.frozen(settings, "0" * 64, NAME)
    with pytest.raises(TableChanged, match=r"static table rates .* is gone"):
        checked(settings, "0" * 64, "rates", NAME)


def test_a_retirement_on_any_host_deletes_in_the_bucket(host: Host, code: frozen.FrozenCode) -> None:
    one, other = host("one"), host("other")
    log = Log()
    apply(one, log, *stages_of(code))
    store = store_of(one)
    store.put("evidence/diff-1/fold.parquet/part-0.parquet", b"1")
    store.put("evidence/diff-10/fold.parquet/part-0.parquet", b"1")
    store.put(f"checkpoints/{NAME}/g1.t1/offsets/0", b"1")
    stage = DeleteFiles(release=NAME, code_digest=code.digest, evidence=("diff-1",), tables=(TABLE.digest,))
    log.entries.append(StateSet(release=NAME, state="retired"))
    assert is_left(other, stage)
    apply(other, log, stage, kind=Kind.RETIRE)
    assert store.list("evidence") == {"evidence/diff-10/fold.parquet/part-0.parquet": 1}
    assert [store.list(name) for name in ("code", "tables", "checkpoints")] == [{}] * 3
    assert not is_left(other, stage)
    # the first host keeps its copies, which nobody reads
    assert is_left(one, stage)


def test_code_that_another_release_was_staged_with_stays_in_the_bucket(host: Host, code: frozen.FrozenCode) -> None:
    log, one = Log(), host("one")
    apply(one, log, *stages_of(code))
    other = staged(code).model_copy(update={"release": "sums.v2", "version": 2})
    log.entries += [StateSet(release=NAME, state="retired"), Staged(spec=other)]
    apply(one, log, DeleteFiles(release=NAME, code_digest=code.digest, tables=(TABLE.digest,)), kind=Kind.RETIRE)
    assert list(store_of(one).list("code")) == [f"code/{code.digest}.zip"]
    assert list(store_of(one).list("tables")) == [f"tables/{TABLE.digest}.jsonl"]


# -- what is lost, and whose release it is


def leased(code: frozen.FrozenCode, where: str) -> list[Entry]:
    holder = Holder(host=where, boot_id="b", pid=1, started=1)
    return [Staged(spec=staged(code)), generation(NAME), LeaseTaken(release=NAME, token=1, holder=holder)]


def test_a_release_whose_code_and_state_are_in_the_bucket_may_run_on_any_host(
    host: Host, code: frozen.FrozenCode
) -> None:
    log, one, other = Log(*leased(code, "another")), host("one"), host("other")
    release = log.known.releases[NAME]
    context = replace(context_of(log), settings=other)
    assert belongs_elsewhere(context, release)
    frozen.store(one, code)
    # its state may be where it ran last
    assert belongs_elsewhere(context, release) and not belongs_elsewhere(context, replace(release, lease=None))
    # that of another generation is of no use
    copy = "copies/000000000000.t1.n1.json"
    store_of(one).put(f"checkpoints/{NAME}/g2/{copy}", b"{}")
    assert belongs_elsewhere(context, release)
    store_of(one).put(f"checkpoints/{NAME}/g1/{copy}", b"{}")
    assert not belongs_elsewhere(context, release)
    # a driver of this host could not fetch it now
    assert belongs_elsewhere(replace(context, settings=host("other", endpoint_override=AWAY)), release)
    never = replace(release, lease=None)
    assert not belongs_elsewhere(replace(context, settings=host("one", endpoint_override=AWAY)), never)


def test_a_part_that_is_only_in_the_bucket_is_not_lost(host: Host, code: frozen.FrozenCode) -> None:
    one, other = host("one"), host("other")
    apply(one, Log(), *stages_of(code)[:2])
    log = Log(*leased(code, other.host))
    context = replace(context_of(log, Kafka()), settings=other)
    assert told_losses(context, log.known) == {}
    assert not (other.store_dir / "code").exists()
    store_of(one).delete(f"code/{code.digest}.zip")
    [said] = told_losses(context, log.known)[NAME]
    assert said.startswith("frozen code ") and "of sums.v1 is gone" in said


# -- evidence


def test_the_evidence_of_one_host_is_read_on_another(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = host("one"), host("other")
    # of an attempt that was killed
    store_of(one).put("evidence/diff-1/fold.parquet/sums/part-7.parquet", b"half")

    def work(settings: Settings, work: Any) -> None:
        folder = settings.state_dir / "spill"
        work(None, folder, lambda: None)

    def written(data: object, folder: Path, *_: object, **__: object) -> None:
        folder.mkdir(parents=True)
        for part in range(2):
            (folder / f"part-{part}.parquet").write_text(f"part {part}")

    monkeypatch.setattr(fold, "with_database", work)
    monkeypatch.setattr(fold, "load", lambda *_: 0)
    monkeypatch.setattr(fold, "write_fold", written)
    monkeypatch.setattr(fold, "compare", lambda *_, **__: fold.Comparison.none())
    position = ResultPosition(topics={"sums.v1.g1": {0: 1}})
    side = (spec(NAME), position)
    fold.compare_at(one, "diff-1", live=side, new=side, tolerance=0.0, samples=1)
    path = evidence_path(other, "diff-1")
    assert not path.exists() and fetch_folder(other, path)
    told = {each.relative_to(path).as_posix(): each.read_text() for each in path.rglob("*.parquet")}
    assert sorted(told) == ["part-0.parquet", "part-1.parquet"] and set(told.values()) == {"part 0", "part 1"}


def test_half_of_a_folder_is_none(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = host("one")
    store, path = store_of(settings), evidence_path(settings, "diff-1")
    for part in range(3):
        store.put(f"evidence/diff-1/fold.parquet/part-{part}.parquet", b"1")
    get = store.get

    def breaks(key: str, to: Path) -> bool:
        if key.endswith("part-1.parquet"):
            raise Unavailable("the connection broke")
        return get(key, to)

    monkeypatch.setattr(store, "get", breaks)
    with pytest.raises(Unavailable):
        fetch_folder(settings, path)
    assert not path.exists() and list(path.parent.iterdir()) == []
    monkeypatch.undo()
    assert fetch_folder(settings, path) and len(list(path.iterdir())) == 3
    assert not fetch_folder(settings, evidence_path(settings, "diff-2"))


def test_the_newest_refresh_of_any_host_counts(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    one, other, found = host("one"), host("other"), evidence("sums.v1", "sums.v2")
    nowhere = ResultPosition(topics={})

    def refresh(settings: Settings, at_ms: int, value: str) -> None:
        save(settings, found, Upkeep(live_result=nowhere, new_result=nowhere, at_ms=at_ms), {"k": value}, {})

    assert upkeep_of(other, found).at_ms == found.at_ms
    refresh(one, 1, "v")
    assert upkeep_of(other, found).at_ms == 1
    refresh(one, 2, "a longer value")
    kept, live, new = load(other, found)
    assert (kept.at_ms, live, new) == (2, {"k": "a longer value"}, {})
    refresh(other, 3, "one of another length")
    assert upkeep_of(one, found).at_ms == 3
    # without an answer, that of this host: more is left to read
    assert upkeep_of(host("one", endpoint_override=AWAY), found).at_ms == 3
    assert "can't ask the store for the newest refresh" in caplog.text
    assert upkeep_of(host("a third", endpoint_override=AWAY), found).at_ms == found.at_ms


# -- Data Docs


def check(settings: Settings, page: str) -> None:
    """Adds a page, and writes an index of all that this host has."""
    with in_store(settings):
        folder = folder_of(settings)
        (folder / "validations").mkdir(parents=True, exist_ok=True)
        (folder / "validations" / page).write_text(f"the page {page}")
        (folder / "index.html").write_text(" ".join(sorted(p.name for p in (folder / "validations").iterdir())))


def test_pages_of_checks_on_two_hosts_are_in_one_index(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = host("one"), host("other")
    order: list[str] = []
    publish = data_docs.publish

    def noted(settings: Settings, path: Path) -> None:
        order.append(path.name)
        publish(settings, path)

    monkeypatch.setattr(data_docs, "publish", noted)
    check(one, "a.html")
    check(other, "z.html")
    assert order == ["a.html", "index.html", "z.html", "index.html"]
    assert store_of(one).read("data-docs/index.html") == b"a.html z.html"


def test_a_page_of_another_host_is_shown(host: Host) -> None:
    one, other = host("one"), host("other")
    check(other, "a.html")
    with server_of(one, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()

        def read(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/{path}", timeout=10) as answer:
                return str(answer.read().decode())

        try:
            assert read("") == "a.html" and read("validations/a.html") == "the page a.html"
            check(other, "and-b.html")
            assert read("") == "a.html and-b.html"
        finally:
            server.shutdown()
            thread.join()
