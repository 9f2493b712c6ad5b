"""The pages of the Data Docs. Great Expectations puts what it was given into its pages as it is: a sample of a record that
holds a tag would be one. So all that comes from a result, a check or an error is escaped before its renderers see it.
"""

from __future__ import annotations

import copy
import html
from typing import Any

from great_expectations import ExpectationSuite
from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
from great_expectations.render import RenderedDocumentContent
from great_expectations.render.renderer import ExpectationSuitePageRenderer, ValidationResultsPageRenderer
from great_expectations.render.view import DefaultJinjaPageView

from pipelines.model.text import visible

# how the site's configuration names the classes below
MODULE = __name__


def escaped(value: Any) -> Any:
    """`value` with every text in it, keys too, as HTML that shows just that."""
    if isinstance(value, str):
        return html.escape(visible(value, lines=True))
    if isinstance(value, dict):
        return {escaped(key): escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [escaped(each) for each in value]
    return value


class ResultPageRenderer(ValidationResultsPageRenderer):
    """A page per validation."""

    def render(
        self, validation_results: ExpectationSuiteValidationResult, suite_parameters: Any = None
    ) -> RenderedDocumentContent:
        """The page of a result as the store holds it, which stays as it is."""
        shown = copy.deepcopy(validation_results)
        shown.meta = _meta(shown.meta)
        for each in shown.results:
            each.result, each.meta = escaped(each.result), _meta(each.meta)
            each.exception_info = escaped(each.exception_info)
            config = each.expectation_config
            if config is not None:
                config.kwargs, config.meta = escaped(config.kwargs), _meta(config.meta)
                config.description = escaped(config.description)
        page: RenderedDocumentContent = super().render(shown, suite_parameters)
        return page


class SuitePageRenderer(ExpectationSuitePageRenderer):
    """A page per suite."""

    def render(self, expectations: ExpectationSuite) -> RenderedDocumentContent:
        """The page of a suite as the store holds it, which stays as it is."""
        shown = copy.deepcopy(expectations)
        shown.meta, shown.notes = _meta(shown.meta), escaped(shown.notes)
        for each in shown.expectations:
            each.description = escaped(each.description)
            each.meta, each.notes = _meta(each.meta), escaped(each.notes)
        page: RenderedDocumentContent = super().render(shown)  # type: ignore[no-untyped-call]
        return page


class PageView(DefaultJinjaPageView):
    """What puts a page's content into HTML."""

    @staticmethod
    def _escape_template_param_value(value: Any) -> Any:
        """Escaped once is enough: Great Expectations does it for some parameters, and not for what isn't one."""
        return value


def _meta(meta: Any) -> Any:
    """`run_id` is an object, and a time is parsed."""
    return {key: value if key == "run_id" else escaped(value) for key, value in (meta or {}).items()}
