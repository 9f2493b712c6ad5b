"""The pages of the Data Docs. Great Expectations writes values into its pages unescaped, so a record that contains an
HTML tag would become one. So everything from a result, a check or an error is escaped before its renderers get it.
"""

from __future__ import annotations

import copy
import html
from itertools import chain
from types import CodeType
from typing import Any

from great_expectations import ExpectationSuite
from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from great_expectations.render import RenderedDocumentContent
from great_expectations.render.renderer import ExpectationSuitePageRenderer, ValidationResultsPageRenderer
from great_expectations.render.view import DefaultJinjaIndexPageView, DefaultJinjaPageView
from great_expectations.render.view.view import DefaultJinjaView
from jinja2.bccache import Bucket, BytecodeCache

from pipelines.model.text import visible

# the site's configuration names the classes below with this module
MODULE = __name__


def escaped(value: Any) -> Any:
    """`value` with every text in it, including keys, escaped for HTML."""
    if isinstance(value, bytes | bytearray):
        # of a binary column: as Python writes them, they keep their letters
        return html.escape(repr(bytes(value)))
    if isinstance(value, str):
        return html.escape(visible(value, lines=True))
    if isinstance(value, dict):
        return {escaped(key): escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [escaped(each) for each in value]
    return value


class ResultPageRenderer(ValidationResultsPageRenderer):
    """Renders a page per validation."""

    def render(
        self, validation_results: ExpectationSuiteValidationResult, suite_parameters: Any = None
    ) -> RenderedDocumentContent:
        """The page of a result. The stored result doesn't change."""
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
    """Renders a page per suite."""

    @staticmethod
    def _get_grouped_and_ordered_expectations_by_column(
        expectation_suite: ExpectationSuite,
    ) -> tuple[dict[str, list[ExpectationConfiguration]], list[str]]:
        """Column -> its expectations, and the columns in order; the names and arguments of both escaped."""
        found, order = ExpectationSuitePageRenderer._get_grouped_and_ordered_expectations_by_column(expectation_suite)
        for each in chain.from_iterable(found.values()):
            each.kwargs = escaped(each.kwargs)
        return {escaped(column): each for column, each in found.items()}, escaped(order)

    def render(self, expectations: ExpectationSuite) -> RenderedDocumentContent:
        """The page of a suite. The stored suite doesn't change."""
        shown = copy.deepcopy(expectations)
        shown.meta, shown.notes = _meta(shown.meta), escaped(shown.notes)
        for each in shown.expectations:
            each.description = escaped(each.description)
            each.meta, each.notes = _meta(each.meta), escaped(each.notes)
        page: RenderedDocumentContent = super().render(shown)  # type: ignore[no-untyped-call]
        return page


class _Compiled(BytecodeCache):
    """Templates that this process has compiled."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


class _View(DefaultJinjaView):
    """A view that shares compiled templates. A build makes three views, and each would compile each template again, which
    takes a second per check.
    """

    # Great Expectations looks at the names of the parameters
    def __init__(self, custom_styles_directory: str | None = None, custom_views_directory: str | None = None) -> None:
        super().__init__(custom_styles_directory, custom_views_directory)
        self.env.bytecode_cache = _COMPILED


class PageView(_View, DefaultJinjaPageView):
    """Writes a page's content as HTML."""

    @staticmethod
    def _escape_template_param_value(value: Any) -> Any:
        """Prevents a second escaping: Great Expectations escapes some parameters, and leaves others as they are."""
        return value


class IndexView(_View, DefaultJinjaIndexPageView):
    """Writes the index as HTML."""


def _meta(meta: Any) -> Any:
    """Escapes metadata, except `run_id`: it is an object, and its time would no longer parse."""
    return {key: value if key == "run_id" else escaped(value) for key, value in (meta or {}).items()}
