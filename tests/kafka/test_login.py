"""One table of the settings gives both of Kafka's clients a login, or an error that names the property."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestration.launchers.local import LocalLauncher
from pipelines.errors import BadUsage
from pipelines.kafka.client import admin, consumer, producer
from pipelines.kafka.login import java_properties, properties
from pipelines.settings import Settings

LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": "planted-secret",
}


def settings(**changes: str | None) -> Settings:
    """A login with SCRAM and changes: underscores stand for dots; None removes a property."""
    named = {name.replace("_", "."): value for name, value in changes.items()}
    return Settings(bootstrap_servers="k:1", kafka={n: v for n, v in {**LOGIN, **named}.items() if v is not None})


def operator(folder: Path, own: dict[str, str]) -> Settings:
    """The settings of an operator whose drivers have another login."""
    return Settings(bootstrap_servers="k:1", kafka=LOGIN, driver_kafka=own, state_dir=folder)


def stream_tokens(line: str) -> dict[str, str]:
    """Splits a JAAS line into words as Java's StreamTokenizer does."""
    words, escapes = {}, {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
    rest = line.removesuffix(";").partition(" required ")[2]
    while rest:
        name, _, rest = rest.partition('="')
        value, at = "", 0
        while rest[at] != '"':
            assert rest[at] not in "\n\r", "a line ends the text"
            if rest[at] == "\\":
                at += 1
                value += escapes.get(rest[at], rest[at])
            else:
                value += rest[at]
            at += 1
        words[name.strip()], rest = value, rest[at + 1 :]
    return words


@pytest.mark.parametrize(
    "password", ["plain", 'a"b', "a\\b", 'ends with \\"\\', "two\nlines\r", "näh € 鍵", "a;b=c, required ${x} %s"]
)
def test_java_reads_the_very_password_out_of_the_jaas_line(password: str) -> None:
    found = java_properties(settings(sasl_password=password))
    assert stream_tokens(found["sasl.jaas.config"]) == {"username": "me", "password": password}
    assert found["sasl.jaas.config"].startswith("org.apache.kafka.common.security.scram.ScramLoginModule required ")
    assert not {"sasl.username", "sasl.password"} & found.keys()


def test_both_clients_get_their_own_words() -> None:
    given = settings(
        security_protocol="sasl_ssl", ssl_endpoint_identification_algorithm="none", sasl_jaas_config="mine;"
    )
    java, own = java_properties(given), properties(given)
    # Java disables the check of the host by an empty name
    assert (java["security.protocol"], java["ssl.endpoint.identification.algorithm"]) == ("SASL_SSL", "")
    assert java["sasl.jaas.config"] == "mine;"
    assert (own["ssl.endpoint.identification.algorithm"], own["sasl.username"]) == ("none", "me")
    # librdkafka refuses Java's own properties
    assert "sasl.jaas.config" not in own
    for make in (admin, consumer, producer):
        make(given)


def test_a_store_of_keys_is_of_the_kind_that_both_clients_read() -> None:
    java = java_properties(settings(ssl_keystore_location="/keys.p12", ssl_keystore_password="x"))
    assert (java["ssl.keystore.type"], java["ssl.keystore.location"]) == ("PKCS12", "/keys.p12")


@pytest.mark.parametrize(
    ("changes", "words", "fix"),
    [
        ({"ssl_crl_location": "/crl.pem"}, "kafka.ssl.crl.location: Spark reads with Kafka's Java client", "at the broker"),
        ({"ssl_cipher_suites": "X"}, "kafka.ssl.cipher.suites", "OpenSSL and Java"),
        ({"sasl_kerberos_keytab": "/k"}, "kafka.sasl.kerberos.keytab", "sasl.jaas.config"),
        ({"sasl_mechanisms": "PLAIN"}, "sasl.mechanism is SCRAM-SHA-512 and kafka.sasl.mechanisms is PLAIN", "remove one"),
        ({"sasl_mechanism": "GSSAPI"}, "kafka.sasl.mechanism GSSAPI doesn't work with a user and a password", "SCRAM-SHA-512"),
        ({"sasl_mechanism": None}, "kafka.sasl.mechanism unset doesn't work with a user and a password", "SCRAM-SHA-512"),
        ({"sasl_password": None}, "the kafka table has no sasl.password", "both"),
        ({"sasl_username": None}, "the kafka table has no sasl.username", "both"),
        ({"sasl_password": None, "sasl_username": None}, "SASL_SSL, but there is no login", "sasl.username"),
        ({"ssl_ca_location": "/nowhere/ca.pem"}, "kafka.ssl.ca.location can't be read as a PEM file: /nowhere/ca.pem", "PEM"),
        ({"ssl_key_pem": "-----BEGIN RSA PRIVATE KEY-----"}, "needs the key in PKCS#8", "openssl pkcs8"),
    ],
)  # fmt: skip
def test_what_java_can_not_be_told_is_named(changes: dict[str, str | None], words: str, fix: str) -> None:
    with pytest.raises(BadUsage) as caught:
        java_properties(settings(**changes))
    assert words in caught.value.what and fix in caught.value.fix
    assert "planted-secret" not in str(caught.value)


def test_a_folder_of_certificates_is_one_client_s_only(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"kafka\.ssl\.ca\.location is a folder"):
        java_properties(settings(ssl_ca_location=str(tmp_path)))


def test_drivers_have_a_login_of_their_own_and_not_the_operator_s(tmp_path: Path) -> None:
    own = {"sasl.username": "driver", "sasl.password": "driver-secret"}
    mine = operator(tmp_path, own)
    assert properties(mine)["sasl.username"] == "me"
    driver = mine.for_driver()
    assert properties(driver) == {**LOGIN, **own}
    # it also replaces a setting in the operator's own environment
    environment = driver.environment()
    assert json.loads(environment["SWITCHYARD_KAFKA"]) == {**LOGIN, **own}
    assert json.loads(environment["SWITCHYARD_DRIVER_KAFKA"]) == {}
    assert "planted-secret" not in str(environment)


MTLS = {
    "security.protocol": "SSL", "ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.key", "ssl.key.password": "planted",
    "ssl.keystore.location": "/me.p12", "ssl.keystore.password": "planted",
}  # fmt: skip
OIDC = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login", "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": "planted", "sasl.oauthbearer.scope": "all",
}  # fmt: skip
JAAS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": 'x required password="planted";',
}
SCRAM = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "it", "sasl.password": "its"}
CERTIFICATE = {"security.protocol": "ssl", "ssl.certificate.location": "/it.pem", "ssl.key.location": "/it.key"}
CLIENT = {"sasl.oauthbearer.client.id": "it", "sasl.oauthbearer.client.secret": "its"}
USER = {"sasl.username": "it", "sasl.password": "its"}


