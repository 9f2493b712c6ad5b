"""Ports of the tests' own brokers and Dagster: claimed when first asked for, so that several runs at once never share one."""

from __future__ import annotations

from functools import cache

from orchestration.local.ports import claim


@cache
def port_of(name: str) -> int:
    """The first of two ports that this process has for `name`: a broker's controller listens on the next.

    One module asks for a name, or two fixtures listen on one port.
    """
    return claim().port
