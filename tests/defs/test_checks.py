"""The checks of a release in Dagster: each expectation has its own result, whichever are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from dagster import AssetCheckEvaluation, AssetCheckKey, AssetSelection, DagsterInstance, Definitions, define_asset_job

from expectations.verdict import CheckResult, Verdict
from orchestration.defs import checks
from orchestration.defs.names import partitions_name, results_key
from orchestration.defs.resources import Platform, SparkResource
from orchestration.defs.results import results_assets
from orchestration.operations.context import Context
from orchestration.operations.reading import Say
from pipelines.apps.word_count import word_count
from pipelines.errors import BadUsage, Refused, Unavailable
from pipelines.settings import get_settings

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")

RELEASE = "word-count.v2"
KEY = results_key("word-count")
PASSED = ("not empty", "schema", "word not null", "count not null", "the not counted", "count in range")


class Open(Platform):
    @contextmanager
    def open(self, say: Say, spark: object = None) -> Iterator[Context]:
        yield SimpleNamespace()  # type: ignore[misc]


def verdict() -> Verdict:
    """One of each outcome, with a record that would be markup."""
    results = [CheckResult(name=name, outcome="passed", detail="as it should be", observed="9") for name in PASSED]
    results += [
        CheckResult(name="word form", outcome="failed", detail="a word is lower-case", observed="1 row <b>A</b>\x1b",
                    unexpected=1, sample=('{"word": "<b>A</b>"}',)),
        CheckResult(name="key unique", outcome="errored", detail="no column `word`"),
        CheckResult(name="volume against live", outcome="skipped", detail="there is no live release"),
    ]  # fmt: skip
    page = get_settings().state_dir.resolve() / "data-docs" / "validations" / "a page.html"
    return Verdict(suite="word_count", release=RELEASE, generation=1, rows=9, results=tuple(results), docs=page)


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The releases whose suite ran, which is what each run does once."""
    monkeypatch.setenv("SWITCHYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("SWITCHYARD_DATA_DOCS_PORT", "9790")
    get_settings.cache_clear()
    ran: list[str] = []

    def check(_: Context, name: str, **options: object) -> Verdict:
        ran.append(name)
        return verdict()

    monkeypatch.setattr(checks, "check", check)
    monkeypatch.setattr(checks, "_compare", lambda *_: {"changed": 3})
    yield ran
    get_settings.cache_clear()


def run(*names: str) -> dict[str, AssetCheckEvaluation]:
    """The results of a run that is asked for the checks of these names (none: all), by name; {} if it fails."""
    chosen = AssetSelection.checks(*(AssetCheckKey(KEY, name) for name in names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        defs = Definitions(
            assets=results_assets([word_count]),
            asset_checks=checks.gates([word_count]),
            jobs=[define_asset_job("checking", chosen if names else AssetSelection.checks_for_assets(KEY))],
            resources={"platform": Open(), "pyspark": SparkResource()},
        )
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(partitions_name("word-count"), [RELEASE])
        result = defs.resolve_job_def("checking").execute_in_process(
            instance=instance, tags={"dagster/partition": RELEASE}, raise_on_error=False
        )
        found = [
            e.asset_check_evaluation_data for e in result.all_events if e.event_type_value == "ASSET_CHECK_EVALUATION"
        ]
        assert len({each.check_name for each in found}) == len(found)
        return {each.check_name: each for each in found} if result.success else {}


def test_each_expectation_has_a_result_of_its_own(checked: list[str]) -> None:
    found = run()
    assert checked == [RELEASE]
    assert {name for name, each in found.items() if not each.passed} == {"word_count", "word_form", "key_unique"}
    assert len(found) == 10 and {each.partition for each in found.values()} == {RELEASE}
    form = found["word_form"]
    assert form.metadata["expected"].value == "a word is lower-case" and form.metadata["unexpected"].value == 1
    # shown as text: neither Markdown nor HTML, and no control character
    assert (
        form.metadata["found"].value == "1 row <b>A</b>\\x1b"
        and type(form.metadata["sample"]).__name__ == "TextMetadataValue"
    )
    assert found["key_unique"].metadata["error"].value == "no column `word`"
    skipped = found["volume_against_live"]
    assert skipped.description == "skipped" and skipped.metadata["why"].value == "there is no live release"
    # the diff belongs to the verdict
    assert found["word_count"].metadata["changed"].value == 3 and "changed" not in form.metadata


def test_each_result_links_to_its_page() -> None:
    found = run()
    assert {each.metadata["data_docs"].value for each in found.values()} == {
        "http://127.0.0.1:9790/validations/a%20page.html"
    }
    assert {type(each.metadata["data_docs"]).__name__ for each in found.values()} == {"UrlMetadataValue"}


def test_one_that_is_asked_for_alone_runs_the_suite_and_tells_all(checked: list[str]) -> None:
    assert set(run("word_form")) == set(run())
    assert checked == [RELEASE, RELEASE]


def test_none_passes_that_could_not_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> Verdict:
        raise Refused("it has no result yet", fix="start it")

    monkeypatch.setattr(checks, "check", refused)
    found = run()
    assert len(found) == 10 and not any(each.passed for each in found.values())
    assert {each.description for each in found.values()} == {"could not be evaluated: it has no result yet"}


def test_an_outage_fails_the_run_and_says_nothing_of_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> Verdict:
        raise Unavailable("no broker", fix="start it")

    monkeypatch.setattr(checks, "check", away)
    assert run() == {}


def test_two_checks_that_would_have_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from expectations.suites.base import skipped

    monkeypatch.setattr(checks, "checks_of", lambda *_: [skipped("a b", "why"), skipped("a-b", "why")])
    with pytest.raises(BadUsage, match="two checks that Dagster calls a_b"):
        checks.gates([word_count])
