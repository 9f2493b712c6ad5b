"""Starts the driver of a release in this process: `python -m pipelines.engine.start stock-stats.v2`

Exit codes: 0 stopped at a boundary as wanted, 1 failed, 3 refused (another driver has the release).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from functools import partial

from pipelines.engine.jvm_process import start_jvm_early, stop_jvm
from pipelines.errors import SwitchyardError
from pipelines.logs import configure_driver
from pipelines.model.text import visible
from pipelines.private import keep_private
from pipelines.secrets import drop_holders
from pipelines.settings import get_settings
from pipelines.signals import StopSignal

log = logging.getLogger("switchyard.driver")


def main(arguments: list[str] | None = None) -> None:
    """Runs the driver, and ends this process with its exit code."""
    keep_private()
    parser = argparse.ArgumentParser(
        prog="pipelines.engine.start", description="Runs one release until it is told to stop."
    )
    parser.add_argument("release", help="for example stock-stats.v2")
    parser.add_argument("--force", action="store_true", help="take the lease from a holder that still runs")
    parser.add_argument("--settle", action="store_true", help="only bring Spark's log up to what Kafka has, then end")
    options = parser.parse_args(arguments)
    # until the settings say otherwise
    configure_driver("text", options.release)
    # it logs every call of the sink
    logging.getLogger("py4j").setLevel(logging.WARNING)
    signalled = StopSignal()
    # Ctrl-C in the terminal reaches the whole process group; it stops the driver at a boundary
    signalled.take_signals()
    try:
        code = _run(options.release, force=options.force, settle=options.settle, signalled=signalled)
    except SwitchyardError as error:
        log.error("%s", error)
        code = error.exit_code
    except Exception:
        # through the log, which escapes what the error holds of a record
        log.exception("the driver of %s failed", visible(options.release))
        code = 1
    sys.stdout.flush()
    # threads of Spark and librdkafka must not keep a driver alive that has given up its lease
    os._exit(code)


def _run(release: str, *, force: bool, settle: bool, signalled: StopSignal) -> int:
    settings = get_settings()
    configure_driver(settings.log_format, release)
    # before the app is imported: it sees this environment
    drop_holders(os.environ)
    os.environ["SWITCHYARD_RELEASE"] = release
    # first, as everything else waits for the JVM
    start_jvm_early(settings)
    # the JVM starts during this import, which takes half a second
    from pipelines.engine.driver import Driver

    stop = partial(stop_jvm, settings.jvm_end_timeout_s)
    return Driver(settings, release, force=force, settle=settle, signalled=signalled, stop_jvm=stop).run()


if __name__ == "__main__":
    main()
