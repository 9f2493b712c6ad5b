"""What a driver does between its lease and its loop: it fences the checkpoint, starts Spark, and joins the group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.engine.alignment import Alignment
from pipelines.engine.batch_writer import BatchWriter
from pipelines.engine.checkpoint import Checkpoint, fence
from pipelines.engine.code import code_path, load
from pipelines.engine.copier import Copier
from pipelines.engine.copies import copies_of, take_over_checkpoint
from pipelines.engine.destination import destination_of
from pipelines.engine.goal import Goal
from pipelines.engine.history import by_share, by_time
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.jvm_process import start_jvm
from pipelines.engine.jvm_producer import JvmProducer
from pipelines.engine.member import GroupMember
from pipelines.engine.orders import Held, Orders
from pipelines.engine.query import Query
from pipelines.engine.session import build_session, send_code
from pipelines.engine.static import StaticTables
from pipelines.engine.telemetry import DriverStatus, Telemetry, batch_number, lag_probe
from pipelines.engine.watch import PartLost, Watch, unknown_ids
from pipelines.errors import SwitchyardError
from pipelines.kafka.progress import newest_progress
from pipelines.kafka.registry import Registry
from pipelines.kafka.sizes import sizes_of
from pipelines.model.app import App
from pipelines.model.entries import TopicsKnown
from pipelines.model.limits import FIRST_RECORDS, Limits, Size, limits_of
from pipelines.model.parts import parts_of
from pipelines.model.positions import SourcePosition
from pipelines.model.registry import Release
from pipelines.model.reset import batch_records
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

# the state of a driver that runs batches again which its checkpoint lacks
CATCHING_UP = "catching up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """What the driver's loop works with."""

    query: Query
    goal: Goal
    alignment: Alignment
    member: GroupMember
    copier: Copier | None


def _batch_of(query: Query) -> int | None:
    """The last batch in Kafka, once this driver has run one."""
    last = query.sink.last
    return last.boundary.batch_id if last is not None and query.sink.turnstile.has_run else None


