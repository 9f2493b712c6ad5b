"""The logs of browsers, which are generated, and those of the platform, which are recorded."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for
from orchestration.sources.logs import RECORDED


def test_browsers_act_and_some_of_them_never_pass_a_captcha() -> None:
    source = source_for("captcha", Options(faults=Faults.none()))
    logs = [(key, json.loads(value or b"")) for key, value, _ in chain.from_iterable(islice(source.blocks(None), 60))]
    assert all((key and key.decode()) == log["context"].get("browserHash") for key, log in logs)
    acted = Counter(key for key, log in logs if log["logger_name"] == "browser-actions")
    said = {(key, log["context"]["passed"]) for key, log in logs if log["logger_name"] == "captcha"}
    passed, failed = ({browser for browser, how in said if how == each} for each in ("true", "false"))
    often = {browser for browser, actions in acted.items() if actions >= 5}
    assert often & passed and often & failed - passed and often - passed - failed


def test_the_others_are_the_recorded_logs_of_brokers_and_drivers_in_their_order() -> None:
    source = source_for("log-router", Options(per_second=1_000, faults=Faults.none()))
    logs = [json.loads(value or b"") for _, value, _ in next(source.blocks(None))]
    others = [log for log in logs if "browserHash" not in log["context"]]
    assert {log["appName"] for log in others} == {"broker", "driver"}
    assert {log["level"] for log in others} == {"INFO", "WARN", "ERROR"}
    recorded = json.loads(files("orchestration.sources").joinpath(RECORDED).read_text("utf-8"))
    assert len(recorded) == 300
    found = [{name: log[name] for name in recorded[0]} for log in others]
    # each is the line after that of the log before, with those of browsers between them
    expected = [recorded[i % 300] for i, log in enumerate(logs) if "browserHash" not in log["context"]]
    assert found == expected and len(found) > 400
