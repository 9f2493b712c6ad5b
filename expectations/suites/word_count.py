"""What holds for every result of word-count, whatever the text."""

from __future__ import annotations

from collections.abc import Sequence

from expectations.suites import base
from expectations.suites.base import Check, SuiteInputs

COLUMNS = {"word": "string", "count": "bigint"}


def suite(inputs: SuiteInputs) -> Sequence[Check]:
    return [
        base.not_empty(),
        base.schema(COLUMNS),
        *base.not_null(*COLUMNS),
        base.unique("word"),
        base.pattern(
            "word", "^[a-z0-9_]+$", name="word form", detail="a word is lower-case ASCII letters, digits and _"
        ),
        base.rows("the not counted", "word != 'the'", detail='"the" is not counted'),
        base.at_least("count", 1),
        base.volume(inputs),
    ]
