"""The tests' broker with a second listener: TLS on a port of its own, with users and passwords."""

from __future__ import annotations

from orchestration.local import server_config
from orchestration.local.broker import EmbeddedBroker
from pipelines.settings import Settings
from tests.security.certificates import Authority
from tests.shared.ports import port_of

_LISTENER = """
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="right";
listener.name.login.ssl.keystore.type=PEM
listener.name.login.ssl.keystore.location={server}
"""


def login_port() -> int:
    return port_of("login")


class BrokerWithLogin(EmbeddedBroker):
    """The embedded broker, with a second listener."""

    def _write_configuration(self) -> None:
        super()._write_configuration()
        path = server_config.properties_file(self._home)
        own = f"LOGIN://127.0.0.1:{login_port()}"
        more = {"listeners": own, "advertised.listeners": own, "listener.security.protocol.map": "LOGIN:SASL_SSL"}
        lines = [
            f"{line},{more[name]}" if (name := line.partition("=")[0]) in more else line
            for line in path.read_text().splitlines()
        ]
        server = Authority.made(self._home, "ca").server("server")
        path.write_text("\n".join(lines) + _LISTENER.format(server=server))


def with_login(broker: Settings, password: str) -> Settings:
    """The settings to log in there as ada, whose password is `right`."""
    kafka = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(broker.state_dir / "broker" / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password": password,
    }
    return broker.model_copy(update={"broker_port": login_port(), "kafka": kafka})
