"""The logs that are generated: browsers that pass captchas, and others."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain, islice

from orchestration.sources import Faults, Options, source_for


def test_browsers_act_and_some_of_them_never_pass_a_captcha() -> None:
    source = source_for("captcha", Options(faults=Faults.none()))
    logs = [(key, json.loads(value or b"")) for key, value, _ in chain.from_iterable(islice(source.blocks(None), 60))]
    assert all((key and key.decode()) == log["context"].get("browserHash") for key, log in logs)
    acted = Counter(key for key, log in logs if log["logger_name"] == "browser-actions")
    said = {(key, log["context"]["passed"]) for key, log in logs if log["logger_name"] == "captcha"}
    passed, failed = ({browser for browser, how in said if how == each} for each in ("true", "false"))
    often = {browser for browser, actions in acted.items() if actions >= 5}
    assert often & passed and often & failed - passed and often - passed - failed
