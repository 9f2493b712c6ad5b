"""What is said to whom the cluster does not let in: what is wrong, which setting helps, never the password."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from orchestration.cli import run
from pipelines.errors import LoginRefused, Unavailable
from pipelines.kafka.client import require_broker
from pipelines.settings import Settings, get_settings
from tests.security.certificates import Authority
from tests.security.guarded import ADMIN, PLANTED, Guarded

pytestmark = pytest.mark.broker


def changed(settings: Settings, **changes: str | None) -> Settings:
    """Underscores stand for dots; None takes a property out."""
    table = {**settings.kafka_properties, **{name.replace("_", "."): value for name, value in changes.items()}}
    return with_login(settings, {n: v for n, v in table.items() if v is not None})


def with_login(settings: Settings, table: dict[str, str]) -> Settings:
    return Settings(**{**settings.model_dump(), "kafka": table})


def said_to(settings: Settings) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        require_broker(settings, timeout_s=20)
    assert PLANTED not in str(caught.value)
    return caught.value


@contextmanager
def server_with(certificate: Path) -> Iterator[str]:
    """The address of a server that shows this certificate to whoever connects, and knows nothing of Kafka."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.settimeout(10)
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        continue  # the client did not like it

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            thread.join(20)


def test_each_mechanism_accepts_the_right_password(guarded: Guarded) -> None:
    guarded.add("visitor")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        require_broker(guarded.settings("visitor", mechanism=mechanism), timeout_s=20)


@pytest.mark.parametrize(
    ("user", "mechanism", "words"),
    [
        ("admin", "SCRAM-SHA-512", "refuses the login of admin: "),
        ("nobody-here", "SCRAM-SHA-512", "refuses the login of nobody-here: "),
        ("admin", "PLAIN", "supported mechanisms: "),
    ],
)
def test_a_login_that_is_refused_names_its_user_and_the_settings(
    guarded: Guarded, user: str, mechanism: str, words: str
) -> None:
    said = said_to(guarded.settings(user, PLANTED, mechanism=mechanism))
    assert isinstance(said, LoginRefused) and words in said.what
    assert "sasl.mechanism, sasl.username and sasl.password" in said.fix


def test_who_speaks_without_tls_or_login_is_told_to_look_at_the_protocol(guarded: Guarded) -> None:
    settings = guarded.settings("admin", PLANTED)
    for spoken in (changed(settings, security_protocol="SSL", sasl_mechanism=None, sasl_username=None, sasl_password=None),
                   with_login(settings, {})):  # fmt: skip
        with pytest.raises(Unavailable) as caught:
            require_broker(spoken, timeout_s=1.5)
        protocol = spoken.kafka_properties.get("security.protocol", "plaintext")
        assert "or it expects a login or TLS" in caught.value.what
        assert f"security.protocol is {protocol}" in caught.value.what
        assert "security.protocol" in caught.value.fix and "SWITCHYARD_KAFKA" in caught.value.fix


def test_a_certificate_of_an_unknown_ca_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    other = Authority.made(tmp_path, "other")
    said = said_to(changed(guarded.settings("admin", PLANTED), ssl_ca_location=str(other.file)))
    assert isinstance(said, LoginRefused)
    assert said.what.startswith("no TLS connection") and "ssl.ca.location" in said.fix


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ({"until": -timedelta(hours=1)}, "must not have expired"),
        ({"host": "elsewhere.example"}, "must contain the host name"),
    ],
)
def test_a_certificate_that_serves_no_more_or_not_here_is_refused(
    guarded: Guarded, tmp_path: Path, certificate: dict[str, timedelta | str], words: str
) -> None:
    authority = Authority.made(tmp_path, "ca")
    with server_with(authority.server("server", **certificate)) as address:  # type: ignore[arg-type]
        settings = changed(guarded.settings("admin", PLANTED), ssl_ca_location=str(authority.file))
        said = said_to(settings.model_copy(update={"bootstrap_servers": address}))
    assert isinstance(said, LoginRefused) and said.what.startswith("no TLS connection")
    # the client's text doesn't tell one from the other
    assert said.fix.startswith("check ssl.ca.location in ") and words in said.fix
    # a good one is taken
    with server_with(authority.server("good")) as address, pytest.raises(Unavailable) as caught:
        require_broker(settings.model_copy(update={"bootstrap_servers": address}), timeout_s=1.5)
    assert not isinstance(caught.value, LoginRefused)


def test_the_command_line_tells_it_in_two_lines(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in guarded.settings("admin", PLANTED).environment().items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    assert run(["status"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: the Kafka cluster at ") and "refuses the login of admin" in said.err
    assert len(said.err.splitlines()) == 2
    assert PLANTED not in said.out + said.err


def test_it_was_the_password_alone(guarded: Guarded) -> None:
    require_broker(guarded.settings("admin", ADMIN), timeout_s=20)
