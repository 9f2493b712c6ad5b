"""The UI as a browser shows it: the asset graph of a running `dagster dev`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from pipelines.settings import Settings
from tests.defs.dev import ROOT, DagsterDev

pytestmark = [pytest.mark.ui, pytest.mark.timeout(600)]

SCREENSHOT = ROOT / "docs" / "images" / "asset-graph.png"
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
WAIT_MS = 120_000
APPS = {"large-orders": "orders", "stock-stats": "trades", "word-count": "lines"}


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
    """Each app is a group: its input, its results, its alias, in a row. UPDATE_SCREENSHOTS=1 keeps the picture."""
    page = browser.new_page(viewport={"width": 1600, "height": 1150})
    # groups folded out, as by a click on each
    groups = ",".join(f"global@global:{app.replace('-', '_')}" for app in APPS)
    page.goto(f"{url}/asset-groups?expanded={groups}", timeout=WAIT_MS)
    drawn = page.locator("foreignObject")
    for app, topic in APPS.items():
        expect(drawn.get_by_text(app.replace("-", "_"), exact=True)).to_be_visible(timeout=WAIT_MS)
        expect(drawn.get_by_text(topic, exact=True)).to_be_visible()
        # its results and its alias: the UI shows the last part of a name
        expect(drawn.get_by_text(app, exact=True)).to_have_count(2)
    for kind, count in (("Source", 3), ("PySpark", 3), ("alias", 3)):
        expect(drawn.get_by_text(kind, exact=True)).to_have_count(count)
    # checks and partitions come in later answers
    expect(drawn.get_by_text("Passed")).to_have_count(3, timeout=WAIT_MS)
    path = tmp_path / "asset-graph.png"
    page.screenshot(path=path)
    if os.environ.get("UPDATE_SCREENSHOTS") == "1":
        SCREENSHOT.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, SCREENSHOT)
