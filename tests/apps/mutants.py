"""An app with one deliberate fault in its source."""

from __future__ import annotations

import inspect
import sys
import types
from unittest.mock import patch

from pipelines.model import App


def mutant(app: App, there: str, instead: str) -> App:
    """The app of the same module with `there`, which must be in it exactly once, replaced by `instead`."""
    source = inspect.getsource(sys.modules[app.module])
    assert source.count(there) == 1, f"{there!r} is {source.count(there)} times in {app.module}"
    module = types.ModuleType(f"{app.module}_mutant")
    # a dataclass looks for its module
    with patch.dict(sys.modules, {module.__name__: module}):
        exec(compile(source.replace(there, instead), module.__name__, "exec"), module.__dict__)
    (found,) = [each for each in vars(module).values() if isinstance(each, App)]
    return found
