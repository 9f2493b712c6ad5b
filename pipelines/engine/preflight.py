"""Whether executors on other hosts can run the batches of a driver, before it takes the first one.

Otherwise Spark starts executors again and again, or a batch fails in a way that does not say what is wrong.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from pipelines.engine.causes import cause
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.executor_facts import Facts, look
from pipelines.engine.guard import INSTALLATION
from pipelines.engine.in_time import POLL_S, Failed, Late, in_time
from pipelines.engine.jvm.classes import java_class
from pipelines.engine.jvm.jars import jars_dir
from pipelines.engine.yarn import Application, ask, logs_of, yarn
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings

log = logging.getLogger("switchyard.driver")

_STANDALONE = "spark://"
_CONNECT_S = 5.0
# once one executor is there, the others get this long to be checked, too
_OTHERS_S = 5.0
_OWN_CLASS = "io.switchyard.LocalFiles"


class ExecutorsUnfit(SwitchyardError):
    """The executors can't run the driver's batches, or there are none."""


# -- before Spark starts


def require_places(settings: Settings) -> None:
    """Raises ExecutorsUnfit if no master answers, or if this host can't listen on the address of the settings.

    Spark would say so after a minute, as an error of its own parts.
    """
    master = settings.spark_master or ""
    if master.startswith(_STANDALONE) and not any(map(_answers, _addresses(master))):
        raise ExecutorsUnfit(
            f"no Spark master answers at {master}",
            fix="start it, or set SWITCHYARD_SPARK_MASTER to its address; a firewall may be between it and this host",
        )
    address = settings.driver_bind_address or settings.driver_host or settings.host
    try:
        _listen(address)
    except OSError as error:
        raise ExecutorsUnfit(
            f"the driver can't listen on {address} for its executors: {error.strerror or error}",
            fix="set SWITCHYARD_DRIVER_HOST to an address of this host that executors reach; if that is not its own address, "
            "set SWITCHYARD_DRIVER_BIND_ADDRESS, too",
        ) from error


def _listen(address: str) -> None:
    """Raises OSError unless this host has `address`, a name or an address of either family."""
    refused: OSError | None = None
    for family, kind, protocol, _, place in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as trying:
                trying.bind(place)
        except OSError as error:
            refused = error
        else:
            return
    raise refused or OSError(f"{address} has no address")


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    """Hosts, without the brackets of an IPv6 address, and ports of the masters."""
    for each in master.removeprefix(_STANDALONE).split(","):
        host, _, port = each.rpartition(":")
        if port.isdigit():
            yield host.strip("[]"), int(port)


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, _CONNECT_S).close()
    except OSError:
        return False
    return True


# -- once the session is there


def require_executors(
    spark: SparkSession,
    settings: Settings,
    release: str,
    check: Callable[[], object] = lambda: None,
    until: float | None = None,
) -> None:
    """Raises ExecutorsUnfit unless the executors can run the batches of `release` by `until`, on the clock of `monotonic`;
    None: `executor_timeout_s` from now.

    It looks at the executors that are there a few seconds after the first one. One that comes later isn't looked at.
    `check`: called twice a second; it may raise, if the driver must end.
    """
    until = time.monotonic() + settings.executor_timeout_s if until is None else until
    _await_executors(spark, settings, until, check)
    try:
        _require_fit(spark, settings, release, until, check)
    except Late:
        raise ExecutorsUnfit(
            f"executors have come, but have not run the first jobs {settings.executor_timeout_s:g} s after the driver's start",
            fix="raise SWITCHYARD_EXECUTOR_TIMEOUT_S, and SWITCHYARD_BOOT_TIMEOUT_S with it, if the cluster is slow; the logs of "
            f"the executors, {_where(settings)}, tell what they wait for",
        ) from None


def _require_fit(
    spark: SparkSession, settings: Settings, release: str, until: float, check: Callable[[], object]
) -> None:
    """Raises ExecutorsUnfit unless the executors that are there can do what a batch needs; Late after `until`."""
    tasks = 2 * settings.executors * settings.executor_cores
    try:
        without = in_time(partial(_hosts_without_classes, spark, tasks), until, check)
    except Failed as error:
        raise _unreachable(settings, f"a first job on them failed: {_said(error.error)}") from error.error
    if without:
        raise ExecutorsUnfit(
            f"no such class on {_list(without)}: executors there do not have Switchyard's jars",
            fix=f"install this version of Switchyard at the same path on each host, with its jars in {jars_dir()}, or set "
            "SWITCHYARD_JARS_DIR to a folder that each host has",
        )
    with _file_in_store(settings, release) as (path, text):
        facts = partial(look, str(path), text)
        try:
            found = in_time(
                lambda: spark.sparkContext.range(tasks, numSlices=tasks).map(lambda _: facts()).collect(), until, check
            )
        except Failed as error:
            raise _other_python(f"executors can't run the driver's Python: {_said(error.error)}") from error.error
        wrong = unfit(look(str(path), text), found, settings.store_dir)
    if wrong is not None:
        raise wrong
    log.info("%s: executors are ready on %s", release, _list(each.host for each in found))


def unfit(mine: Facts, found: Iterable[Facts], store: Path) -> ExecutorsUnfit | None:
    """What is wrong with executors that have `found` these facts. `mine`: the driver's. None: nothing is."""
    for each in found:
        if each.versions != mine.versions:
            other = {name: have for name, have in each.versions.items() if have != mine.versions.get(name)}
            return _other_python(
                f"other Python on {each.host}: it has {_versions(other)}, the driver has "
                f"{_versions({name: mine.versions[name] for name in other})}"
            )
        if each.code != mine.code:
            return ExecutorsUnfit(
                f"other version of Switchyard on {each.host}: what is in {INSTALLATION / 'pipelines'} there is not what the driver has",
                fix=f"install the same version on each host: {INSTALLATION} needs the same files there",
            )
        if each.unread is not None:
            return ExecutorsUnfit(
                f"the store isn't shared: {each.host} can't read a file that the driver has written into {store}: {each.unread}",
                fix=_share(store),
            )
        if each.user != mine.user:
            return ExecutorsUnfit(
                f"executors on {each.host} run as user {each.user}, the driver as user {mine.user}: neither could read what the "
                "other writes into the store",
                fix="have executors run as the user of the drivers, with the same numeric id on each host: the workers of Spark, or the "
                "containers of YARN",
            )
        if each.unwritten is not None:
            return ExecutorsUnfit(
                f"the store can't be written on {each.host}: {each.unwritten}", fix=f"make {store} writable there"
            )
    return None


