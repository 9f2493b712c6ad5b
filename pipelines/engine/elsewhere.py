"""The session of a driver whose tasks run in executors on other hosts: its start, and its end by what started them."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from functools import cache, partial

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipelines.engine.causes import cause, is_lost_contact
from pipelines.engine.in_time import Failed, Late, in_time
from pipelines.engine.preflight import ExecutorsUnfit, ended_early, require_executors, require_places
from pipelines.engine.session import build_session
from pipelines.engine.yarn import TAGS, Application, Room, ask, end, logs_of, yarn
from pipelines.errors import SwitchyardError
from pipelines.settings import Settings


class ExecutorsLost(SwitchyardError):
    """What started the driver's executors has ended them for good. Another driver gets new ones."""


def session_elsewhere(settings: Settings, name: str, check: Callable[[], object]) -> SparkSession:
    """Spark's session, with executors that can run batches of release `name`. `check`: called twice a second while it waits;
    it may raise. Needs the JVM of this process.

    Raises ExecutorsUnfit if there are no such executors within `executor_timeout_s`.
    """
    require_places(settings)
    if settings.on_yarn:
        return _on_yarn(settings, name, check)
    spark = build_session(settings, name)
    require_executors(spark, settings, name, check)
    return spark


def _on_yarn(settings: Settings, name: str, check: Callable[[], object]) -> SparkSession:
    until = time.monotonic() + settings.executor_timeout_s
    _require_room(settings, until, check)
    tag = _tag()
    tags = ",".join(filter(None, (settings.spark.get(TAGS), tag)))
    tagged = settings.model_copy(update={"spark": {**settings.spark, TAGS: tags}})
    try:
        spark = in_time(partial(build_session, tagged, name), until, check)
    except Failed as failed:
        raise _refused(settings, ask(tag=tag), failed.error) from failed.error
    except Late:
        application = ask(tag=tag)
        end(application)
        raise _not_started(settings, application) from None
    except BaseException:
        end(ask(tag=tag))
        raise
    require_executors(spark, settings, name, check, until)
    return spark


def _require_room(settings: Settings, until: float, check: Callable[[], object]) -> None:
    """Raises ExecutorsUnfit if no ResourceManager answers, or if no container can be as large as an executor."""
    try:
        room = in_time(lambda: yarn().room(settings), until, check)
    except (Failed, Late) as error:
        why = cause(error.error, lines=1) if isinstance(error, Failed) else "no answer in time"
        raise ExecutorsUnfit(
            f"no ResourceManager of YARN answers: {why}",
            fix="start it, or set HADOOP_CONF_DIR to the folder of its configuration, now "
            f"{os.environ.get('YARN_CONF_DIR') or os.environ.get('HADOOP_CONF_DIR')}; a firewall may be between it and this host",
        ) from error
    if (wrong := too_small(room)) is not None:
        raise wrong


def too_small(room: Room) -> ExecutorsUnfit | None:
    """What is wrong with the containers that YARN can start; None: an executor fits into one."""
    if not room.nodes:
        return ExecutorsUnfit(
            "no executors: YARN has no NodeManager that runs",
            fix="start the NodeManagers of the cluster that HADOOP_CONF_DIR names; `yarn node -list -all` shows why they do not run",
        )
    if not room.is_enough:
        return ExecutorsUnfit(
            f"no executors: one needs a container of {room.asked_mb} MiB with {room.asked_cores} cores, but YARN gives a container "
            f"{room.most_mb} MiB and {room.most_cores} cores at most",
            fix="lower SWITCHYARD_EXECUTOR_HEAP_MB or SWITCHYARD_EXECUTOR_CORES; or raise yarn.scheduler.maximum-allocation-mb and "
            "yarn.scheduler.maximum-allocation-vcores, if a NodeManager has so much",
        )
    return None


def _refused(settings: Settings, application: Application | None, error: Exception) -> Exception:
    """The error if Spark has not started on YARN."""
    if is_lost_contact(error):
        # the driver says why its JVM has ended
        return error
    if application is not None and application.has_ended:
        return ended_early(settings, application)
    return ExecutorsUnfit(
        f"Spark can't start on YARN: {cause(error, lines=2)}",
        fix="change its properties in SWITCHYARD_SPARK, or lower SWITCHYARD_EXECUTOR_HEAP_MB if a container would be too large",
    )


def _not_started(settings: Settings, application: Application | None) -> ExecutorsUnfit:
    """The error if YARN has not started the application in time."""
    if application is not None and application.is_queued:
        what = f"no executors: YARN has not started the driver's application within {settings.executor_timeout_s:g} s"
        return ExecutorsUnfit(
            f"{what}: {application.told}",
            fix="make room in the queue, or name another one as spark.yarn.queue in SWITCHYARD_SPARK; a slow cluster needs a larger "
            "SWITCHYARD_EXECUTOR_TIMEOUT_S",
        )
    if application is not None and application.has_ended:
        return ended_early(settings, application)
    return ExecutorsUnfit(
        f"Spark has not started on YARN within {settings.executor_timeout_s:g} s",
        fix="raise SWITCHYARD_EXECUTOR_TIMEOUT_S, and SWITCHYARD_BOOT_TIMEOUT_S with it, if the cluster is slow",
    )


# -- once executors run batches


def require_context(settings: Settings, name: str) -> None:
    """Raises ExecutorsLost if what started the executors of release `name` has ended them, as an operator of a cluster may do.

    Spark only stops its context then. Without this, a batch would fail, and count as one that the app can't run.
    """
    context = SparkContext._active_spark_context
    if context is None or not context._jsc.sc().isStopped():
        return
    if not settings.on_yarn:
        raise ExecutorsLost(
            f"{settings.spark_master} has ended the application {context.applicationId} of {name}", fix=_again(name)
        )
    application = ask(name=context.applicationId)
    said = f" ({application.state}): {application.told}" if application is not None else ""
    raise ExecutorsLost(
        f"YARN has ended {context.applicationId}, the application of {name}{said}",
        fix=f"{_again(name)}; {logs_of(context.applicationId)}",
    )


# -- its end


def end_jvm(settings: Settings, stop: Callable[[], None]) -> None:
    """Ends this process's JVM by `stop`, and deletes what Spark has staged for the containers of its application on YARN.

    Spark would do so, too: its own container, unless YARN kills that before, or its client, unless the JVM ends before.
    """
    application = ask(tag=_tag()) if settings.on_yarn else None
    stop()
    if application is not None:
        # in a folder of the user
        for staged in settings.yarn_staging_dir.glob(f"*/.sparkStaging/{application.id}"):
            shutil.rmtree(staged, ignore_errors=True)


@cache
def _tag() -> str:
    """The tag of this process's application on YARN. By it, the application is found before Spark tells its id."""
    return f"switchyard-{secrets.token_hex(8)}"


def _again(name: str) -> str:
    return f"`switchyard start {name} --execute` starts another driver; a supervisor does so by itself"
