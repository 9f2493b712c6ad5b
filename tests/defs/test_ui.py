"""The UI as a browser shows it: the asset graph, the checks and the launchpad of what `make ui` starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetCheckResult, DagsterInstance
from playwright.sync_api import Browser, Page, expect, sync_playwright

from orchestration.catalog import find_apps
from orchestration.defs import report
from orchestration.defs.names import group_of, partitions_name, results_key
from pipelines.settings import Settings, get_settings
from tests.defs.dev import ROOT, DagsterDev
from tests.expectations.tables import LARGE_ORDERS, LARGE_ORDERS_DDL, check, order
from tests.shared.ports import port_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.ui, pytest.mark.timeout(600)]

SCREENSHOT = ROOT / "docs" / "images" / "asset-graph.png"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
WAIT_MS = 120_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A `dagster dev` without a broker: the graph is there all the same. DAGSTER_UI_URL names one that runs already."""
    running = os.environ.get("DAGSTER_UI_URL")
    if running is not None:
        yield running
        return
    settings = Settings(state_dir=tmp_path_factory.mktemp("state"), broker_port=1, request_timeout_s=1)
    found = DagsterDev(tmp_path_factory.mktemp("dagster"), settings.environment())
    found.start()
    yield found.url
    found.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    assert chromium is not None, "no chromium on the path"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield found
        found.close()


def test_the_asset_graph(url: str, browser: Browser, tmp_path: Path) -> None:
    """Apps that show the same are a group, with their inputs, results and aliases. UPDATE_SCREENSHOTS=1 keeps the
    picture of all groups.
    """
    page = browser.new_page(viewport={"width": 1600, "height": 1150})
    page.goto(f"{url}/asset-groups", timeout=WAIT_MS)
    drawn = page.locator("foreignObject")
    for group in sorted({"inputs", *map(group_of, find_apps())}):
        expect(drawn.get_by_text(group, exact=True).first).to_be_visible(timeout=WAIT_MS)
    path = tmp_path / "asset-graph.png"
    page.screenshot(path=path)
    if os.environ.get("UPDATE_SCREENSHOTS") == "1":
        SCREENSHOT.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, SCREENSHOT)
    # folded out, as by a click. The UI draws only what fits on the page
    page.goto(f"{url}/asset-groups?expanded=global@global:multi_phase", timeout=WAIT_MS)
    shown = [app for app in find_apps() if app.shows == "multi-phase"]
    for app in shown:
        # its results and its alias: the UI shows the last part of a name
        expect(drawn.get_by_text(app.name, exact=True)).to_have_count(2, timeout=WAIT_MS)
    for kind in ("PySpark", "alias"):
        expect(drawn.get_by_text(kind, exact=True)).to_have_count(len(shown))


@pytest.fixture
def checked(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """The UI of a release with a verdict, and how many checks it has: a record of its result fails one expectation."""
    settings = Settings(
        state_dir=tmp_path / "state", broker_port=1, request_timeout_s=1, data_docs_port=port_of("data docs of the UI")
    )
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    bad = order(9, "10000.00", sales_person="<b>Ann</b>")
    folder, rows = settings.state_dir / "data-docs", [*LARGE_ORDERS, bad]
    verdict = check(spark, folder, "large_orders", rows, LARGE_ORDERS_DDL, docs=True)
    whole = AssetCheckResult(asset_key=results_key("large-orders"), check_name="large_orders", passed=verdict.ok,
                             metadata=report.of_verdict(verdict))  # fmt: skip
    found = DagsterDev(tmp_path / "dagster", settings.environment())
    try:
        found.start()
        monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
        with DagsterInstance.get() as instance:
            instance.add_dynamic_partitions(partitions_name("large-orders"), ["large-orders.v2"])
            for each in (whole, *(report.check_result("large-orders", result, verdict) for result in verdict.results)):
                instance.report_runless_asset_event(report.event_of(each, "large-orders.v2"))
        yield found.url, 1 + len(verdict.results)
    finally:
        found.kill()
        get_settings.cache_clear()


def test_each_expectation_is_a_check_and_one_click_opens_its_data_docs(
    checked: tuple[str, int], browser: Browser
) -> None:
    url, checks = checked
    page = browser.new_page(viewport={"width": 1600, "height": 1150})
    page.goto(f"{url}/assets/results/large-orders?view=checks&checkDetail=amount_in_range", timeout=WAIT_MS)
    for name in ("amount_in_range", "each_order_once", "volume_against_live", "large_orders"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text(f"Checks ({checks})")).to_be_visible(timeout=WAIT_MS)
    # what the record says is text here
    expect(page.get_by_text("<b>Ann</b>").first).to_be_visible(timeout=WAIT_MS)
    with page.context.expect_page(timeout=WAIT_MS) as opened:
        page.get_by_role("link", name="/validations/large_orders/").first.click()
    docs = opened.value
    expect(docs.get_by_text("Expectation Validation Result")).to_be_visible(timeout=WAIT_MS)
    expect(docs.get_by_text("amount in range").first).to_be_visible()
    # and on, to the list of all; a script from the Internet fills it
    docs.get_by_text("Home", exact=True).click()
    expect(docs.get_by_text("Validation Results").first).to_be_visible(timeout=WAIT_MS)


def type_config(page: Page, *lines: str) -> None:
    """Adds lines to the launchpad's config, each indented as it is."""
    for line in lines:
        page.keyboard.press("Enter")
        # the editor indents by the line before
        page.keyboard.press("Home")
        page.keyboard.press("Shift+End")
        page.keyboard.type(line)
        page.keyboard.press("Escape")


def test_the_launchpad_of_reset_offers_a_choice_of_position(url: str, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1600, "height": 1150})
    page.goto(f"{url}/locations/switchyard/jobs/reset/playground", timeout=WAIT_MS)
    expect(page.get_by_text("timeout_s").first).to_be_visible(timeout=WAIT_MS)
    page.locator(".CodeMirror").first.click()
    for key in ("Control+End", "ArrowUp", "End"):
        page.keyboard.press(key)
    type_config(page, "      release: stock-stats.v1", "      position:", "        ")
    launch = page.get_by_role("button", name="Launch Run")
    expect(launch).to_be_disabled()
    page.keyboard.press("Control+Space")
    offered = page.locator(".CodeMirror-hint")
    expect(offered).to_have_count(9, timeout=WAIT_MS)
    assert {text.splitlines()[0] for text in offered.all_inner_texts()} == {
        "to_earliest", "to_latest", "to_current", "to_datetime", "by_duration", "shift_by", "to_offset", "from_file",
        "skip",
    }  # fmt: skip
    page.keyboard.press("Escape")
    page.keyboard.type("by_duration: {duration: PT6H}")
    page.keyboard.press("Escape")
    expect(launch).to_be_enabled(timeout=WAIT_MS)
