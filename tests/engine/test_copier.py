"""When a driver copies its checkpoint to the bucket."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from pipelines.engine.copier import Copier
from pipelines.engine.packs import Copy
from pipelines.errors import Unavailable
from tests.shared.waiting import until

FOLDER = Path("/store/checkpoints/sums.v1/g1.t2")


class World:
    """A driver's batches, and the copies that were made of its checkpoint."""

    def __init__(self) -> None:
        self.batch: int | None = None
        self.written: list[tuple[int, int | None]] = []
        self.outage = False
        self.copies = MagicMock()
        self.copies.read.return_value = None
        self.copies.write.side_effect = self._write
        self.now_s = 100.0
        self.copier = Copier(self.copies, FOLDER, 2, every_s=0.01, batch=lambda: self.batch, clock=lambda: self.now_s)

    def _write(self, folder: Path, token: int, last: Copy | None) -> Copy:
        assert (folder, token) == (FOLDER, 2) and self.batch is not None
        if self.outage:
            raise Unavailable("no answer", fix="wait")
        self.written.append((self.batch, last.batch_id if last else None))
        return Copy(batch_id=self.batch, token=token, files={}, packs={})


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.copier.start()
    yield made
    made.copier.close(copy=False)


def test_a_new_batch_is_copied_once(world: World) -> None:
    world.batch = 4
    until("no copy", lambda: world.copier.copied == 4, 10)
    world.batch = 7
    until("no copy", lambda: world.copier.copied == 7, 10)
    assert world.written == [(4, None), (7, 4)]
    # what killed processes left is deleted first
    assert [call[0] for call in world.copies.mock_calls[:3]] == ["sweep", "read", "delete_orphans"]
    world.copies.delete_orphans.assert_called_once_with(2)


def test_the_last_copy_is_made_when_the_query_has_ended(world: World) -> None:
    world.copier.close(copy=False)
    # a checkpoint from which no batch has run may be damaged
    world.copier.close(copy=True)
    assert world.copies.write.call_count == 0
    world.batch = 5
    world.copier.close(copy=True)
    assert world.written == [(5, None)]


def test_an_outage_of_the_bucket_stops_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "switchyard.driver")
    world.outage, world.batch = True, 4
    until("it is not tried again", lambda: world.copies.write.call_count > 2, 10)
    assert world.copier.copied is None
    world.now_s += 40
    # since the first of them
    assert world.copier.fails_s == 40
    assert f"{FOLDER} could not be copied to the bucket; it is tried again: no answer" in caplog.text
    world.outage = False
    until("no copy", lambda: world.copier.copied == 4, 10)
    until("it says that they fail", lambda: world.copier.fails_s is None, 10)


def test_a_driver_goes_on_from_the_copy_of_the_one_before() -> None:
    world = World()
    world.copies.read.return_value = Copy(batch_id=3, token=1, files={}, packs={})
    world.batch = 3
    world.copier.start()
    until("it has not read the last copy", lambda: world.copier.copied == 3, 10)
    world.batch = 4
    until("no copy", lambda: world.copier.copied == 4, 10)
    world.copier.close(copy=False)
    assert world.written == [(4, 3)]
