"""The ports of the tests' own brokers and Dagster: fixed, so that two runs at once collide at their start, not in the
middle; and others for each process of one run (`pytest -n`).
"""

from __future__ import annotations

import os

# a broker's controller listens on the port after it
_FIRST = {
    "broker": int(os.environ.get("SWITCHYARD_TEST_BROKER_PORT", "19192")),
    "driver": 19201,
    "lease": 19203,
    "cluster": 19211,
    "login": 19215,
    "nobody": 19219,
    "demo": 19225,
    "runbook": 19231,
    "benchmark": 19235,
    "supervised": 19239,
    "dagster": int(os.environ.get("SWITCHYARD_TEST_DAGSTER_PORT", "13900")),
}
_APART = 200


def port_of(name: str) -> int:
    """The port of one of those above in this process. Raises KeyError for another name."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return _FIRST[name] + process * _APART
