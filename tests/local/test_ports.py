"""Two that ask at once never get the same port."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from orchestration.local.ports import claim
from pipelines.errors import SwitchyardError

# beyond RANGE, where the brokers of other tests are
FOUR = range(32_100, 32_104)
ELSEWHERE = """
import sys
from orchestration.local.ports import claim
print(claim(2, range(32_100, 32_104)).port, flush=True)
sys.stdin.read()
"""


def test_a_claim_of_another_process_is_kept_until_it_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        with claim(2, FOUR) as ours:
            assert {theirs, ours.port} == {32_100, 32_102}
            with pytest.raises(SwitchyardError, match="no 2 ports in a row are free between 32100 and 32103"):
                claim(2, FOUR)
        other.kill()
    with claim(2, FOUR), claim(2, FOUR):
        pass


def test_a_port_that_someone_listens_on_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 32_101))
        taken.listen()
        with claim(2, FOUR) as found:
            assert found.port == 32_102
