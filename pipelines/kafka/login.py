"""How processes log in: the settings' `kafka` table as properties of librdkafka, and of Kafka's Java client, which Spark uses.

The table goes by librdkafka's names. What only Java's client knows (a JAAS line, say) may stand beside them, for what can't
be translated: librdkafka is not shown it, and Java's client takes it as it is.
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
# of secrets, for Java's client
_PROVIDER = "switchyard"
# what librdkafka would refuse
_JAVA_ONLY = ("sasl.jaas.config", "sasl.login.", "sasl.client.callback.", "ssl.truststore.", "ssl.keystore.type",
              "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.keymanager.", "ssl.trustmanager.")  # fmt: skip
# what Java's client doesn't know -> what to give it instead
_NO_JAVA = {
    "ssl.crl.location": "revoke certificates at the broker",
    "ssl.providers": "leave it out",
    "ssl.engine.location": "give key and certificate as PEM files",
    "ssl.engine.id": "give key and certificate as PEM files",
    "ssl.ca.certificate.stores": "give the CA as a PEM file: ssl.ca.location",
    "ssl.curves.list": "leave it out: both clients agree with the broker",
    "ssl.sigalgs.list": "leave it out: both clients agree with the broker",
    "ssl.cipher.suites": "leave it out: OpenSSL and Java name them differently; the broker's ssl.cipher.suites can restrict them",
    "sasl.oauthbearer.config": "use sasl.oauthbearer.method=oidc",
}
# librdkafka's name without its ending -> the end of Java's name, and which store it is in
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
    """The login by librdkafka's names."""
    return {name: value for name, value in settings.kafka_properties.items() if not name.startswith(_JAVA_ONLY)}


def java_properties(settings: Settings) -> dict[str, str]:
    """The login by the names of Kafka's Java client; PEM files are read, user and password become a JAAS line.

    Raises BadUsage for what Java's client has no word for, naming the property and never its value.
    """
    table = settings.kafka_properties
    for name in table:
        if name in _NO_JAVA or (name.startswith("sasl.kerberos.") and "sasl.jaas.config" not in table):
            fix = _NO_JAVA.get(name, "give it a JAAS line as well: sasl.jaas.config")
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
    """The same properties with a reference in place of each secret, which Java's client resolves where it is made.

    That must be a process of this user on this machine. Spark shows the options of a stream, as they are, in its plans and
    in errors that hold a plan. The secrets are in a file of this process's memory, which no folder names.
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
    """The path of a file in the memory of this process, as Java reads properties. It is there as long as the process."""
    file = os.memfd_create("login")
    with open(file, "w", closefd=False) as writing:
        writing.writelines(f"{name}={_escaped(value)}\n" for name, value in properties)
    return f"/proc/{pid}/fd/{file}"


def _escaped(value: str) -> str:
    """The value of a line of Java's properties: a backslash begins an escape, blanks before a value are dropped."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\f", "\\f")
    return f"\\{value}" if value.startswith((" ", "\t")) else value


def _unknown_to_java(name: str, fix: str) -> BadUsage:
    return BadUsage(f"kafka.{name}: Kafka's Java client, which Spark reads with, has no such property", fix=fix)


def _mechanism(table: dict[str, str]) -> str | None:
    """Takes the mechanism out of the table, where it has two names."""
    several, one = table.pop("sasl.mechanisms", None), table.pop("sasl.mechanism", None)
    if several is not None and one is not None and several != one:
        raise BadUsage(
            f"kafka.sasl.mechanism is {one} and kafka.sasl.mechanisms is {several}", fix="leave one: they mean the same"
        )
    return one or several


def _pem(table: dict[str, str]) -> dict[str, str]:
    """Takes the PEM files and texts out of the table."""
    java: dict[str, str] = {}
    for name, (end, store) in _PEM.items():
        text, path = table.pop(f"{name}.pem", None), table.pop(f"{name}.location", None)
        if path is not None:
            text = _read(f"{name}.location", Path(path))
        if text is None:
            continue
        if any(f"BEGIN {kind} PRIVATE KEY" in text for kind in ("RSA", "EC", "DSA")):
            raise BadUsage(
                f"kafka.{name}: Kafka's Java client, which Spark reads with, takes a key in PKCS#8 only",
                fix="convert it: openssl pkcs8 -topk8 -in key.pem -out key.pkcs8.pem",
            )
        java |= {f"ssl.{store}.type": "PEM", f"ssl.{store}.{end}": text}
    return java


def _read(name: str, path: Path) -> str:
    if path.is_dir():
        raise BadUsage(
            f"kafka.{name} is a folder: {path}; Kafka's Java client, which Spark reads with, takes one file",
            fix="put the certificates into one PEM file, one after the other",
        )
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(
            f"kafka.{name} can't be read as a PEM file: {path}: {error}", fix="name a file in PEM"
        ) from error


def _login(table: dict[str, str], mechanism: str | None, protocol: str) -> dict[str, str]:
    """Takes user and password, or the OIDC client, out of the table, and makes a JAAS line of them."""
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
                f"kafka.security.protocol is {protocol}, and there is no login",
                fix="set sasl.mechanism, sasl.username and sasl.password in the kafka table of switchyard.toml",
            )
        return {}
    missing = {"sasl.username", "sasl.password"} - user.keys()
    if missing:
        raise BadUsage(f"the kafka table has no {missing.pop()}", fix="a login needs both a user and a password")
    module = _MODULES.get(mechanism or "")
    if module is None:
        raise BadUsage(
            f"a user and a password don't go with kafka.sasl.mechanism {mechanism or 'unset'}",
            fix=f"one of {', '.join(_MODULES)}; for another give a JAAS line: sasl.jaas.config",
        )
    return _jaas(module, {name.removeprefix("sasl."): value for name, value in user.items()})


def _jaas(module: str, words: Mapping[str, str]) -> dict[str, str]:
    return {"sasl.jaas.config": f"{_SECURITY}.{module} required {' '.join(map(_quoted, words.items()))};"}


def _quoted(word: tuple[str, str]) -> str:
    """A word of a JAAS line, in which a backslash begins an escape and a line ends the text."""
    value = word[1].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'{word[0]}="{value}"'
