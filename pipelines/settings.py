"""All settings in one object, read from the environment and from `switchyard.toml`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from pipelines.secrets import drop_holders, is_secret, plain_environment, remember

SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")


class Settings(BaseSettings):
    """Settings of the platform. Each is an environment variable `SWITCHYARD_<NAME>` or a line of
    `switchyard.toml` in the working folder; the environment wins.

    `kafka` takes every `security.*`, `sasl.*` and `ssl.*` property, with librdkafka's names, as a
    TOML table or as JSON in `SWITCHYARD_KAFKA`; `driver_kafka` takes those that differ for drivers.
    """

    # errors don't show the given value: it may be a password
    model_config = SettingsConfigDict(
        env_prefix="SWITCHYARD_", toml_file="switchyard.toml", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    # an existing cluster; unset: the embedded broker on this machine
    bootstrap_servers: str | None = None
    # secrets in it can't be shown by accident; `kafka_properties` has them as text
    kafka: Mapping[str, SecretStr | str] = Field(default_factory=dict)
    # the drivers' own login, if they have a user with fewer rights: replaces `kafka` property by property
    driver_kafka: Mapping[str, SecretStr | str] = Field(default_factory=dict)
    # replication factor of every topic that the platform creates
    replication_factor: int = Field(1, ge=1)
    request_timeout_s: float = Field(10.0, gt=0)
    # how long the broker keeps a killed driver's transaction open; meanwhile readers of its results wait. The broker
    # checks every 10 s, so that takes at most two minutes. A batch that isn't written by then is aborted and retried
    transaction_timeout_s: float = Field(110.0, ge=10)

    # everything on disk: broker data, checkpoints, frozen code, evidence, logs
    state_dir: Path = Path(".switchyard")
    # the embedded broker's controller uses the next port
    broker_port: int = Field(19092, ge=1, le=65535)
    broker_heap_mb: int = Field(1024, ge=256)

    driver_heap_mb: int = Field(1024, ge=512)
    driver_cores: int = Field(2, ge=1)
    # niceness of Spark in drivers and checks: it leaves the cores to the broker, to commands and to consumers on the
    # same host
    driver_nice: int = Field(5, ge=0, le=19)
    spark_master: str | None = None
    # a driver's Spark UI, with its Prometheus endpoint; 0: off
    spark_ui_port: int = Field(0, ge=0, le=65535)
    shuffle_partitions: int = Field(2, ge=1)
    # extra Spark properties, passed as they are; hidden, as they may include a store's keys
    spark: dict[str, str] = Field(default_factory=dict, repr=False)
    # names of more environment variables for a driver and its app, such as AWS_PROFILE for a store
    driver_environment: tuple[str, ...] = ()
    # least time between the starts of a live release's batches. With a large state a small batch costs 0.8 s of CPU:
    # without a pause, the live release would keep the cores from the release that is to align or to be compared with it
    trigger_s: float = Field(1.0, ge=0)
    # least time between the batches of a release that is ready or standby. No one reads it, and the live release on the
    # same cores is read. The pause is cut short when the release has to align
    standby_trigger_s: float = Field(2.0, ge=0)
    # planning and commits cost half a second per batch, whatever it holds. Twice the records per batch gave a fifth
    # more records per second while stock-stats hydrated
    max_records_per_batch: int = Field(800_000, ge=1)
    # input bytes per batch, estimated from samples. A batch's result passes through the driver's heap, which holds up
    # to four copies. With 1 GiB of heap, an app that passes its input on managed 150 MB, but not 600 MB
    max_bytes_per_batch: int = Field(128 * 2**20, ge=1)
    heartbeat_s: float = Field(1.0, gt=0)
    # a driver may be taken over if it was not heard for this long
    lease_timeout_s: float = Field(15.0, gt=0)
    # the same before a lease holder's first heartbeat: it has to boot, on two busy cores
    boot_timeout_s: float = Field(120.0, gt=0)
    # how often in a row a supervisor starts a driver that keeps dying, before it sets the release to failed
    restart_limit: int = Field(6, ge=1)
    # how long a stopped driver's JVM may take to end before it is killed; shorter than `lease_timeout_s`
    jvm_end_timeout_s: float = Field(10.0, gt=0)
    # longest that an app's function may take on empty frames when it is staged, including the start of a JVM
    probe_timeout_s: float = Field(180.0, gt=0)
    # longest that a switch may hold followers at a barrier
    switch_timeout_s: float = Field(60.0, gt=0)

    # of drivers, of Spark in them and of commands. json: each line is a JSON object, for a log collector
    log_format: Literal["text", "json"] = "text"

    # how long a reset can be undone: then the janitor deletes its archive
    archive_keep_s: float = Field(7 * 24 * 3600.0, ge=0)

    @field_validator("kafka", "driver_kafka")
    @classmethod
    def _only_security(
        cls, value: Mapping[str, SecretStr | str], info: ValidationInfo
    ) -> Mapping[str, SecretStr | str]:
        bad = [name for name in value if not name.startswith(SECURITY_PREFIXES)]
        if bad:
            raise ValueError(f"{info.field_name} takes security.*, sasl.* and ssl.* properties, not {', '.join(bad)}")
        return {name: SecretStr(text) if is_secret(name) else text for name, text in revealed(value).items()}

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    def model_post_init(self, context: Any) -> None:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                remember(revealed(value))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            env_settings,
            TomlConfigSettingsSource(settings_cls),
        )

    @property
    def embedded(self) -> bool:
        """Whether the broker is the one that `switchyard up` starts."""
        return self.bootstrap_servers is None

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_servers or f"127.0.0.1:{self.broker_port}"

    @property
    def kafka_properties(self) -> dict[str, str]:
        """The properties of `kafka` as text, including secrets: only for Kafka's clients."""
        return revealed(self.kafka)

    @property
    def host(self) -> str:
        return socket.gethostname()

    def for_driver(self) -> Settings:
        """The settings of a driver: with its own login, if it has one, and without the operator's."""
        return self.model_copy(update={"kafka": {**self.kafka, **self.driver_kafka}, "driver_kafka": {}})

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, including secrets."""
        import json

        out: dict[str, str] = {}
        for name, value in self.model_dump(exclude_none=True).items():
            shown = revealed(value) if isinstance(value, Mapping) else value
            out[f"SWITCHYARD_{name.upper()}"] = json.dumps(shown) if isinstance(shown, dict | tuple) else str(shown)
        return out

    def child_environment(self) -> dict[str, str]:
        """What a child process in another folder needs: this process's environment, with these settings."""
        return {**os.environ, **self.environment()}

    def environment_of_driver(self) -> dict[str, str]:
        """What a driver gets: these settings, and this process's environment without the operator's own variables."""
        return {**plain_environment(os.environ, self.driver_environment), **self.environment()}

    def environment_of_trial(self) -> dict[str, str]:
        """What a process gets that tries an app on empty input. It needs no cluster: no login, and no store's keys."""
        import json

        out = self.environment_of_driver()
        drop_holders(out)
        harmless = {name: value for name, value in self.spark.items() if not is_secret(name)}
        return {**out, "SWITCHYARD_SPARK": json.dumps(harmless)}


def revealed(properties: Mapping[str, SecretStr | str]) -> dict[str, str]:
    """Properties with their secrets as text: only for clients that need them."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in properties.items()
    }


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process."""
    return Settings()


def override(**changes: Any) -> Settings:
    """A copy of the process's settings with `changes`, for tests and embedding."""
    return Settings(**{**get_settings().model_dump(), **changes})
