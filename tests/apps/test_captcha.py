"""Golden test of captcha: logs in, counts and requests out, all written by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pipelines.apps.captcha import captcha
from pipelines.model import App
from pipelines.testing import AppFailed, AppTest
from tests.apps.lives import Life
from tests.apps.memory import Memory
from tests.apps.mutants import mutant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIFE = Life(records=4_000, at_least=250)

ACT, PASS, FAIL = "acts", "passes", "fails"
# browser, what it does; offsets as they stand here, and the limit is 3
LOGS: list[tuple[str, str]] = [
    ("a", ACT),
    ("a", ACT),
    ("b", PASS),  # before it has done anything
    ("a", ACT),  # the third
    ("a", ACT),
    ("b", ACT),
    ("b", ACT),
    ("b", ACT),
    ("a", PASS),
    ("a", ACT),  # nobody is asked
    ("c", FAIL),
    ("c", ACT),
    ("c", ACT),
    ("d", PASS),  # nothing else
    ("a", FAIL),  # no longer verified
    ("a", ACT),
    ("c", ACT),
]
COUNTS = {"a": 6, "b": 0, "c": 3}
# browser, actions, offset
REQUESTS = [("a", 3, 3), ("a", 4, 4), ("a", 6, 15), ("c", 3, 16)]
# the counts after the first ten: what a verification makes of them
MEANWHILE = {"a": 0, "b": 0}


def log(browser: str | None, what: str) -> dict[str, Any]:
    logger, passed = ("browser-actions", None) if what == ACT else ("captcha", str(what == PASS).lower())
    context = {name: value for name, value in (("browserHash", browser), ("passed", passed)) if value is not None}
    return {
        "level": "INFO", "logger_name": logger, "message": what, "appName": "shop", "thread": "main",
        "timestamp": "2026-01-01T12:00:00.000Z", "context": context,
    }  # fmt: skip


# no browser counts by these
OTHERS: list[Any] = [
    log(None, ACT),
    {**log("a", ACT), "context": None},
    {**log("a", ACT), "logger_name": "shop.Cart"},
    {"logger_name": "browser-actions"},
]
BAD: list[tuple[Any, str]] = [
    ("not json", "the value is not JSON: Expecting value at character 0"),
    ({**log("a", ACT), "context": "a"}, "field context is not"),
    ({"level": "INFO", "context": {"browserHash": "a"}}, "field logger_name is missing"),
    (None, "the value is null"),
    (b"\xff" * 2_000_000, "the value is not UTF-8"),
]


@pytest.mark.spark
@pytest.mark.usefixtures("frames_of_two")
def test_golden_and_what_is_bad_is_a_dead_letter(spark: SparkSession) -> None:
    with AppTest(spark, captcha, ask_at=3) as test:
        requests: list[tuple[Any, ...]] = []
        for first, logs in ((True, LOGS[:10]), (False, LOGS[10:])):
            test.restart()
            for browser, what in logs:
                test.send("logs", log(browser, what), key=browser)
            if not first:
                for value, _ in [*((each, "") for each in OTHERS), *BAD]:
                    test.send("logs", value, partition=1)
                # what is dated otherwise counts; so does what is large, and what is true without quotes
                test.send("logs", log("e", ACT) | {"message": "x" * 2_000_000}, time="2099-01-01T00:00:00Z")
                test.send("logs", log("e", ACT), time="1996-01-01T00:00:00Z")
                test.send("logs", log("f", ACT))
                test.send("logs", json.dumps(log("f", PASS)).replace('"true"', "true"))
            batch = test.run()
            requests += [
                (row["browser_hash"], row["actions"], int(str(source).split(":")[2]))
                for row, name, source in zip(batch.rows, batch.names, batch.sources, strict=True)
                if name == "requests"
            ]
            if first:
                assert counts(test) == MEANWHILE
        assert counts(test) == COUNTS | {"e": 2, "f": 0}
        assert sorted(requests) == REQUESTS
        assert len(batch.dead_letters) == len(BAD)
        for letter, (_, reason) in zip(batch.dead_letters, BAD, strict=True):
            assert letter.reason.startswith(reason), letter


def counts(test: AppTest) -> dict[str, int]:
    return {browser: row["actions"] for (browser,), row in test.tables["counts"].items()}


@pytest.mark.spark
def test_an_action_that_comes_twice_counts_twice_and_a_verification_once(spark: SparkSession) -> None:
    with AppTest(spark, captcha, ask_at=3) as test:
        for what in (ACT, ACT):
            test.send("logs", log("a", what))
        assert test.run()["requests"] == []
        # the second one, again
        test.send("logs", log("a", ACT))
        [request] = test.run()["requests"]
        assert (request["browser_hash"], request["actions"]) == ("a", 3)
        for _ in range(2):
            test.send("logs", log("a", PASS))
        assert test.run()["requests"] == [] and counts(test) == {"a": 0}
        test.send("logs", log("a", PASS))
        test.send("logs", log("a", ACT))
        assert test.run()["requests"] == [] and counts(test) == {"a": 0}


@pytest.mark.spark
def test_a_limit_of_nothing_is_refused(spark: SparkSession) -> None:
    with AppTest(spark, captcha, ask_at=0) as test, pytest.raises(AppFailed, match="ask_at must be 1 or more"):
        test.run()


ROWS: list[dict[str, Any]] = [
    {
        "browser_hash": browser, "acts": what == ACT, "passed": what == PASS,
        "topic": "logs", "partition": 0, "offset": offset,
    }
    for offset, (browser, what) in enumerate(LOGS)
]  # fmt: skip


def taken(app: App, size: int, rows: list[dict[str, Any]] = ROWS) -> tuple[dict[str, int], list[tuple[Any, ...]]]:
    """What the app's own processor makes of `rows` in batches of `size`."""
    memory = Memory(lambda: app.function.__globals__["Actions"](3), "browser_hash")
    counts, requests = {}, []
    for start in range(0, len(rows), size):
        for row in memory.run(rows[start : start + size]):
            if row["offset"] is None:
                counts[row["browser_hash"]] = row["actions"]
            else:
                requests.append((row["browser_hash"], row["actions"], row["offset"]))
    return counts, sorted(requests)


