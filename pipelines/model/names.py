"""Names: what a release is called, and the names derived from that. One release, one prefix, exact matches only.

What the registry says is input. Each of its fields that becomes a topic, a group, a transactional id, a module or part
of a path has one of the types of this module: an entry with any other text is refused when it is read.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, StringConstraints

REGISTRY_TOPIC = "switchyard.registry"
HEARTBEATS_TOPIC = "switchyard.heartbeats"
SNAPSHOTS_TOPIC = "switchyard.registry-snapshots"
# Kafka's own: the offsets of groups, and which transactions were committed
KAFKA_TOPICS = ("__consumer_offsets", "__transaction_state")
PROGRESS_SUFFIX = ".progress"
# headers of a result's records: the source record of a stream's record; that consumers may already know its event
SOURCE = "source"
REPLAY = "replay"
# the columns of a stream's row that name its source record, if it has all of them
SOURCE_COLUMNS = ("topic", "partition", "offset")
# header of a delta's records, if the app has several results: which one the record is for
RESULT = "result"

# Kafka's limit for a topic name
_LONGEST = 249
# for an app, so that all names that start with it stay below that: `app.v1.g1.RESULT` and `app.delta.EVIDENCE`
_LONGEST_APP = 100
_LONGEST_RELEASE = 120
_APP_PATTERN = "[a-z][a-z0-9]*(?:-[a-z0-9]+)*"
_APP = re.compile(_APP_PATTERN)
_RELEASE = re.compile(rf"(?P<app>{_APP_PATTERN})\.v(?P<version>[0-9]+)")
_OPERATION_PATTERN = "[A-Za-z0-9][A-Za-z0-9._-]*"
_OPERATION = re.compile(_OPERATION_PATTERN)
# Kafka allows any text; we don't allow control characters
_GROUP_PATTERN = r"[^\x00-\x1f\x7f-\x9f]{1,1000}"
_GROUP = re.compile(_GROUP_PATTERN)
_RESULT_TOPIC = re.compile(rf"{_APP_PATTERN}\.v[0-9]+\.g[0-9]+(?:\.(?P<result>{_APP_PATTERN}))?")


def _whole(pattern: str, *, longest: int = _LONGEST) -> StringConstraints:
    # in this validator `$` matches only at the end of the text, unlike in Python
    return StringConstraints(strict=True, max_length=longest, pattern=f"^(?:{pattern})$")


# `stock-stats`: an alias has the name of its app
AppName = Annotated[str, _whole(_APP_PATTERN, longest=_LONGEST_APP)]
# `stock-stats.v2`
ReleaseName = Annotated[str, _whole(rf"{_APP_PATTERN}\.v[0-9]+", longest=_LONGEST_RELEASE)]
# `promote-20261121-110532-4f1c`: of an operation, and of the evidence that it found
OperationId = Annotated[str, _whole(_OPERATION_PATTERN, longest=128)]
# SHA-256, hexadecimal
Digest = Annotated[str, _whole("[0-9a-f]{64}")]
# Kafka's rule: letters, digits, dots, underscores and hyphens, but neither `.` nor `..`
_TOPIC_PATTERN = r"\.{0,2}[A-Za-z0-9_-][A-Za-z0-9._-]*|\.{3}[A-Za-z0-9._-]*"
TopicName = Annotated[str, _whole(_TOPIC_PATTERN)]
GroupName = Annotated[str, _whole(_GROUP_PATTERN, longest=1000)]
# `high-priority`: one of several results of an app; empty: the only one
ResultName = Annotated[str, _whole(rf"(?:{_APP_PATTERN})?", longest=100)]
# a module's path in frozen code, or a suite's: file names without extension, joined by dots
ModuleName = Annotated[str, _whole(r"[\w-]+(?:\.[\w-]+)*", longest=1000)]

# the number of a version, a generation, a switch or a lease. Names contain some of them. The next one is one more, and
# must still be a number that JSON can hold exactly
MAX_ORDINAL = 10**12
Ordinal = Annotated[int, Field(ge=0, le=MAX_ORDINAL)]


def is_app_name(name: str) -> bool:
    """Whether `name` is lower-case words joined by hyphens, at most 100 letters."""
    return len(name) <= _LONGEST_APP and _APP.fullmatch(name) is not None


def is_topic_name(name: str) -> bool:
    """Whether Kafka accepts `name` as that of a topic."""
    return len(name) <= _LONGEST and re.fullmatch(_TOPIC_PATTERN, name) is not None


def is_result_name(name: str) -> bool:
    """Whether `name` can be the name of one of an app's results: lower-case words joined by hyphens, at most 100
    letters.
    """
    return len(name) <= 100 and _APP.fullmatch(name) is not None


def is_group_name(name: str) -> bool:
    """Whether `name` can be a registered follower's group: some text without control characters."""
    return _GROUP.fullmatch(name) is not None


def release_name(app: str, version: int) -> str:
    """`stock-stats`, 2 -> `stock-stats.v2`: also the consumer group and the transactional id."""
    return f"{app}.v{version}"


def split_release(name: str) -> tuple[str, int] | None:
    """`stock-stats.v2` -> (`stock-stats`, 2); None if `name` isn't a release's."""
    match = _RELEASE.fullmatch(name)
    return (match["app"], int(match["version"])) if match else None


def result_topic(release: str, generation: int, result: str = "") -> str:
    """The topic of a generation's result: `stock-stats.v2.g1`, or `log-router.v2.g1.high-priority` if the app has several."""
    return f"{release}.g{generation}" + (f".{result}" if result else "")


def result_of(topic: str) -> str:
    """The name of the result that a result topic holds; empty for the only result of an app, and for any other topic."""
    match = _RESULT_TOPIC.fullmatch(topic)
    return (match["result"] or "") if match else ""


def progress_topic(release: str) -> str:
    return f"{release}{PROGRESS_SUFFIX}"


def dead_letter_topic(release: str) -> str:
    return f"{release}.dead-letters"


def app_of(release: str) -> str:
    """`stock-stats.v2` -> `stock-stats`; the name itself if it isn't a release's."""
    found = split_release(release)
    return found[0] if found else release


def delta_topic(app: str, evidence: str) -> str:
    return f"{app}.delta.{evidence}"


def is_delta_topic(topic: str, app: str) -> bool:
    """Whether `topic` has the name of a delta topic of `app`."""
    before, _, evidence = topic.partition(".delta.")
    return before == app and _OPERATION.fullmatch(evidence) is not None


def quoted(name: str) -> str:
    """A column's name as Spark reads it as a name, whatever is in it."""
    return f"`{name.replace('`', '``')}`"
