"""Python runs this at the start of each process that Spark starts: there, too, the guard alone imports frozen code."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from pipelines.engine.guard import install


def _run_next() -> None:
    """Runs the `sitecustomize` that this one stands before, if the installation has one."""
    here = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry).resolve() != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


install()
_run_next()
