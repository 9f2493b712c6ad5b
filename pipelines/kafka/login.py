"""How processes log in: the settings' `kafka` table as properties of librdkafka and of Kafka's Java client (Spark).

The table uses librdkafka's names. It may also hold properties that only the Java client knows, such as a JAAS line, for
what can't be translated. librdkafka doesn't get those; the Java client gets them as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pipelines.errors import BadUsage
from pipelines.secrets import is_secret
from pipelines.settings import Settings

_SECURITY = "org.apache.kafka.common.security"
# name of the config provider that resolves secrets for the Java client
_PROVIDER = "switchyard"
# librdkafka would refuse these
_JAVA_ONLY = ("sasl.jaas.config", "sasl.login.", "sasl.client.callback.", "ssl.truststore.", "ssl.keystore.type",
              "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.keymanager.", "ssl.trustmanager.")  # fmt: skip
# property that the Java client doesn't have -> what to use instead
_NO_JAVA = {
    "ssl.crl.location": "revoke certificates at the broker",
    "ssl.providers": "remove it",
    "ssl.engine.location": "give the key and the certificate as PEM files",
    "ssl.engine.id": "give the key and the certificate as PEM files",
    "ssl.ca.certificate.stores": "give the CA as a PEM file: ssl.ca.location",
    "ssl.curves.list": "remove it: both clients negotiate with the broker",
    "ssl.sigalgs.list": "remove it: both clients negotiate with the broker",
    "ssl.cipher.suites": "remove it: OpenSSL and Java name ciphers differently. To restrict them, set the broker's ssl.cipher.suites",
    "sasl.oauthbearer.config": "use sasl.oauthbearer.method=oidc",
}
# librdkafka's name without its suffix -> the suffix of Java's name, and its store
_PEM = {
    "ssl.ca": ("certificates", "truststore"),
    "ssl.certificate": ("certificate.chain", "keystore"),
    "ssl.key": ("key", "keystore"),
}
_OIDC = {
    "sasl.oauthbearer.client.id": "clientId",
    "sasl.oauthbearer.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
}
_MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule",
            "SCRAM-SHA-512": "scram.ScramLoginModule"}  # fmt: skip


def properties(settings: Settings) -> dict[str, str]:
    """The login, with librdkafka's names."""
    return {name: value for name, value in settings.kafka_properties.items() if not name.startswith(_JAVA_ONLY)}


def java_properties(settings: Settings) -> dict[str, str]:
    """The login, with the names of Kafka's Java client. PEM files are read; user and password become a JAAS line.

    Raises BadUsage for a property that the Java client doesn't have; the error never shows its value.
    """
    table = settings.kafka_properties
    for name in table:
        if name in _NO_JAVA or (name.startswith("sasl.kerberos.") and "sasl.jaas.config" not in table):
            fix = _NO_JAVA.get(name, "also set a JAAS line: sasl.jaas.config")
            raise _unknown_to_java(name, fix)
    mechanism = _mechanism(table)
    java: dict[str, str] = {}
    if mechanism:
        java["sasl.mechanism"] = mechanism
    java |= _pem(table)
    if (protocol := table.pop("security.protocol", None)) is not None:
        java["security.protocol"] = protocol.upper()
    if table.get("ssl.endpoint.identification.algorithm") == "none":
        table["ssl.endpoint.identification.algorithm"] = ""
    if "ssl.keystore.location" in table:
        # the only kind that librdkafka reads
        table.setdefault("ssl.keystore.type", "PKCS12")
    java |= _login(table, mechanism, java.get("security.protocol", ""))
    return {**java, **table}


