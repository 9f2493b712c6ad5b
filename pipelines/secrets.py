"""Which settings are secret, and how to remove their values from texts.

A secret is never shown, logged, recorded or put on a command line. A process remembers the secrets of its settings.
`masked` removes them from any text that leaves it: errors, logs, command output. This module also decides which
environment variables frozen code gets.
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
# What Hadoop itself keeps out of its logs: `hadoop.security.sensitive-config-keys` in the core-default.xml of Hadoop 3.4.1,
# without what the words of _SECRET_NAME cover. Hadoop leaves out Azure's signatures, `fs.azure.sas.CONTAINER.ACCOUNT`
_HADOOP = (
    r"ssl\.keystore\.pass$|fs\.s3a\.(.*\.)?((server-side-)?encryption|session)\.key|fs\.s3a\.(.*\.)?encryption\.algorithm"
    r"|fs\.(azure|adl)\.oauth2|fs\.gs\.(encryption|proxy|auth)\.|fs\.azure\.sas\."
)
# in Java's patterns, too
_PASSWORD = r"password|passwd|passphrase|[._-](pass|pwd)(?![^._-])"
# names of properties of Kafka and Spark, and of variables; a certificate is public, its key isn't
_SECRET_NAME = re.compile(
    rf"{_PASSWORD}|secret|jaas|credential|token(?!\.endpoint)|webhook|access[._]?key|private[._]?key|api[._]?key|app[._]?key"
    r"|account[._]?key|ssl\.key\.pem|ssl[._]keystore[._](key|pem)|sasl\.oauthbearer\.config"
    rf"|{_HADOOP}",
    re.IGNORECASE,
)
# the location of a key is not secret
_PLACE = re.compile(r"[._](location|file|path|url)$", re.IGNORECASE)
# in Java options and JAAS lines: `password="..."`
_WORDS_OF_JAAS = re.compile(r'(?:password|clientSecret)\s*=\s*"((?:[^"\\]|\\.)*)"', re.IGNORECASE)
# a shorter value is no secret, and masking it would remove letters from every text
_LEAST_CHARS = 4
# nor are these, whatever the property is called
_SWITCHES = {"", "true", "false"}
# for Spark's own pages and logs, which redact properties with such names
SPARK_REDACTION = (
    f"(?i)secret|{_PASSWORD}|token|(access|account|private|api|app)[._]?key|credential|jaas|keystore[.]key|[.]pem"
    f"|{_HADOOP}"
)
# variables of the settings that may hold secrets
HOLDERS = ("SWITCHYARD_KAFKA", "SWITCHYARD_DRIVER_KAFKA", "SWITCHYARD_SPARK", "SWITCHYARD_STORE")
# environment variables that a process with frozen code gets; the others are the operator's
_PASSED = re.compile(
    r"PATH|HOME|XDG_CACHE_HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|LOCPATH|TZ|TZDIR|TMPDIR|TMP|TEMP|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV"
    r"|PYTHON\w*|JAVA_HOME|JDK_JAVA_OPTIONS|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|(?i:https?|ftp|all|no)_(proxy|PROXY)|SPARK_\w+|PYSPARK_\w+|_PYSPARK_\w+|HADOOP_\w+|YARN_CONF_DIR|KRB5\w+"
    r"|SSL_CERT_(FILE|DIR)|(OMP|OPENBLAS|MKL|MALLOC|ARROW)_\w+|GX_ANALYTICS_ENABLED|SWITCHYARD_\w+"
)
# these make a value secret: a password in a URL, any login in that of a proxy, and a secret name with its value, as in
# `-Djavax.net.ssl.keyStorePassword=...`, `--conf spark.hadoop.fs.s3a.secret.key=...` or JSON
_PASSWORD_IN_URL = re.compile(r"://[^/@\s:]*:(\S*)@")
_PROXY = re.compile(r".*_proxy", re.IGNORECASE)
_NAMED_VALUE = re.compile(r"""(?:([\w.-]+)\\*["']?\s*=|\\*["']([\w.-]+)\\*["']\s*:)(?=\s*\\*["']?([^\s"',;}\\]*))""")

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def is_secret(name: str) -> bool:
    """Whether the value of a property or variable with that name is secret."""
    return _SECRET_NAME.search(name) is not None and _PLACE.search(name) is None


def remember(properties: Mapping[str, str]) -> None:
    """Makes `masked` remove the secret values of these properties from now on."""
    global _pattern
    values = {value for name, value in properties.items() if is_secret(name)}
    values |= {password for value in properties.values() for password in _PASSWORD_IN_URL.findall(value)}
    # a value of several lines, such as a key, may be shown line by line
    parts = {line.strip() for value in values for line in value.splitlines() if not line.startswith("-----")}
    words = {re.sub(r"\\(.)", r"\1", word) for value in values for word in _WORDS_OF_JAAS.findall(value)}
    fresh = {
        each for each in values | parts | words if len(each.strip()) >= _LEAST_CHARS and not _is_switch(each)
    } - _known
    if not fresh:
        return
    _known.update(fresh)
    # the longest first: one may be part of another
    shapes = sorted({shape for each in _known for shape in _shapes(each)}, key=len, reverse=True)
    _pattern = re.compile("|".join(map(re.escape, shapes)))


def _is_switch(value: str) -> bool:
    return value.strip().lower() in _SWITCHES


def masked(text: str) -> str:
    """`text` with a mask for each secret of this process."""
    return text if _pattern is None else _pattern.sub(MASK, text)


def _shapes(secret: str) -> Iterable[str]:
    """How a secret may be written: as it is, in JSON, as a Python repr, in a JAAS line."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield secret.replace("\\", "\\\\").replace('"', '\\"')


def plain_environment(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The part of an environment that a process with frozen code gets: a fixed list of names, and `also`.

    A variable whose value holds a secret is passed only if `also` names it. Otherwise a warning is logged, as the
    process may need it.
    """
    named, passed = set(also), dict[str, str]()
    for name, value in environment.items():
        if name not in named and (_PASSED.fullmatch(name) is None or is_secret(name)):
            continue
        if name in named or not (holds_secret(value) or (_PROXY.fullmatch(name) and "@" in value)):
            passed[name] = value
        elif name not in HOLDERS:
            log.warning(
                "%s isn't passed to drivers and apps, because it holds a password; if they need it, name it in driver_environment",
                name,
            )
    return passed


def holds_secret(value: str) -> bool:
    """Whether a text holds a password in a URL, or a secret name with its value."""
    named = ((one or other, given) for one, other, given in _NAMED_VALUE.findall(value))
    return _PASSWORD_IN_URL.search(value) is not None or any(
        is_secret(name) and not _is_switch(given) for name, given in named
    )


def without_secrets(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties whose name and value hold no secret."""
    return {name: value for name, value in properties.items() if not (is_secret(name) or holds_secret(value))}


def drop_holders(environment: MutableMapping[str, str]) -> None:
    """Removes the settings that may hold secrets from an environment, once they were read."""
    for name in HOLDERS:
        environment.pop(name, None)


@contextmanager
def withheld(also: Iterable[str] = ()) -> Iterator[None]:
    """Temporarily removes the operator's own variables and the settings' secrets from this process's environment.
    What is started or imported meanwhile doesn't get them.
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
