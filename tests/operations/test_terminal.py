from __future__ import annotations

import sys

import pytest
from confluent_kafka import KafkaError, KafkaException

from orchestration import cli


def test_an_error_of_kafka_s_that_nobody_foresaw_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))

    monkeypatch.setattr("orchestration.commands.broker.load_settings", fail)
    monkeypatch.setattr(sys, "argv", ["switchyard", "down"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert "error: Kafka fails: " in said and "in-sync replicas" in said and "switchyard status" in said


def test_a_mistake_of_the_program_s_own_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("orchestration.commands.broker.load_settings", fail)
    monkeypatch.setattr(sys, "argv", ["switchyard", "down"])
    with pytest.raises(AssertionError):
        cli.main()