def _share(store: Path) -> str:
    return f"mount the same file system at {store} on each host, or set SWITCHYARD_STORE_URL to a folder that all hosts share"


def _other_python(what: str) -> ExecutorsUnfit:
    return ExecutorsUnfit(
        what,
        fix=f"each host needs the same installation at the same paths: {sys.executable} and {INSTALLATION}; PYSPARK_PYTHON "
        "names another Python",
    )


def _unreachable(settings: Settings, why: str) -> ExecutorsUnfit:
    host = settings.driver_host or settings.host
    return ExecutorsUnfit(
        f"executors can't reach the driver at {host}: {why}",
        fix="set SWITCHYARD_DRIVER_HOST to a name or address of this host that they reach. If a firewall is between them, open "
        "ports, and set them as spark.driver.port and spark.driver.blockManager.port in SWITCHYARD_SPARK",
    )


def _await_executors(
    spark: SparkSession, settings: Settings, until: float, check: Callable[[], object] = lambda: None
) -> None:
    """Waits for the executors. Raises ExecutorsUnfit if none has come by `until`, on the clock of `monotonic`."""
    started = False
    others: float | None = None
    while True:
        check()
        context = spark.sparkContext._jsc.sc()
        there = context.getExecutorMemoryStatus().size() - 1 if not context.isStopped() else 0
        now = time.monotonic()
        if there and others is None:
            others = now + _OTHERS_S
        if there >= settings.executors or (others is not None and now > others):
            return
        # a standalone master gives up on a driver whose executors die ten times in a row
        if context.isStopped() and settings.on_yarn:
            raise ended_early(settings, ask(name=spark.sparkContext.applicationId))
        if context.isStopped():
            raise _unreachable(settings, "they were started again and again, and ended before they had connected")
        if now > until and not there:
            raise _none_came(settings, started)
        if not started:
            started = _ask(spark, settings, min(until, now + _CONNECT_S), check)
        time.sleep(POLL_S)


def _none_came(settings: Settings, started: bool) -> ExecutorsUnfit:
    if started:
        return _unreachable(
            settings, f"they were started, but none has connected within {settings.executor_timeout_s:g} s"
        )
    master = "YARN" if settings.on_yarn else settings.spark_master
    queue = " in the queue, spark.yarn.queue in SWITCHYARD_SPARK" if settings.on_yarn else ""
    return ExecutorsUnfit(
        f"no executors: {master} has started none within {settings.executor_timeout_s:g} s for "
        f"{settings.executors} executors with {settings.executor_cores} cores and {settings.executor_heap_mb} MiB of heap each",
        fix=f"check that the cluster has so much free{queue}, or lower SWITCHYARD_EXECUTORS, SWITCHYARD_EXECUTOR_CORES or "
        "SWITCHYARD_EXECUTOR_HEAP_MB; a slow cluster needs a larger SWITCHYARD_EXECUTOR_TIMEOUT_S",
    )


