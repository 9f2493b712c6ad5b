"""Great Expectations' context: no network, and no files except the Data Docs, which keep every validation."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import great_expectations as gx
from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
from great_expectations.data_context import EphemeralDataContext
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.data_context.types.resource_identifiers import (
    ExpectationSuiteIdentifier,
    ValidationResultIdentifier,
)

from expectations import pages

_SITE = "switchyard"
_BEACON = re.compile(r"https://great-expectations-web-assets[^\s\"')]*")


def open_context(docs_dir: Path | None) -> EphemeralDataContext:
    """A context whose Data Docs are a static site in `docs_dir`; None: one that writes no file.

    Its suites and validation results are files there, too: the site's index is built from them, and GX deletes a page
    without its result.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    config = DataContextConfig(
        config_version=4.0,
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    if docs_dir is not None:
        _write_to(docs_dir, config)
    return gx.get_context(mode="ephemeral", project_config=config)


def _write_to(docs_dir: Path, config: DataContextConfig) -> None:
    docs_dir.mkdir(parents=True, exist_ok=True)
    config.stores[config.expectations_store_name]["store_backend"] = _folder(docs_dir / "results" / "suites")
    config.stores[config.validation_results_store_name]["store_backend"] = _folder(docs_dir / "results" / "validations")
    config.data_docs_sites = {
        _SITE: {
            "class_name": "SiteBuilder",
            "show_how_to_buttons": False,
            "store_backend": _folder(docs_dir),
            "site_index_builder": {
                "class_name": "DefaultSiteIndexBuilder",
                "view": {"module_name": pages.MODULE, "class_name": "IndexView"},
            },
            "site_section_builders": {
                "validations": _section("ResultPageRenderer"),
                "expectations": _section("SuitePageRenderer"),
                # we have no profilers
                "profiling": "None",
            },
        }
    }


def _folder(path: Path) -> dict[str, str]:
    return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(path)}


def _section(renderer: str) -> dict[str, Any]:
    """A kind of pages, with our renderer and view: GX's own escape nothing."""
    return {
        "renderer": {"module_name": pages.MODULE, "class_name": renderer},
        "view": {"module_name": pages.MODULE, "class_name": "PageView"},
    }


def build_page(context: EphemeralDataContext, result: ExpectationSuiteValidationResult) -> Path | None:
    """Adds the page of `result`, its suite's page and the index. Returns the path of the result's page."""
    suite = ExpectationSuiteIdentifier(result.suite_name)
    validation = ValidationResultIdentifier(
        expectation_suite_identifier=suite, run_id=result.meta["run_id"], batch_identifier=result.batch_id
    )
    # the parameter is typed as a list of one kind, but takes both kinds
    both: list[Any] = [suite, validation]
    context.build_data_docs(site_names=[_SITE], resource_identifiers=both)
    found = context.get_docs_sites_urls(resource_identifier=validation, site_names=[_SITE])
    url = found[0]["site_url"] if found else None
    if url is None:
        return None
    page = Path(unquote(urlparse(url).path))
    site = Path(unquote(urlparse(context.get_docs_sites_urls(site_names=[_SITE])[0]["site_url"]).path))
    for path in (page, site, site.parent / "expectations" / f"{result.suite_name}.html"):
        _without_beacon(path)
    return page


def _without_beacon(page: Path) -> None:
    """Removes the pictures that would report each reader, and this site's identity, to GX's server."""
    page.write_text(_BEACON.sub("", page.read_text()))