@pytest.mark.parametrize(
    ("operators", "own", "kept"),
    [
        (LOGIN, CERTIFICATE, ()),
        (LOGIN, SCRAM, ("security.protocol",)),
        (LOGIN, USER, ("security.protocol", "sasl.mechanism")),
        (LOGIN, {"security.protocol": "SASL_PLAINTEXT", **USER}, ("sasl.mechanism",)),
        (LOGIN, {"sasl.mechanisms": "PLAIN", **USER}, ("security.protocol",)),
        (LOGIN, {"sasl.jaas.config": "its;"}, ("security.protocol", "sasl.mechanism")),
        (MTLS, {"security.protocol": "SASL_SSL", **SCRAM}, ()),
        (MTLS, CERTIFICATE, ()),
        (OIDC, CLIENT, ("security.protocol", "sasl.mechanism", "sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url")),
        (OIDC, SCRAM, ("security.protocol",)),
        (OIDC, CERTIFICATE, ()),
        (JAAS, USER, ("security.protocol", "sasl.mechanism")),
        ({**MTLS, **LOGIN}, SCRAM, ("security.protocol",)),
        (LOGIN, {"security.protocol": "PLAINTEXT"}, ()),
    ],
)  # fmt: skip
def test_nothing_of_the_operator_s_login_is_left_to_a_driver_that_has_its_own(
    operators: dict[str, str], own: dict[str, str], kept: tuple[str, ...]
) -> None:
    """Whatever the forms of the two are; `kept`: how to log in, which is the same for both."""
    shared = {"ssl.ca.location": "/ca.pem", "ssl.endpoint.identification.algorithm": "https"}
    driver = Settings(bootstrap_servers="k:1", kafka={**shared, **operators}, driver_kafka=own).for_driver()
    assert driver.kafka_properties == {**shared, **{name: operators[name] for name in kept}, **own}
    assert "planted" not in str(driver.environment_of_driver())


def test_without_a_login_of_its_own_a_driver_has_the_operator_s() -> None:
    for own in ({}, {"ssl.ca.location": "/its.pem"}, {"security.protocol": "SASL_PLAINTEXT"}):
        driver = Settings(bootstrap_servers="k:1", kafka=LOGIN, driver_kafka=own).for_driver()
        assert driver.kafka_properties == {**LOGIN, **own}


def test_half_a_login_of_a_driver_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"no sasl\.password") as caught:
        LocalLauncher(operator(tmp_path, {"sasl.username": "it"})).launch("stock-stats.v1")
    assert "driver_kafka" in caught.value.fix


def test_a_password_of_the_environment_joins_the_login_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "switchyard.toml").write_text(
        '[kafka]\n"sasl.username" = "me"\n[driver_kafka]\n"sasl.username" = "it"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_KAFKA", '{"sasl.password": "mine"}')
    monkeypatch.setenv("SWITCHYARD_DRIVER_KAFKA", '{"sasl.password": "its"}')
    found = Settings()
    assert properties(found) == {"sasl.username": "me", "sasl.password": "mine"}
    assert properties(found.for_driver()) == {"sasl.username": "it", "sasl.password": "its"}


def test_a_driver_is_not_started_with_a_login_that_spark_can_not_use(tmp_path: Path) -> None:
    mine = operator(tmp_path, {"ssl.crl.location": "/crl.pem"})
    with pytest.raises(BadUsage, match=r"ssl\.crl\.location"):
        LocalLauncher(mine).launch("stock-stats.v1")
    assert not list(tmp_path.iterdir())


def test_only_security_is_taken_of_a_driver_s_login() -> None:
    with pytest.raises(ValueError, match=r"driver_kafka takes security"):
        Settings(driver_kafka={"linger.ms": "1"})
