"""The guarded broker, once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.security.guarded import Guarded
from tests.shared.ports import port_of


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker behind TLS, logins and ACLs."""
    broker = Guarded.started(tmp_path_factory.mktemp("guarded"), port_of("guarded broker"))
    yield broker
    broker.stop()
