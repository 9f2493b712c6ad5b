"""All settings in one object, read from the environment and from `switchyard.toml`."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from pipelines.bucket import SCHEME, Bucket, bucket_of, login_of, passed_to_driver, wrong_options
from pipelines.secrets import drop_holders, holds_secret, is_secret, plain_environment, remember, without_secrets

SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")
_PROPERTY = re.compile(r"[a-z]+([._][a-z]+)+")
# the user, the host and the port of a URL, with or without a scheme
_AUTHORITY = re.compile(r"(?:[^/?#]*:)?/*([^/?#]*)")
_REPOSITORIES = "spark.jars.repositories"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
# masters for which tasks run in the driver's own process
_LOCAL_MASTER = re.compile(r"local(\[(\*|\d+)( *, *\d+)?\])?")
_OTHER_MASTER = re.compile(r"spark://.+|local-cluster\[.+\]|yarn")
# variables that name a folder with YARN's configuration, and the file there that says where YARN is
_YARN_FOLDERS, _YARN_SITE = ("YARN_CONF_DIR", "HADOOP_CONF_DIR"), "yarn-site.xml"
# how long a driver may take besides the wait for its executors, until its first heartbeat
_BOOT_S = 30.0
# Spark properties that have a setting of their own, or that Switchyard relies on; what to do instead
_NOT_IN_SPARK = {
    "spark.master": "set spark_master, or SWITCHYARD_SPARK_MASTER, which other settings must fit",
    "spark.hadoop.fs.defaultFS": "leave it out, and write the scheme into paths: the store is on local or mounted disks",
}
# who a process is: users, passwords, keys, JAAS lines and all that is new in `sasl.`; the rest says how to log in
_IDENTITY = re.compile(
    r"sasl\.(?!mechanisms?$|oauthbearer\.(method|token\.endpoint\.url)$|kerberos\.service\.name$).*"
    r"|ssl\.(key|certificate|keystore)\..*"
)


class Settings(BaseSettings):
    """Settings of the platform. Each is an environment variable `SWITCHYARD_<NAME>` or a line of `switchyard.toml` in
    the working folder; the environment wins. Tables and lists are JSON in the environment.

    docs/settings.md is generated from the descriptions: what a setting does, then when to change it.
    """

    # errors don't show the given value: it may be a password
    model_config = SettingsConfigDict(
        env_prefix="SWITCHYARD_", toml_file="switchyard.toml", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    # -- Kafka

    bootstrap_servers: str | None = Field(
        None,
        description="Brokers of an existing cluster, as `host:port,host:port`. Without it, Switchyard uses the embedded "
        "broker of this machine. Set it for everything but a machine of your own.",
    )
    # secrets in it can't be shown by accident; `kafka_properties` has them as text
    kafka: Mapping[str, SecretStr | str] = Field(
        default_factory=dict,
        description="The login: every `security.*`, `sasl.*` and `ssl.*` property, with librdkafka's names. Set it if the "
        "cluster asks for a login or TLS. Put passwords into the environment variable, which is merged with the file.",
    )
    driver_kafka: Mapping[str, SecretStr | str] = Field(
        default_factory=dict,
        description="The drivers' own login. Give the complete login, with its password. A driver then gets no user, password or "
        "key of `kafka`. Any other property here replaces the same property of `kafka`. Set it to give drivers a user with "
        "fewer rights than operators have.",
    )
    replication_factor: int = Field(
        1,
        ge=1,
        description="Replication factor of every topic that Switchyard creates. From 3 on, more than half of the replicas "
        "must have a record before it counts as written. Set it to 3 on a cluster with three or more brokers.",
    )
    request_timeout_s: float = Field(
        10.0,
        gt=0,
        description="How long a request to Kafka may wait for an answer. Raise it if the cluster is far away or slow.",
    )
    transaction_timeout_s: float = Field(
        110.0,
        ge=10,
        description="How long the broker keeps the transaction of a killed driver open. Meanwhile, readers of its results "
        "wait. The broker checks every 10 s, so they wait two minutes at most. A batch that takes longer to write is "
        "aborted and written again. Raise it if `status` says that a batch does not fit. It must not exceed the broker's "
        "`transaction.max.timeout.ms`.",
    )

    # -- this machine

    state_dir: Path = Field(
        Path(".switchyard"),
        description="Folder for everything on disk: broker data, checkpoints, frozen code, static tables, evidence, logs. A "
        "relative path starts in the folder where a command runs. Set it on a server, so that all commands use one folder.",
    )
    store_url: str | None = Field(
        None,
        description="Where other hosts find what they need, too: frozen code, static tables, evidence, Data Docs and "
        "checkpoints. A folder, as a path or a `file:` URL, or a bucket, as `s3://BUCKET/PREFIX`. Without "
        "it, they are in `state_dir`. Set it to a folder of a file system that all hosts have at the same path, if a release "
        "may run on several hosts or with `spark_master`. Set it to a bucket if hosts share no folder.",
    )
    # secrets in it can't be shown by accident; `objects.object_store` has them as text
    store: Mapping[str, SecretStr | str] = Field(
        default_factory=dict,
        description="How to reach the bucket of `store_url`: `access_key`, `secret_key`, `session_token`, `region`, "
        "`endpoint_override` (`HOST:PORT`), `scheme` (`http` or `https`), `tls_ca_file_path`, `role_arn`, `session_name`, "
        "`external_id`. Without keys, AWS's own variables, profiles and roles say who logs in. Set it for a bucket that is "
        "not AWS's. Put keys into the environment variable, which is merged with the file.",
    )
    store_shared: bool = Field(
        False,
        description="Whether all hosts see the same files in the folder `store_url`. Set it to true once they do. With a "
        "`spark_master` on other hosts, commands and drivers refuse to run before that. A bucket does not need it.",
    )
    broker_port: int = Field(
        19092,
        ge=1,
        le=65535,
        description="Port of the embedded broker. Its controller uses the next port. Change it if another program has "
        "one of the two.",
    )
    broker_heap_mb: int = Field(
        1024,
        ge=256,
        description="Heap of the embedded broker. Raise it if the broker's log says that memory runs out.",
    )
    log_format: Literal["text", "json"] = Field(
        "text",
        description="How drivers, Spark in them and commands write their logs. Set it to `json` for a log collector: each "
        "line is then a JSON object.",
    )

    data_docs_port: int = Field(
        9789,
        ge=0,
        le=65535,
        description="Port on which `switchyard ui` and `switchyard data-docs` serve the Data Docs of checks, for this machine "
        "alone; 0 means not at all. Change it if another program has the port.",
    )
    data_docs_url: str | None = Field(
        None,
        description="The address under which browsers elsewhere see the Data Docs, such as "
        "`https://switchyard.example.com/data-docs`, without a login. Set it if a proxy serves them.",
    )

    # -- drivers

    driver_heap_mb: int = Field(
        1024,
        ge=512,
        description="Heap of a driver's JVM. Raise it if `status` shows that the heap is nearly full, or if a driver says "
        "that a batch needs more.",
    )
    driver_cores: int = Field(
        2,
        ge=1,
        description="How many tasks a driver runs at the same time. Raise it if the lag of a release grows and the machine "
        "has idle cores.",
    )
    driver_nice: int = Field(
        5,
        ge=0,
        le=19,
        description="Niceness of Spark in drivers and checks. It leaves the cores to the broker, to commands and to "
        "consumers on the same machine. Set it to 0 if drivers have the machine to themselves.",
    )
    driver_environment: tuple[str, ...] = Field(
        (),
        description="Names of more environment variables that a driver and its app get, such as `AWS_PROFILE`. Set it if "
        "an app or a store needs a variable that is not on [the list](security.md#what-a-driver-gets-from-the-environment).",
    )
    spark_master: str | None = Field(
        None,
        description="Where the tasks of drivers run: `spark://host:7077`, or `yarn`. Without it they run in the driver, on "
        "`driver_cores` cores. Trials and checks always run on the machine of their command. Set it if one machine is too "
        "small; it needs `store_shared` and `bootstrap_servers`, and `yarn` needs the variable `HADOOP_CONF_DIR`.",
    )
    driver_host: str | None = Field(
        None,
        description="Name or address by which executors reach the driver's host. Without it, that is the host's own name. Set "
        "it on each host if executors can't resolve that name. Used with `spark_master` only.",
    )
    driver_bind_address: str | None = Field(
        None,
        description="Address on which the driver listens for executors. Without it, that is `driver_host`. Set it if "
        "`driver_host` is not an address of the host itself, as behind a NAT. Used with `spark_master` only.",
    )
    executors: int = Field(
        2,
        ge=1,
        description="How many executors each driver asks for. Used with `spark_master` only. Raise it if the lag of a release "
        "grows and the cluster has idle cores.",
    )
    executor_cores: int = Field(
        2,
        ge=1,
        description="How many tasks an executor runs at the same time. Used with `spark_master` only. Raise it together with "
        "`executor_heap_mb`.",
    )
    executor_heap_mb: int = Field(
        1024,
        ge=512,
        description="Heap of an executor's JVM. It takes a quarter more for RocksDB, and its Python workers' memory. A "
        "container of YARN has room for both. Used with `spark_master` only. Raise it if executors run out of memory.",
    )
    spark_ui_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of a driver's Spark UI, with its Prometheus endpoint; 0 means none. Set it to look into a slow "
        "release.",
    )
    shuffle_partitions: int = Field(
        2,
        ge=1,
        description="How many partitions Spark splits a state into. A checkpoint keeps the number that it started with. "
        "Raise it together with `driver_cores`, before you stage a release with a large state.",
    )
    # hidden, as they may include a store's keys
    spark: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="More Spark properties, passed to Spark as they are. Set it if you need a property that no other "
        "setting covers, for example for an object store.",
    )

    diff_memory_mb: int = Field(
        1024,
        ge=256,
        description="Memory for the rows that a diff compares. What doesn't fit into it goes to files in the state folder. "
        "Raise it if a diff says that it is too little.",
    )

    # -- batches

    target_latency_s: float = Field(
        0.14,
        ge=0,
        allow_inf_nan=False,
        description="How long a record of a live release should wait for its results, on average. A driver pauses between "
        "two batches for as long as this allows. If a record waits longer even without pauses, there are none, except after a "
        "batch of more than 0.5 s: then the driver pauses for as long as the batch took, but for 1 s at most, and other "
        "drivers get the cores. For a release that is not ready yet, the target is at least 0.5 s. With 0, this setting "
        "causes no pause. "
        "Raise it to save CPU, and disk on the brokers: each batch is a transaction.",
    )
    trigger_s: float = Field(
        0.0,
        ge=0,
        description="Shortest time between the starts of two batches of a release that is live or hydrating, whatever "
        "`target_latency_s` says. While no records come, a driver asks for them twice in this time, but at most five times a "
        "second. Raise it to save CPU, or to read history more slowly.",
    )
    standby_trigger_s: float = Field(
        2.0,
        ge=0,
        description="Shortest time between the starts of two batches of a release that is ready or standby. No one reads it, so it leaves the cores to the live "
        "one. The pause ends early when the release has to meet another. Raise it to save CPU.",
    )
    max_records_per_batch: int = Field(
        3_200_000,
        ge=1,
        description="The most input records in one batch. The first batches read up to 800,000. While a full batch takes less "
        "than 2 s, the next may read twice as many: larger batches read history faster. Lower it if a batch takes too long to "
        "write.",
    )
    max_bytes_per_batch: int = Field(
        128 * 2**20,
        ge=1,
        description="The most input bytes in one batch, estimated from samples. Lower it if a driver runs out of memory and "
        "`driver_heap_mb` can't grow.",
    )

    # 8 MiB, 90,000 rows, cost 0.3 s of CPU in each batch, 7 s when a driver starts, and 130 MB of its heap
    static_table_max_bytes: int = Field(
        8 * 2**20,
        ge=1,
        description="The largest static table, in bytes of its file. `stage` refuses a larger one. A driver holds it several "
        "times, and sends it to each core in each batch. Raise it together with `driver_heap_mb`.",
    )

    # -- failures

    heartbeat_s: float = Field(
        1.0,
        gt=0,
        description="How often a driver sends a heartbeat. Keep it under a fifth of `lease_timeout_s`. There is rarely a "
        "reason to change it.",
    )
    lease_timeout_s: float = Field(
        15.0,
        gt=0,
        description="How long a driver may be silent before another may take its release over. Raise it if busy machines "
        "lose drivers that were alive; lower it for a faster takeover.",
    )
    boot_timeout_s: float = Field(
        120.0,
        gt=0,
        description="How long a driver may take until its first heartbeat: a JVM starts slowly on busy cores. Raise it if "
        "drivers are given up while they start.",
    )
    executor_timeout_s: float = Field(
        60.0,
        gt=0,
        description="How long a driver that starts waits until executors have run a first job. Then it ends, and says what is "
        "wrong. Used with `spark_master` only. Raise it if your cluster takes longer to start executors.",
    )
    restart_limit: int = Field(
        6,
        ge=1,
        description="How often in a row a supervisor starts a driver that keeps dying, before it sets the release to "
        "`failed`. Raise it if releases recover by themselves after more tries.",
    )
    checkpoint_copy_s: float = Field(
        10.0,
        gt=0,
        description="How often a driver copies its checkpoint to the bucket of `store_url`, if it has a new batch. Without a "
        "bucket, it copies nothing. A driver that takes over on another host runs the batches since the last copy again, which "
        "takes about as long as they took. Raise it if requests to your bucket cost too much: each copy takes two, and every eighth about ten more.",
    )
    jvm_end_timeout_s: float = Field(
        10.0,
        gt=0,
        description="How long the JVM of a stopped driver may take to end before it is killed. Keep it shorter than "
        "`lease_timeout_s`, so that it never writes into a checkpoint that another driver has. There is rarely a reason "
        "to change it.",
    )
    probe_timeout_s: float = Field(
        180.0,
        gt=0,
        description="How long `stage`, `show` and `try` may take to try an app. That includes the start of a JVM. Raise "
        "it on a slow machine.",
    )
    switch_timeout_s: float = Field(
        60.0,
        gt=0,
        description="How long a switch may keep consumers waiting at its barrier. After that it is aborted, and they "
        "continue with the old result. Raise it if batches take so long that switches are aborted.",
    )
    archive_keep_s: float = Field(
        7 * 24 * 3600.0,
        ge=0,
        description="How long a reset can be undone. After that, the janitor deletes its archive. Lower it if archives fill "
        "the disk; raise it to have more time for an undo.",
    )

    # before the values are checked: an error of theirs shows the name
    @field_validator("kafka", "driver_kafka", mode="before")
    @classmethod
    def _only_security(cls, value: Any, info: ValidationInfo) -> Any:
        names = map(str, value) if isinstance(value, Mapping) else ()
        bad = [name for name in names if not name.startswith(SECURITY_PREFIXES)]
        if bad:
            # a name of another form may be a password in the wrong place
            told = [name if _PROPERTY.fullmatch(name) else "a name of another form (not shown)" for name in bad]
            raise ValueError(f"{info.field_name} takes security.*, sasl.* and ssl.* properties, not {', '.join(told)}")
        return value

    @field_validator("store")
    @classmethod
    def _known_options(cls, value: Mapping[str, SecretStr | str]) -> Mapping[str, SecretStr | str]:
        if (wrong := wrong_options(revealed(value))) is not None:
            raise ValueError(wrong)
        return value

    @field_validator("kafka", "driver_kafka", "store")
    @classmethod
    def _hidden(cls, value: Mapping[str, SecretStr | str]) -> Mapping[str, SecretStr | str]:
        return {name: SecretStr(text) if is_secret(name) else text for name, text in revealed(value).items()}

    @field_validator("bootstrap_servers")
    @classmethod
    def _no_login(cls, value: str | None) -> str | None:
        if value is not None and "@" in value:
            raise ValueError("bootstrap_servers takes host:port,host:port; put a login into kafka")
        return value

    @field_validator("data_docs_url")
    @classmethod
    def _no_login_in_a_link(cls, value: str | None) -> str | None:
        found = _AUTHORITY.match(value) if value is not None else None
        # it is a link on pages, and in Dagster's database
        if found is not None and ("@" in found[1] or holds_secret(found.string)):
            raise ValueError("data_docs_url takes an address without a login: readers log in at the proxy")
        return value

    @field_validator("spark")
    @classmethod
    def _no_secret_for_the_command_line(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if holds_secret(value.get(_REPOSITORIES, "")):
            raise ValueError(
                f"{_REPOSITORIES} holds a password, and any user of the machine can see it on the command line of the JVM, "
                "which alone reads it: put the repository and its login into a file of Ivy's settings, and name that with "
                "spark.jars.ivySettings"
            )
        bad = [name for name, text in value.items() if name.endswith("JavaOptions") and holds_secret(text)]
        if bad:
            raise ValueError(
                f"{bad[0]} holds a password, and any user of the machine can see the options of a JVM: put them into a "
                "file, and set the variable JDK_JAVA_OPTIONS to @FILE"
            )
        return value

    @field_validator("spark")
    @classmethod
    def _no_property_with_a_setting(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for name, instead in _NOT_IN_SPARK.items():
            if name in value:
                raise ValueError(f"spark takes no {name}: {instead}")
        return value

    # a variable can't be taken away from a child process in a folder that has a switchyard.toml, but can be empty
    @field_validator(
        "bootstrap_servers",
        "store_url",
        "data_docs_url",
        "spark_master",
        "driver_host",
        "driver_bind_address",
        mode="before",
    )
    @classmethod
    def _empty_is_not_set(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("spark_master")
    @classmethod
    def _known_master(cls, value: str | None) -> str | None:
        if value is None or _LOCAL_MASTER.fullmatch(value) or _OTHER_MASTER.fullmatch(value):
            return value
        instead = "; on Kubernetes, run drivers in pods, without spark_master" if value.startswith("k8s:") else ""
        raise ValueError(
            f"spark_master takes spark://HOST:PORT, yarn, local or local[N]; {value} is not supported yet{instead}"
        )

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("store_url")
    @classmethod
    def _a_folder_or_a_bucket(cls, value: str | None) -> str | None:
        if value is None:
            return None
        scheme = _SCHEME.match(value)
        if scheme is not None and scheme[1] == SCHEME:
            found = bucket_of(value)
            if found is None:
                raise ValueError(
                    "store_url takes s3://BUCKET or s3://BUCKET/PREFIX, with letters, digits and . _ = - in its names: put keys, "
                    "region and endpoint into the setting store"
                )
            return found.url
        if scheme is None:
            return str(Path(value).expanduser().absolute())
        if scheme[1].lower() != "file":
            raise ValueError(
                f"store_url takes a path, a file: URL or s3://BUCKET/PREFIX; {scheme[1]}: is not supported"
            )
        place = urlsplit(value)
        if place.netloc not in ("", "localhost") or not place.path.startswith("/") or place.query or place.fragment:
            raise ValueError(
                "store_url takes a file: URL with an absolute path and nothing else: file:///path/of/the/store"
            )
        return value

    @model_validator(mode="after")
    def _fit_for_executors(self) -> Self:
        if self.spark_master is None or not self.executors_elsewhere:
            return self
        if self.on_yarn and not _has_yarn_site():
            raise ValueError(
                f"with spark_master = yarn, drivers need the file {_YARN_SITE}, which says where YARN is: set the variable "
                "HADOOP_CONF_DIR or YARN_CONF_DIR to the folder that has it"
            )
        if self.bootstrap_servers is None:
            raise ValueError(
                "with spark_master, executors on other hosts read from Kafka, but the embedded broker listens on this machine "
                "alone: set bootstrap_servers"
            )
        if self.bucket is not None:
            raise ValueError(
                "with spark_master, executors on other hosts write checkpoints into a folder that all hosts share, and a bucket "
                "is none: put the store on such a file system, name that folder in store_url, and set store_shared = true"
            )
        if not self.store_shared or self.store_url is None:
            raise ValueError(
                "with spark_master, executors on other hosts need the files of the store: put it on a file system that all "
                "hosts share, name that folder in store_url, and set store_shared = true"
            )
        if self.executor_timeout_s + _BOOT_S > self.boot_timeout_s:
            raise ValueError(
                f"a driver may take {self.boot_timeout_s:g} s until its first heartbeat, but may wait {self.executor_timeout_s:g} s "
                f"for executors alone: set boot_timeout_s to {self.executor_timeout_s + _BOOT_S:g} or more, or lower "
                "executor_timeout_s"
            )
        return self

    @classmethod
    def apart(cls, folder: Path, **given: Any) -> Self:
        """The settings of a run that has all its files in `folder`, and its tasks in its own processes.

        For whoever deletes the folder, or fills it with releases of a cluster of its own: the user's store is not touched.
        """
        home = folder.expanduser().absolute()
        return cls(**given, state_dir=home, store_url=str(home), store_shared=False, spark_master=None)

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
    def bucket(self) -> Bucket | None:
        """The bucket of the store; None: the store is a folder."""
        return bucket_of(self.store_url)

    @property
    def store_dir(self) -> Path:
        """The folder of the store: that of `store_url`, or else the state folder. Of a bucket, this host's copies."""
        if self.store_url is None:
            return self.state_dir
        if self.bucket is not None:
            return self.state_dir / "store"
        return Path(self.store_url if _SCHEME.match(self.store_url) is None else unquote(urlsplit(self.store_url).path))

    @property
    def executors_elsewhere(self) -> bool:
        """Whether the tasks of drivers run in executors, which may be on other hosts, and not in the driver itself."""
        return self.spark_master is not None and _LOCAL_MASTER.fullmatch(self.spark_master) is None

    @property
    def on_yarn(self) -> bool:
        """Whether YARN starts the executors of drivers."""
        return self.spark_master == "yarn"

    @property
    def yarn_staging_dir(self) -> Path:
        """Where Spark puts its properties for the containers of YARN."""
        return self.store_dir / "yarn"

    @property
    def host(self) -> str:
        return socket.gethostname()

    def for_driver(self) -> Settings:
        """The settings of a driver: with its own login, if it has one, and without the operator's.

        A login has many forms, and the operator's may have another one than the driver's: so none of it is kept.
        """
        shared, own = self.kafka, self.driver_kafka
        protocol = str(own.get("security.protocol", "sasl")).lower()
        another_way = not protocol.startswith("sasl") or {"sasl.mechanism", "sasl.mechanisms"} & own.keys()
        if another_way or any(map(_IDENTITY.fullmatch, own)):
            shared = {
                name: value
                for name, value in shared.items()
                if not _IDENTITY.fullmatch(name) and not (another_way and name.startswith("sasl."))
            }
        return self.model_copy(update={"kafka": {**shared, **own}, "driver_kafka": {}})

    def on_this_machine(self) -> Settings:
        """The settings of a Spark session that is no driver's: its tasks run in its own process.

        A trial or a check must not wait for cores of a cluster that drivers have taken, nor be reachable from there.
        """
        return self.model_copy(update={"spark_master": None}) if self.executors_elsewhere else self

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, including secrets. Empty: not set."""
        import json

        out: dict[str, str] = {}
        for name, value in self.model_dump().items():
            shown = revealed(value) if isinstance(value, Mapping) else "" if value is None else value
            out[f"SWITCHYARD_{name.upper()}"] = json.dumps(shown) if isinstance(shown, dict | tuple) else str(shown)
        return out

    def child_environment(self) -> dict[str, str]:
        """What a child process in another folder needs: this process's environment, with these settings."""
        return {**os.environ, **self.environment()}

    def environment_of_driver(self) -> dict[str, str]:
        """What a driver gets: these settings, and this process's environment without the operator's own variables."""
        if self.bucket is None:
            return {**plain_environment(os.environ, self.driver_environment), **self.environment()}
        # keys go into a setting, which a driver takes out of its environment before it imports the app
        store = login_of(revealed(self.store), os.environ)
        own = self.model_copy(update={"store": store})
        also = (*self.driver_environment, *passed_to_driver(store, os.environ))
        return {**plain_environment(os.environ, also), **own.environment()}

    def environment_of_trial(self) -> dict[str, str]:
        """What a process gets that tries an app on empty input. It needs no cluster: no login, and no store's keys."""
        import json

        out = {**plain_environment(os.environ, self.driver_environment), **self.environment()}
        if self.executors_elsewhere:
            out["SWITCHYARD_SPARK_MASTER"] = ""
        drop_holders(out)
        return {**out, "SWITCHYARD_SPARK": json.dumps(without_secrets(self.spark))}


def _has_yarn_site() -> bool:
    """Whether a variable of this process names a folder with YARN's configuration."""
    folders = [folder for name in _YARN_FOLDERS if (folder := os.environ.get(name))]
    return any(Path(folder, _YARN_SITE).is_file() for folder in folders)


def revealed(properties: Mapping[str, SecretStr | str]) -> dict[str, str]:
    """Properties with their secrets as text: only for clients that need them."""
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in properties.items()
    }


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """The settings of this process."""
    return Settings()
