"""Python runs this at the start of each process that Spark starts, so that the guard imports frozen code there, too."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from pipelines.engine.guard import install


def _run_next() -> None:
    """Runs the installation's own `sitecustomize`, which this one hides, if there is one."""
    here = Path(__file__).parent
    spec = PathFinder.find_spec("sitecustomize", [entry for entry in sys.path if Path(entry).resolve() != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


install()
_run_next()
