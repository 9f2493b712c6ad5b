"""Python runs this at the start of each process that Spark starts, so that the guard imports frozen code there, too."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from pipelines.engine.guard import INSTALLED, STATE_SECRET, install

# the process that asks an app for the names of its state when a query starts; the daemon of workers does not start it
_STATE_NAMES = "pyspark.sql.streaming.transform_with_state_driver_worker"


def _leave_out_zips() -> None:
    """Takes Spark's zips, which it puts first, off the path: the same packages are installed as folders.

    Otherwise a worker reads the list of files of each zip at the start of each task, once for each package in it. And each
    process compiles what it imports from there, for a second or, on busy cores, longer than Spark waits for it.
    """
    for entry in [entry for entry in sys.path if os.path.isfile(entry)]:
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)


def _run_next() -> None:
    """Runs the installation's own `sitecustomize`, which this one hides, if there is one."""
    here = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry).resolve() != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if INSTALLED in os.environ:
    _leave_out_zips()
if STATE_SECRET in os.environ and _STATE_NAMES in sys.orig_argv:
    from pipelines.engine import state_client

    state_client.install()
install()
_run_next()
