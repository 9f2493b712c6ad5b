"""Modules that are imported when they are first used, not when a library asks for them."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Great Expectations imports them for expectations that compare distributions, which takes a quarter of its own import
DISTRIBUTIONS = ("scipy.stats", "altair")

# of two threads that ask for a name, one makes room for the module
_making_room = threading.Lock()


class Later(ModuleType):
    """Stands for a module until one of its names is asked for. Then it has what the module has."""

    def __getattr__(self, name: str) -> Any:
        # only asked for what it does not have yet
        with _making_room:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        module = importlib.import_module(self.__name__)
        self.__dict__.update(vars(module))
        return getattr(module, name)


@contextmanager
def imported_later(*names: str) -> Iterator[None]:
    """What the block imports gets `Later` for these modules, unless they are imported already.

    Someone who imports one of them after the block gets the module itself.
    """
    given = {name: Later(name) for name in names if name not in sys.modules}
    sys.modules.update(given)
    try:
        yield
    finally:
        for name, module in given.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