@pytest.mark.parametrize("size", [1, 4, 7, len(LOGS)])
def test_batches_make_no_difference(size: int) -> None:
    assert taken(captcha, size) == (COUNTS, REQUESTS)


@pytest.mark.parametrize("size", [1, 4, len(LOGS)])
def test_a_copy_of_the_verified_browsers_in_each_task_would_change_nothing(size: int) -> None:
    counts, requests = {}, []
    for mine in ("a", "b", "c", "nobody"):
        # the task has the actions of one browser, and all verifications
        told = taken(captcha, size, [row for row in ROWS if row["browser_hash"] == mine or not row["acts"]])
        # it reads those of its own browser
        assert {*told[0]} | {browser for browser, _, _ in told[1]} <= {mine}
        counts.update(told[0])
        requests += told[1]
    assert (counts, sorted(requests)) == (COUNTS, REQUESTS)


def test_a_copy_that_is_read_as_it_is_in_a_batch_would_make_batches_differ() -> None:
    # the verifications of a batch come before its actions
    rows = [row if row["acts"] else {**row, "partition": -1} for row in ROWS]
    assert taken(captcha, 1, rows) == (COUNTS, REQUESTS)
    # after its last record, "a" is not verified: it would be asked when it acts in between
    counts, requests = taken(captcha, len(rows), rows)
    assert counts == COUNTS and requests == sorted([*REQUESTS, ("a", 5, 9)])


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("actions >= self._ask_at", "actions > self._ask_at"),
        ("actions >= self._ask_at", "actions == self._ask_at"),
        (" and not verified", ""),
        ("in sorted(batch, key=itemgetter(4, 5))", "in batch"),
        ("for frame in rows", "for frame in [next(rows)]"),
        ("verified = passed", "verified = verified or passed"),
        ("verified = passed", "verified = False"),
        ("0 if verified else actions", "actions"),
        ("        if actions:", "        if True:"),
        ("self._browser.get() or (0, False)", "(0, False)"),
        ("self._browser.update((actions, verified))", "self._browser.update((actions, False))"),
        ("                continue", "                actions -= 1"),
    ],
)
def test_a_fault_in_any_clause_is_seen(there: str, instead: str) -> None:
    changed = mutant(captcha, there, instead)
    assert any(taken(changed, size) != (COUNTS, REQUESTS) for size in (1, len(LOGS)))
