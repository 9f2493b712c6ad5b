"""Which settings are secret, and texts without them. What is secret is never shown, logged, recorded or put on a command line.

A process remembers the secrets of its settings; `masked` takes them out of any text that leaves it: errors, logs, what a
command prints. What frozen code gets of the environment is decided here, too.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager

log = logging.getLogger(__name__)

MASK = "**********"
# of Kafka's and Spark's properties and of variables; a certificate is public, the key to it isn't
_SECRET_NAME = re.compile(
    r"password|passphrase|secret|jaas|credential|token(?!\.endpoint)|webhook|access[._]?key|private[._]?key|api[._]?key"
    r"|account[._]?key|ssl\.key\.pem|ssl[._]keystore[._](key|pem)|sasl\.oauthbearer\.config",
    re.IGNORECASE,
)
# where a key lies is no secret
_PLACE = re.compile(r"[._](location|file|path|url)$", re.IGNORECASE)
# of Java's options and of a JAAS line: `password="..."`
_WORDS_OF_JAAS = re.compile(r'(?:password|clientSecret)\s*=\s*"((?:[^"\\]|\\.)*)"', re.IGNORECASE)
# a shorter one is no secret, and would take letters out of every text
_LEAST_CHARS = 4
# for Spark's own pages and logs, which redact what has such a name
SPARK_REDACTION = (
    "(?i)secret|password|passphrase|token|(access|account|private|api)[._]?key|credential|jaas|keystore[.]key|[.]pem"
)
# settings that may hold secrets, by their variables
HOLDERS = ("SWITCHYARD_KAFKA", "SWITCHYARD_DRIVER_KAFKA", "SWITCHYARD_SPARK")
# what a process that runs frozen code gets of the environment that it is started in; the rest is the operator's
_PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|LOCPATH|TZ|TZDIR|TMPDIR|TMP|TEMP|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV"
    r"|PYTHON\w*|JAVA_HOME|JDK_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|(?i:https?|ftp|all|no)_(proxy|PROXY)|SPARK_\w+|PYSPARK_\w+|_PYSPARK_\w+|HADOOP_\w+|YARN_CONF_DIR|KRB5\w+"
    r"|SSL_CERT_(FILE|DIR)|(OMP|OPENBLAS|MKL|MALLOC|ARROW)_\w+|GX_ANALYTICS_ENABLED|SWITCHYARD_\w+"
)
# what makes a value of theirs secret: the password in a URL, as of a proxy, and an option of Java whose name is secret
_PASSWORD_IN_URL = re.compile(r"://[^/@\s]*:\S*@")
_JAVA_PROPERTY = re.compile(r"-D([\w.-]+)=")

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def is_secret(name: str) -> bool:
    """Whether the value of a property or a variable of that name is secret."""
    return _SECRET_NAME.search(name) is not None and _PLACE.search(name) is None


def remember(properties: Mapping[str, str]) -> None:
    """Has `masked` take the secret values of these properties out of texts from now on."""
    global _pattern
    values = {value for name, value in properties.items() if is_secret(name)}
    # a text of several lines, as a key is, may be shown line by line
    parts = {line.strip() for value in values for line in value.splitlines() if not line.startswith("-----")}
    words = {re.sub(r"\\(.)", r"\1", word) for value in values for word in _WORDS_OF_JAAS.findall(value)}
    fresh = {each for each in values | parts | words if len(each.strip()) >= _LEAST_CHARS} - _known
    if not fresh:
        return
    _known.update(fresh)
    # the longest first: one may be a part of another
    shapes = sorted({shape for each in _known for shape in _shapes(each)}, key=len, reverse=True)
    _pattern = re.compile("|".join(map(re.escape, shapes)))


def masked(text: str) -> str:
    """`text` with a mask for each secret of this process."""
    return text if _pattern is None else _pattern.sub(MASK, text)


def _shapes(secret: str) -> Iterable[str]:
    """How a secret is written: as it is, in JSON, as Python shows it, in a JAAS line."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield secret.replace("\\", "\\\\").replace('"', '\\"')


def plain_environment(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """What of an environment is passed to a process that runs frozen code: a list of names, and `also`.

    One that `also` doesn't name isn't passed if its value holds a secret; that is logged, as the process may miss it.
    """
    named, passed = set(also), dict[str, str]()
    for name, value in environment.items():
        if name not in named and (_PASSED.fullmatch(name) is None or is_secret(name)):
            continue
        if name in named or not _holds_secret(value):
            passed[name] = value
        elif name not in HOLDERS:
            log.warning(
                "%s isn't passed to drivers and apps, as it holds a password; if they need it, name it in driver_environment",
                name,
            )
    return passed


def _holds_secret(value: str) -> bool:
    properties: list[str] = _JAVA_PROPERTY.findall(value)
    return _PASSWORD_IN_URL.search(value) is not None or any(map(is_secret, properties))


def drop_holders(environment: MutableMapping[str, str]) -> None:
    """Takes the settings that may hold secrets out of an environment, once they are read."""
    for name in HOLDERS:
        environment.pop(name, None)


@contextmanager
def withheld(also: Iterable[str] = ()) -> Iterator[None]:
    """This process's environment without what is the operator's and without the settings' secrets, for a while: what is
    started or imported then doesn't get them.
    """
    passed = plain_environment(os.environ, also)
    drop_holders(passed)
    kept = {name: value for name, value in os.environ.items() if name not in passed}
    for name in kept:
        del os.environ[name]
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.setdefault(name, value)
