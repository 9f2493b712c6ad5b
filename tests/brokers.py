"""Brokers of the tests' own."""

from __future__ import annotations

import pytest

from orchestration.local.broker import EmbeddedBroker

# as long as other tests on the same cores may make it take
_START_TIMEOUT_S = 180.0
# one of these lives for minutes: a third of its CPU time would go to the optimizing compiler
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start(broker: EmbeddedBroker) -> None:
    """Starts a broker that lives for some tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", _SHORT_LIVED)
        broker.start(_START_TIMEOUT_S)