def ended_early(settings: Settings, application: Application | None) -> ExecutorsUnfit:
    """The error if YARN has ended the driver's application before its executors were ready. None: YARN does not know it."""
    what = "YARN has ended the driver's application before an executor was ready"
    host = settings.driver_host or settings.host
    fix = (
        "name a queue that takes it as spark.yarn.queue in SWITCHYARD_SPARK. Hosts must reach the driver at "
        f"{host} (SWITCHYARD_DRIVER_HOST), read the store (SWITCHYARD_STORE_URL), and have Switchyard's jars "
        f"(SWITCHYARD_JARS_DIR, now {jars_dir()}) and Java 17 as the JAVA_HOME of their NodeManager"
    )
    if application is None:
        return ExecutorsUnfit(what, fix=fix)
    return ExecutorsUnfit(
        f"{what}, {application.id} ({application.state}): {application.told}", fix=f"{fix}; {logs_of(application.id)}"
    )


def _ask(spark: SparkSession, settings: Settings, until: float, check: Callable[[], object]) -> bool:
    """Whether a master has started executors. False also if no answer came by `until`: Spark would wait two minutes."""
    try:
        return in_time(partial(_are_started, spark, settings), until, check)
    except (Late, Failed) as error:
        log.info("whether the master has started executors is unknown: %s", str(error) or "no answer in time")
        return False


def _are_started(spark: SparkSession, settings: Settings) -> bool:
    """Whether a standalone master has given this driver cores, by its page, or YARN containers. False also if that can't be
    read.
    """
    if settings.on_yarn:
        # one of them is Spark's own, which asks for the executors
        return yarn().application(spark.sparkContext.applicationId).containers > 1
    master = settings.spark_master or ""
    if not master.startswith(_STANDALONE):
        return False
    for host, port in _addresses(master):
        with suppress(Py4JError, OSError, ValueError):
            place = f"[{host}]" if ":" in host else host
            with urllib.request.urlopen(f"http://{place}:{_page_port(place, port)}/json/", timeout=_CONNECT_S) as page:
                apps = json.load(page)["activeapps"]
            # a standby master has no apps
            if any(each["id"] == spark.sparkContext.applicationId and each["cores"] > 0 for each in apps):
                return True
    return False


def _page_port(host: str, port: int) -> int:
    """The port of the page of the master at this address."""
    messages = "org.apache.spark.deploy.master.MasterMessages"
    address = java_class("org.apache.spark.rpc.RpcAddress").apply(host, port)
    reference = java_class("org.apache.spark.SparkEnv").get().rpcEnv().setupEndpointRef(address, "Master")
    request = getattr(java_class(f"{messages}$BoundPortsRequest$"), "MODULE$")
    answer = java_class("java.lang.Class").forName(f"{messages}$BoundPortsResponse")
    tag = getattr(java_class("scala.reflect.ClassTag$"), "MODULE$").apply(answer)
    return int(reference.askSync(request, tag).webUIPort())


def _hosts_without_classes(spark: SparkSession, tasks: int) -> list[str]:
    """Where executors do not have our classes. The job itself needs no class but Spark's own."""
    has = f"try_reflect('java.lang.Class', 'forName', '{_OWN_CLASS}') IS NOT NULL AS has"
    host = "try_reflect('java.net.InetAddress', 'getLocalHost') AS host"
    found = spark.range(0, tasks, 1, tasks).selectExpr(has, host).collect()
    return [str(row["host"]).partition("/")[0] for row in found if not row["has"]]


@contextmanager
def _file_in_store(settings: Settings, release: str) -> Iterator[tuple[Path, str]]:
    """A file beside the checkpoints of the release, and its content; it is deleted in the end."""
    text = secrets.token_hex(16)
    path = release_folder(settings, release) / f".preflight-{text[:8]}"
    path.write_text(text)
    try:
        yield path, text
    finally:
        path.unlink(missing_ok=True)


def _where(settings: Settings) -> str:
    """Where the logs of executors are."""
    return "in YARN's folders of their containers" if settings.on_yarn else "on the hosts of Spark's workers"


def _said(error: Exception) -> str:
    return cause(error, lines=2)


def _versions(named: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in named.items())


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