class Boot:
    """Boots release `name` under lease token `token`. Later, the watch also asks it for the position of the release.

    `beat`: sends a heartbeat now.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        token: int,
        *,
        orders: Orders,
        status: DriverStatus,
        telemetry: Telemetry,
        beat: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._name = name
        self._token = token
        self._orders = orders
        self._registry = orders.registry
        self._status = status
        self._telemetry = telemetry
        self._beat = beat
        self._query: Query | None = None
        self._path: Path | None = None

    def run(self, await_understood: Callable[[], object]) -> Booted:
        """Boots in the steps of docs/design.md, after the first one, the lease.

        `await_understood`: waits while the driver is held. Raises PartLost if a part of the release is lost, CodeChanged if
        its code is, TableChanged if a static table is, and as `await_understood`, `fence` and `Query.prepare` do.
        """
        release = self._orders.release()
        spec, start = release.spec, release.start
        if start is None:
            raise SwitchyardError(
                f"{self._name} has no generation",
                fix=f"`switchyard stage {spec.app} [--from FOLDER] --execute` makes a new version",
            )
        release, watch = self._first_look(release)
        # 2. the frozen code; Python workers get it once Spark runs
        code = code_path(self._settings, spec.code_digest)
        app, _ = load(code, spec.code_digest, spec.app, (spec.module,), of=self._name)
        app = app.reading(spec.topics)
        tables = StaticTables.of(self._settings, spec)
        destination = destination_of(release, app, start, self._token)
        known = newest_progress(self._settings, self._name)
        at_most = batch_records(release.under, known) or self._settings.max_records_per_batch
        seeded = destination.seed is not None and destination.seed.boundary.batch_id >= 0
        resumes = known is not None and known.generation == release.generation and known.boundary.batch_id >= 0
        # 3. the checkpoint's fence
        await_understood()
        take_over_checkpoint(self._settings, self._name, release.generation, self._token)
        path = fence(self._settings, self._name, release.generation, self._token, expected=seeded or resumes)
        self._path = path
        copies = copies_of(self._settings, self._name, release.generation)
        reads_from = known.boundary.position if known is not None and resumes else start
        writer = BatchWriter(self._settings, self._name, release.result_partitions, JvmProducer)
        checkpoint = Checkpoint(path, destination.inputs, self._name)
        query = Query(self._settings, app, spec, destination, checkpoint, writer, self._orders.admit, self._catching_up)
        goal, limits = self._prepare(query, release, app, tables, code, reads_from, at_most)
        if limits.total < min(at_most, FIRST_RECORDS):
            log.info("%s: the size of its input records limits batches to %d records", self._name, limits.total)
        self._query = query
        self._telemetry.watch_query(query, limits.total)
        alignment = Alignment(self._name, query, self._orders, self._status, self._beat, may_pass=goal.may_pass)
        partitions = {n: i.partitions for n, i in spec.inputs.items()}
        client = self._registry.cluster.client
        self._telemetry.watch_lag(
            lag_probe(self._settings, client, lambda: query.sink.position, destination.inputs, partitions)
        )
        if (lost := watch.look()) is not None:
            raise lost
        # 4. the member of the group
        member = GroupMember(self._settings, self._name, sorted(set(destination.inputs.values())))
        watch.start()
        log.info("%s: generation %d at batch %s", self._name, release.generation, batch_number(query.sink.last))
        copier = None
        if copies is not None:
            copier = Copier(
                copies, path, self._token, every_s=self._settings.checkpoint_copy_s, batch=lambda: _batch_of(query)
            )
            copier.start()
            self._telemetry.watch_copies(lambda: copier.fails_s)
        return Booted(query=query, goal=goal, alignment=alignment, member=member, copier=copier)

    def _prepare(
        self, query: Query, release: Release, app: App, tables: StaticTables, code: Path, reads_from: SourcePosition, at_most: int
    ) -> tuple[Goal, Limits]:  # fmt: skip
        """Starts Spark and prepares the query. `reads_from`: the position that the input is read from. `at_most`: records per batch.
        Spark takes longest, so the sizes of the input are read and the sink connects at the same time.
        """
        inputs, digest = query.sink.destination.inputs, release.spec.code_digest
        with ThreadPoolExecutor(2, "boot") as pool:
            sizes = pool.submit(self._sizes, reads_from.by_topic(inputs))
            # the producer is in the JVM
            start_jvm(self._settings)
            connected = pool.submit(query.sink.connect)
            spark = self._session()
            if self._path is not None and (self._path / "state").is_dir():
                java_class("org.apache.spark.sql.execution.streaming.state.EarlyReading").begin()
            known = {name: sizes.result().get(topic) for name, topic in inputs.items()}
            most, limits = (
                limits_of(
                    known,
                    batch_bytes=self._settings.max_bytes_per_batch,
                    at_most=records,
                    # a portion of history is limited as a whole
                    together=app.watermark is not None,
                )
                for records in (at_most, min(at_most, FIRST_RECORDS))
            )
            send_code(spark, code, digest, self._name)
            self._telemetry.watch_jvm()
            goal = Goal(
                self._name, query, self._orders, self._status, started=release.under, batch_records=limits.total
            )
            portions = by_share if app.watermark is None else by_time
            portion = portions(self._settings, inputs, goal.free_until)
            ahead = sum(size.records for size in sizes.result().values() if size is not None)
            query.prepare(spark, limits, most, portion, tables, ahead_records=ahead)
            connected.result()
        return goal, limits

    def _session(self) -> SparkSession:
        """Spark's session. Raises ExecutorsUnfit if its executors, on other hosts, can't run a batch, and as `_check` does."""
        if not self._settings.executors_elsewhere:
            return build_session(self._settings, self._name)
        # a local driver starts without it
        from pipelines.engine.elsewhere import session_elsewhere

        return session_elsewhere(self._settings, self._name, self._check)

    def _check(self) -> None:
        """Raises Superseded, StopWanted or PartLost if the driver must end before it has booted."""
        # what can't be understood is waited out once the driver has booted
        with suppress(Held):
            self._orders.check_newest()

    def _catching_up(self) -> None:
        """Says that the driver catches up, which may take minutes. Raises as `_check` does."""
        if self._status.state != CATCHING_UP:
            self._status.state = CATCHING_UP
            self._beat()
        self._check()

    def _sizes(self, start: Mapping[str, Mapping[int, int]]) -> dict[str, Size | None]:
        """The sizes of the input's records; empty if Kafka does not answer. Spark's query then finds out why."""
        try:
            return sizes_of(self._settings, start, client=self._registry.cluster.client)
        except SwitchyardError as error:
            log.warning("%s: the size of its input records is unknown: %s", self._name, error.what)
            return {}

    # -- the watch; what follows runs on its thread, too

    def _first_look(self, release: Release) -> tuple[Release, Watch]:
        """The release with the ids of all its topics, and its watch. Raises PartLost if a part is lost."""
        watch = self._new_watch(release)
        if (lost := watch.look()) is not None:
            raise lost
        more = unknown_ids(release, self._registry.cluster.topic_ids(parts_of(release)))
        if more is None:
            return release, watch
        # an older version staged it, or this version did before the topics existed
        self._orders.enter(more)
        release = self._orders.release()
        return release, self._new_watch(release)

    def _new_watch(self, release: Release) -> Watch:
        self._orders.watch = Watch(
            self._registry.cluster, release, position=self._position_now, registry_id=self._registry.topic_id, checkpoint=self._checkpoint_path, alarm=self._alarm, made=self._topics_made
        )  # fmt: skip
        return self._orders.watch

    def _position_now(self) -> tuple[SourcePosition, bool]:
        """The position of the release, and whether it may have read further: a batch is under way, or the driver boots."""
        if self._query is None:
            return SourcePosition(sources={}), True
        sink = self._query.sink
        busy = sink.in_batch is not None
        return sink.position, busy

    def _checkpoint_path(self) -> Path | None:
        """The checkpoint, once it has a batch. When a newer driver takes it over, its folder gets another name."""
        query = self._query
        return self._path if query is not None and query.sink.has_begun else None

    def _alarm(self, lost: PartLost) -> None:
        """Lets nothing be committed from here on, and says so at once."""
        log.error("%s: %s", self._name, lost)
        self._status.error = f"{lost.what}; {lost.fix}"
        if self._query is not None:
            self._query.sink.halt(lost)
        self._beat()

    def _topics_made(self, known: TopicsKnown) -> None:
        with Registry(self._settings, actor=self._registry.actor) as registry:
            self._orders.enter(known, "a topic was lost, and was created again, empty", by=registry)