def by_reference(java: Mapping[str, str]) -> dict[str, str]:
    """The same properties, with a reference in place of each secret. The Java client resolves it when it is created.

    Works only in a process of this user on this machine. Spark shows a stream's options unmasked in its plans, and in
    errors that contain a plan. So the secrets are in a file in this process's memory, which has no name in any folder.
    """
    secrets = {name: value for name, value in java.items() if is_secret(name)}
    if not secrets:
        return dict(java)
    path = _memory_file(os.getpid(), tuple(sorted(secrets.items())))
    return {
        **java,
        **{name: f"${{{_PROVIDER}:{path}:{name}}}" for name in secrets},
        "config.providers": _PROVIDER,
        f"config.providers.{_PROVIDER}.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }


@cache
def _memory_file(pid: int, properties: tuple[tuple[str, str], ...]) -> str:
    """The path of a properties file in this process's memory. It exists as long as the process."""
    file = os.memfd_create("login")
    with open(file, "w", closefd=False) as writing:
        writing.writelines(f"{name}={_escaped(value)}\n" for name, value in properties)
    return f"/proc/{pid}/fd/{file}"


def _escaped(value: str) -> str:
    """A value for a line of Java properties: a backslash starts an escape, and leading blanks are dropped."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\f", "\\f")
    return f"\\{value}" if value.startswith((" ", "\t")) else value


def _unknown_to_java(name: str, fix: str) -> BadUsage:
    return BadUsage(f"kafka.{name}: Spark reads with Kafka's Java client, which has no such property", fix=fix)


def _mechanism(table: dict[str, str]) -> str | None:
    """Removes the mechanism from the table, where it has two names, and returns it."""
    several, one = table.pop("sasl.mechanisms", None), table.pop("sasl.mechanism", None)
    if several is not None and one is not None and several != one:
        raise BadUsage(
            f"kafka.sasl.mechanism is {one} and kafka.sasl.mechanisms is {several}",
            fix="remove one: they mean the same",
        )
    return one or several


def _pem(table: dict[str, str]) -> dict[str, str]:
    """Removes the PEM files and texts from the table, and returns them with Java's names."""
    java: dict[str, str] = {}
    for name, (end, store) in _PEM.items():
        text, path = table.pop(f"{name}.pem", None), table.pop(f"{name}.location", None)
        if path is not None:
            text = _read(f"{name}.location", Path(path))
        if text is None:
            continue
        if any(f"BEGIN {kind} PRIVATE KEY" in text for kind in ("RSA", "EC", "DSA")):
            raise BadUsage(
                f"kafka.{name}: Spark reads with Kafka's Java client, which needs the key in PKCS#8",
                fix="convert it: openssl pkcs8 -topk8 -in key.pem -out key.pkcs8.pem",
            )
        java |= {f"ssl.{store}.type": "PEM", f"ssl.{store}.{end}": text}
    return java


def _read(name: str, path: Path) -> str:
    if path.is_dir():
        raise BadUsage(
            f"kafka.{name} is a folder: {path}. Spark reads with Kafka's Java client, which takes one file",
            fix="put the certificates into one PEM file, one after the other",
        )
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"kafka.{name} can't be read as a PEM file: {path}: {error}", fix="name a PEM file") from error


def _login(table: dict[str, str], mechanism: str | None, protocol: str) -> dict[str, str]:
    """Removes user and password, or the OIDC client, from the table, and returns them as a JAAS line."""
    user = {name: table.pop(name) for name in ("sasl.username", "sasl.password") if name in table}
    if table.get("sasl.oauthbearer.method") == "oidc":
        client = {name: table.pop(name) for name in (*_OIDC, "sasl.oauthbearer.method") if name in table}
        handler = {"sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler"}
        words = {_OIDC[name]: value for name, value in client.items() if name in _OIDC}
        jaas = {} if "sasl.jaas.config" in table else _jaas("oauthbearer.OAuthBearerLoginModule", words)
        return {**handler, **jaas}
    if "sasl.jaas.config" in table:
        return {}
    if not user:
        if protocol.startswith("SASL_"):
            raise BadUsage(
                f"kafka.security.protocol is {protocol}, but there is no login",
                fix="set sasl.mechanism, sasl.username and sasl.password in the kafka table of switchyard.toml",
            )
        return {}
    missing = {"sasl.username", "sasl.password"} - user.keys()
    if missing:
        raise BadUsage(
            f"the kafka table has no {missing.pop()}",
            fix="a login needs both a user and a password; that of drivers has both in driver_kafka",
        )
    module = _MODULES.get(mechanism or "")
    if module is None:
        raise BadUsage(
            f"kafka.sasl.mechanism {mechanism or 'unset'} doesn't work with a user and a password",
            fix=f"use one of {', '.join(_MODULES)}; for another mechanism set a JAAS line: sasl.jaas.config",
        )
    return _jaas(module, {name.removeprefix("sasl."): value for name, value in user.items()})


def _jaas(module: str, words: Mapping[str, str]) -> dict[str, str]:
    return {"sasl.jaas.config": f"{_SECURITY}.{module} required {' '.join(map(_quoted, words.items()))};"}


def _quoted(word: tuple[str, str]) -> str:
    """A word of a JAAS line: a backslash starts an escape, and a line break would end the text."""
    value = word[1].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'{word[0]}="{value}"'
