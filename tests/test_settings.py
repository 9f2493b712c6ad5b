"""Settings, and how they reach Kafka's two clients: under librdkafka's names, and under Java's for Spark's source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestration.launchers.local import LocalLauncher
from orchestration.local.data_docs import folder_of
from orchestration.operations.comparing.evidence import evidence_path
from orchestration.operations.looking.files import folders_of
from orchestration.operations.plans.stages.releases import DeleteFiles
from pipelines.engine.checkpoint import release_folder
from pipelines.engine.code import code_path
from pipelines.engine.jvm.jars import class_archive, pyspark_jars, scala_jar
from pipelines.engine.spark_conf import session_conf, spark_kafka_options
from pipelines.engine.table_file import table_path
from pipelines.kafka.client import consumer_config, producer_config
from pipelines.settings import Settings, revealed
from tests.shared.elsewhere import elsewhere


def test_only_security_is_taken_from_the_kafka_table() -> None:
    with pytest.raises(ValidationError, match=r"not a name of another form \(not shown\), group\.id"):
        Settings(kafka={"acks": "0", "group.id": "x", "sasl.mechanism": "PLAIN"})


@pytest.mark.parametrize("table", ["kafka", "driver_kafka"])
@pytest.mark.parametrize("value", ["x", 1, None, {"a": 1}], ids=str)
def test_a_password_in_place_of_a_name_is_not_shown(table: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"SWITCHYARD_{table.upper()}", json.dumps({"planted-w": value}))
    with pytest.raises(ValidationError, match=r"a name of another form \(not shown\)") as caught:
        Settings()
    assert "planted" not in str(caught.value) + repr(caught.value.errors(include_input=False))


@pytest.mark.parametrize(
    "url",
    [
        "https://ada:planted@example.com/docs",
        "https://planted@example.com",
        "https://ada:plan/ted@example.com/docs",
        "//ada:planted@example.com/docs",
        "ada:planted@example.com",
        "https://example.com/docs?token=planted",
    ],
)
def test_a_login_in_a_link_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValidationError, match="data_docs_url takes an address without a login") as caught:
        Settings(data_docs_url=url)
    assert "ted" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["https://example.com/@ada/docs", "https://example.com:8443/docs", "http://[::1]:9789/"]
)
def test_a_link_without_a_login_is_taken(url: str) -> None:
    assert Settings(data_docs_url=url).data_docs_url == url


@pytest.mark.parametrize("name", ["isolation.level", "enable.idempotence", "bootstrap.servers", "transactional.id"])
def test_what_guards_a_guarantee_can_not_be_set(name: str) -> None:
    with pytest.raises(ValidationError):
        Settings(kafka={name: "x"})


def test_the_environment_carries_every_setting_to_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = Settings(
        state_dir=tmp_path,
        kafka={"sasl.mechanism": "PLAIN"},
        spark={"spark.a": "b c"},
        trigger_s=0.1,
        spark_master="local",
    )
    for name, value in mine.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir("/")
    assert Settings() == mine


def test_readers_wait_two_minutes_at_most_for_the_transaction_of_a_dead_driver() -> None:
    # who reads committed records waits until the broker has aborted it, which it looks for every 10 s
    assert Settings().transaction_timeout_s + 10 <= 120


def test_a_relative_state_dir_is_made_absolute() -> None:
    assert Settings(state_dir=Path("somewhere")).state_dir == Path.cwd() / "somewhere"


def test_the_file_is_read_and_the_environment_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "switchyard.toml").write_text(
        'driver_cores = 3\ntrigger_s = 2.0\n[kafka]\n"ssl.ca.location" = "ca.pem"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_TRIGGER_S", "1")
    found = Settings()
    assert (found.driver_cores, found.trigger_s, found.kafka) == (3, 1.0, {"ssl.ca.location": "ca.pem"})


def test_an_unknown_line_of_the_file_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "switchyard.toml").write_text("driver_core = 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError, match="driver_core"):
        Settings()


def test_clients_read_committed_and_partition_as_java_does() -> None:
    settings = Settings(bootstrap_servers="k:1", kafka={"sasl.mechanism": "PLAIN"})
    assert consumer_config(settings)["isolation.level"] == "read_committed"
    assert consumer_config(settings)["enable.auto.commit"] is False
    # where a record was deleted, no consumer reads on elsewhere unnoticed
    assert consumer_config(settings)["auto.offset.reset"] == "error"
    made = producer_config(settings, transactional_id="a.v1")
    assert made["partitioner"] == "murmur2_random"
    assert made["enable.idempotence"] is True
    assert (made["transactional.id"], made["sasl.mechanism"], made["bootstrap.servers"]) == ("a.v1", "PLAIN", "k:1")


# -- Spark's source


def options(**kafka: str) -> dict[str, str]:
    """Executors on other hosts get the secrets themselves."""
    given = {name.replace("_", "."): value for name, value in kafka.items()}
    return spark_kafka_options(elsewhere(kafka=given))


def test_spark_on_this_machine_gets_a_reference_in_place_of_each_secret() -> None:
    password = ' a"b\\c\nd ${e}=:#'
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": password, "ssl.key.password": "planted"}
    there = options(**{name.replace(".", "_"): value for name, value in login.items()})
    here = spark_kafka_options(Settings(bootstrap_servers="k:1", kafka=login))
    secret = {"kafka.sasl.jaas.config", "kafka.ssl.key.password"}
    provider = {"kafka.config.providers", "kafka.config.providers.switchyard.class"}
    assert {name for name in here.keys() | there.keys() if here.get(name) != there.get(name)} == secret | provider
    assert "planted" not in str(here) and 'a"b' not in str(here)
    lines = dict(
        line.split("=", 1)
        for name in sorted(secret)
        for line in Path(here[name].split(":")[1]).read_text().splitlines()
    )
    # as java.util.Properties reads them
    read = {f"kafka.{name}": value.replace("\\\\", "\\") for name, value in lines.items()}
    assert read == {name: there[name] for name in secret}
    assert {here[name].split(":")[2] for name in secret} == {"sasl.jaas.config}", "ssl.key.password}"}


def test_without_security_only_the_servers_and_how_to_read() -> None:
    assert options() == {
        "kafka.bootstrap.servers": "k:1",
        "kafka.isolation.level": "read_committed",
        "kafka.allow.auto.create.topics": "false",
        "kafka.fetch.max.wait.ms": "5",
        "kafka.max.poll.records": "50000",
        # also for its admin client, whose default is 60 s
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "20000",
    }


@pytest.mark.parametrize("spelling", ["sasl_mechanism", "sasl_mechanisms"])
@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "scram.ScramLoginModule"),
    ],
)
def test_a_login_is_translated_to_jaas(spelling: str, mechanism: str, module: str) -> None:
    found = options(
        **{spelling: mechanism}, security_protocol="SASL_SSL", sasl_username="me", sasl_password='pass"word'
    )
    assert found["kafka.security.protocol"] == "SASL_SSL"
    assert found["kafka.sasl.mechanism"] == mechanism
    assert found["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module} required username="me" password="pass\\"word";'
    )
    assert not {"kafka.sasl.mechanisms", "kafka.sasl.username", "kafka.sasl.password"} & found.keys()


def test_a_backslash_in_a_password_stays_one() -> None:
    found = options(sasl_mechanism="PLAIN", sasl_username="me", sasl_password='a\\b"c\\')
    # in JAAS, a backslash makes the next character literal
    assert found["kafka.sasl.jaas.config"].endswith('password="a\\\\b\\"c\\\\";')


def test_a_jaas_line_that_is_given_is_taken_as_it_is() -> None:
    found = options(sasl_mechanism="PLAIN", sasl_username="me", sasl_jaas_config="mine required;")
    assert found["kafka.sasl.jaas.config"] == "mine required;"


def test_pem_files_are_read_into_the_options(tmp_path: Path) -> None:
    paths = {}
    for name in ("ca", "certificate", "key"):
        paths[name] = tmp_path / f"{name}.pem"
        paths[name].write_text(f"-----BEGIN {name}-----")
    found = options(
        security_protocol="SSL",
        ssl_ca_location=str(paths["ca"]),
        ssl_certificate_location=str(paths["certificate"]),
        ssl_key_location=str(paths["key"]),
        ssl_key_password="secret",
    )
    assert found["kafka.ssl.truststore.type"] == found["kafka.ssl.keystore.type"] == "PEM"
    assert found["kafka.ssl.truststore.certificates"] == "-----BEGIN ca-----"
    assert found["kafka.ssl.keystore.certificate.chain"] == "-----BEGIN certificate-----"
    assert found["kafka.ssl.keystore.key"] == "-----BEGIN key-----"
    assert found["kafka.ssl.key.password"] == "secret"
    assert not any(name.endswith(".location") for name in found)


def test_pem_texts_are_options_too() -> None:
    found = options(security_protocol="SSL", ssl_ca_pem="-----BEGIN ca-----")
    assert found["kafka.ssl.truststore.type"] == "PEM"
    assert found["kafka.ssl.truststore.certificates"] == "-----BEGIN ca-----"
    assert "kafka.ssl.ca.pem" not in found


def test_a_login_by_oidc_is_translated() -> None:
    found = options(
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_method="oidc",
        sasl_oauthbearer_client_id="me",
        sasl_oauthbearer_client_secret='se"cret',
        sasl_oauthbearer_token_endpoint_url="https://idp/token",
    )
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    assert found["kafka.sasl.login.callback.handler.class"] == handler
    assert found["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://idp/token"
    assert found["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'clientId="me" clientSecret="se\\"cret";'
    )
    left = {"kafka.sasl.oauthbearer.method", "kafka.sasl.oauthbearer.client.id", "kafka.sasl.oauthbearer.client.secret"}
    assert not left & found.keys()


def test_nothing_of_this_machine_leaks_into_the_settings() -> None:
    assert not [name for name in os.environ if name.startswith("SWITCHYARD_KAFKA")]


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWITCHYARD_JARS_DIR", str(tmp_path))
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "kafka.jar").touch()
    scala_jar().parent.mkdir()
    scala_jar().touch()
    return tmp_path


def java_options(settings: Settings) -> str:
    conf = session_conf(settings, heap_mb=512, cores=1)
    return conf["spark.driver.defaultJavaOptions"] + " " + conf["spark.driver.extraJavaOptions"]


def test_classes_are_mapped_from_the_archive_where_there_is_one(jars: Path) -> None:
    assert "SharedArchiveFile" not in java_options(Settings())
    class_archive().touch()
    mine = Settings(spark={"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC"})
    assert f"-XX:SharedArchiveFile={class_archive()}" in java_options(mine)
    # a setting replaces the default: two garbage collectors would end the JVM
    assert "UseG1GC" not in java_options(mine)


@pytest.mark.parametrize(("trigger_s", "expected"), [(0.0, "200ms"), (1.0, "500ms"), (30.0, "15000ms")])
def test_an_idle_driver_asks_for_records_twice_per_trigger(trigger_s: float, expected: str) -> None:
    conf = session_conf(Settings(trigger_s=trigger_s), heap_mb=512, cores=1)
    assert conf["spark.sql.streaming.pollingDelay"] == expected


def test_the_memory_of_a_driver_is_bounded(jars: Path) -> None:
    conf = session_conf(Settings(), heap_mb=1024, cores=1)
    assert conf["spark.driver.memory"] == "1024m"
    store = "spark.sql.streaming.stateStore.rocksdb"
    # what RocksDB uses besides the heap
    assert (conf[f"{store}.boundedMemoryUsage"], conf[f"{store}.maxMemoryUsageMB"]) == ("true", "256")


def test_jars_are_on_the_class_path_of_driver_and_executors(jars: Path) -> None:
    both = f"{jars / 'spark' / 'kafka.jar'}:{scala_jar()}"
    here, there = session_conf(Settings()), session_conf(elsewhere())
    assert (here["spark.driver.extraClassPath"], here.get("spark.executor.extraClassPath")) == (both, None)
    # sent by Spark, they would come after Spark's own
    assert (there["spark.driver.extraClassPath"], there["spark.executor.extraClassPath"]) == (both, both)
    assert "spark.jars" not in {**here, **there}


# -- executors on other hosts


@pytest.mark.parametrize("master", [None, "local", "local[4]", "local[*]"])
def test_without_executors_a_driver_is_reached_from_this_machine_only(master: str | None, jars: Path) -> None:
    conf = session_conf(Settings(spark_master=master, driver_host="here.example.com"))
    assert (conf["spark.driver.host"], conf["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
    assert not [name for name in conf if name.startswith("spark.executor.")]


@pytest.mark.parametrize("master", ["spark://host:7077", "spark://a:7077,b:7077", "local-cluster[2,1,512]"])
def test_what_executors_elsewhere_get(master: str, jars: Path) -> None:
    conf = session_conf(
        elsewhere(
            spark_master=master, driver_host="a.example.com", executors=3, executor_cores=4, executor_heap_mb=2048
        )
    )
    assert (conf["spark.driver.host"], conf["spark.driver.bindAddress"]) == ("a.example.com", "a.example.com")
    got = [conf[f"spark.{name}"] for name in ("executor.cores", "cores.max", "executor.memory")]
    assert got == ["4", "12", "2048m"]
    # RocksDB runs in the executors
    assert conf["spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"] == "512"
    behind_nat = session_conf(elsewhere(driver_host="a.example.com", driver_bind_address="10.0.0.1"))
    assert behind_nat["spark.driver.bindAddress"] == "10.0.0.1"
    # whatever a setting says, the free ones win
    assert session_conf(elsewhere(spark={"spark.cores.max": "9"}))["spark.cores.max"] == "9"


@pytest.fixture
def hadoop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a configuration of YARN, which a variable names."""
    folder = tmp_path / "hadoop"
    folder.mkdir()
    (folder / "yarn-site.xml").write_text("<configuration/>")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    return folder


def test_what_containers_of_yarn_get(jars: Path, hadoop: Path) -> None:
    settings = elsewhere(spark_master="yarn", executors=3, executor_cores=2, executor_heap_mb=2048)
    conf = session_conf(settings)
    got = [conf[f"spark.executor.{name}"] for name in ("instances", "cores", "memory")]
    assert got == ["3", "2", "2048m"]
    # the container holds RocksDB's quarter of the heap, the rest of the JVM, and the Python workers of each core
    assert conf["spark.executor.memoryOverhead"] == f"{512 + 384 + 2 * 512}m"
    # Spark uploads neither its jars nor its Python modules, and its properties go where other hosts find them
    assert conf["spark.yarn.jars"] == f"local:{pyspark_jars()}/*" and conf["spark.yarn.isPython"] == "false"
    assert conf["spark.yarn.stagingDir"] == "file:///store/yarn"
    assert not [name for name in session_conf(elsewhere()) if name.startswith("spark.yarn.")]
    own = {"spark.executor.memoryOverhead": "4g", "spark.yarn.queue": "streams"}
    assert session_conf(elsewhere(spark_master="yarn", spark=own)).items() >= own.items()


def test_a_driver_gets_the_configuration_of_yarn(hadoop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = elsewhere(spark_master="yarn")
    assert settings.on_yarn and settings.executors_elsewhere
    assert settings.environment_of_driver()["HADOOP_CONF_DIR"] == str(hadoop)
    monkeypatch.delenv("HADOOP_CONF_DIR")
    monkeypatch.setenv("YARN_CONF_DIR", str(hadoop))
    assert elsewhere(spark_master="yarn").environment_of_driver()["YARN_CONF_DIR"] == str(hadoop)


def test_yarn_without_its_configuration_is_refused(hadoop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hadoop / "yarn-site.xml").unlink()
    with pytest.raises(
        ValidationError, match=r"drivers need the file yarn-site\.xml.* set the variable HADOOP_CONF_DIR"
    ):
        elsewhere(spark_master="yarn")
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(ValidationError, match=r"set the variable HADOOP_CONF_DIR"):
        elsewhere(spark_master="yarn")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"store_shared": False}, "store_shared = true"),
        ({"bootstrap_servers": None}, "set bootstrap_servers"),
        ({"store_url": None}, "name that folder in store_url"),
        ({"store_url": ""}, "name that folder in store_url"),
        ({"executor_timeout_s": 100}, "set boot_timeout_s to 130 or more"),
    ],
)
def test_executors_elsewhere_need(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        elsewhere(**change)


def test_trials_and_checks_run_on_this_machine(jars: Path) -> None:
    assert session_conf(elsewhere().on_this_machine(), cores=1)["spark.master"] == "local[1]"
    assert elsewhere().environment_of_trial()["SWITCHYARD_SPARK_MASTER"] == ""
    assert elsewhere().environment_of_driver()["SWITCHYARD_SPARK_MASTER"] == "spark://host:7077"


@pytest.mark.parametrize(
    "master", ["yarn-client", "k8s://host", "locale[2]", "local[2", "local[x]", "spark://", "mesos://host:1"]
)
def test_a_master_that_was_never_tried_is_refused_by_name(master: str) -> None:
    with pytest.raises(ValidationError, match="spark_master takes spark://HOST:PORT") as caught:
        elsewhere(spark_master=master)
    assert f"{master} is not supported yet" in str(caught.value)
    assert ("run drivers in pods, without spark_master" in str(caught.value)) == master.startswith("k8s:")


@pytest.mark.parametrize("name", ["spark.master", "spark.hadoop.fs.defaultFS"])
def test_a_property_that_has_its_own_place_is_not_taken_from_the_table(name: str) -> None:
    with pytest.raises(ValidationError, match=f"spark takes no {name}"):
        Settings(spark={name: "local[4]"})


def test_what_hadoop_s_own_configuration_says_moves_no_checkpoint(jars: Path) -> None:
    assert {session_conf(each)["spark.hadoop.fs.defaultFS"] for each in (Settings(), elsewhere())} == {"file:///"}


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "switchyard.toml").write_text('store_url = "/of/the/file"\nspark_master = "local[3]"\n')
    for name in (
        "STORE_URL",
        "SPARK_MASTER",
        "BOOTSTRAP_SERVERS",
        "DRIVER_HOST",
        "DRIVER_BIND_ADDRESS",
        "DATA_DOCS_URL",
    ):
        monkeypatch.setenv(f"SWITCHYARD_{name}", "")
    found = Settings()
    assert found.store_dir == found.state_dir and found.embedded
    assert (found.spark_master, found.driver_host, found.driver_bind_address, found.data_docs_url) == (None,) * 4


@pytest.mark.parametrize("where", ["variables", "file"])
@pytest.mark.parametrize("url", ["/theirs", "s3://theirs/store"])
def test_a_run_apart_never_touches_the_store_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = {"bootstrap_servers": "k:1", "store_url": url, "spark_master": "spark://theirs:7077"}
    if where == "file":
        (tmp_path / "switchyard.toml").write_text("".join(f'{name} = "{text}"\n' for name, text in theirs.items()))
    else:
        for name, text in theirs.items():
            monkeypatch.setenv(f"SWITCHYARD_{name.upper()}", text)
    own = Settings.apart(Path("own"), bootstrap_servers=None)
    for environment in (own.child_environment(), own.environment_of_driver(), own.environment_of_trial()):
        with monkeypatch.context() as child:
            for name, text in environment.items():
                child.setenv(name, text)
            found = Settings()
        assert (found.state_dir, found.store_dir, found.spark_master) == (tmp_path / "own", tmp_path / "own", None)
        assert found.embedded


@pytest.mark.parametrize(
    "module",
    [
        "demo/run.py",
        "demo/down.py",
        "benchmarks/__main__.py",
        "orchestration/jvm/class_archive.py",
        "pipelines/testing/session.py",
    ],
)
def test_whoever_makes_a_state_folder_of_its_own_has_a_store_of_its_own(module: str) -> None:
    text = (Path(__file__).resolve().parents[1] / module).read_text()
    assert "Settings.apart(" in text and "Settings(" not in text


# -- the store


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (None, "/state"),
        ("/mnt/store", "/mnt/store"),
        ("file:/mnt/store", "/mnt/store"),
        ("file:///mnt/my%20store", "/mnt/my store"),
        ("file://localhost/mnt/store", "/mnt/store"),
        ("stores/mine", f"{Path.cwd()}/stores/mine"),
    ],
)
def test_where_the_store_is(url: str | None, expected: str) -> None:
    found = Settings(state_dir=Path("/state"), store_url=url)
    assert found.store_dir == Path(expected)
    assert Settings(state_dir=Path("/state"), store_url=found.store_url).store_dir == Path(expected)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hdfs://name/store", "a path, a file: URL or s3://BUCKET/PREFIX; hdfs: is not supported"),
        ("s3a://planted:planted@bucket/store", "a path, a file: URL or s3://BUCKET/PREFIX; s3a: is not supported"),
        ("file://host/store", "a file: URL with an absolute path and nothing else"),
        ("file:store", "a file: URL with an absolute path and nothing else"),
        ("file:///store?planted", "a file: URL with an absolute path and nothing else"),
        ("s3://planted:planted@bucket/store", "takes s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://bucket/store?secret_key=planted", "takes s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://bucket/../store", "takes s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://bucket/store/.", "takes s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3://bucket//store", "takes s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3:///store", "takes s3://BUCKET or s3://BUCKET/PREFIX"),
        ("s3:bucket", "takes s3://BUCKET or s3://BUCKET/PREFIX"),
    ],
)
def test_another_store_is_refused_and_not_shown(url: str, said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        Settings(store_url=url)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("s3://a-bucket", "a-bucket"),
        ("s3://a-bucket/", "a-bucket"),
        ("s3://a-bucket/some/..prefix.d/", "a-bucket/some/..prefix.d"),
    ],
)
def test_a_bucket_has_copies_in_the_state_folder(url: str, root: str) -> None:
    found = Settings(state_dir=Path("/state"), store_url=url)
    assert found.bucket is not None and found.bucket.root == root and found.store_url == f"s3://{root}"
    assert found.store_dir == Path("/state/store")
    assert Settings(store_url="/a/folder").bucket is None is Settings().bucket


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ({"secret_key": "planted"}, "access_key and secret_key together"),
        ({"access_key": "planted"}, "access_key and secret_key together"),
        ({"session_token": "planted"}, "session_token only with access_key"),
        ({"role_arn": "r", "access_key": "planted", "secret_key": "planted"}, "a role_arn or an access_key, not both"),
        ({"scheme": "planted"}, "scheme of store takes https or http"),
        ({"endpoint_override": "http://planted:9000"}, "endpoint_override of store takes HOST:PORT"),
        ({"endpoint_override": "planted:word@host"}, "endpoint_override of store takes HOST:PORT"),
        ({"fs.s3a.access.key": "planted"}, "not a name of another form"),
        ({"endpoint": "planted"}, "store takes access_key, .* tls_ca_file_path, not endpoint"),
    ],
)
def test_an_option_that_the_client_lacks_is_refused_and_its_value_is_not_shown(
    store: dict[str, str], said: str
) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        Settings(store_url="s3://bucket", store=store)
    assert "planted" not in str(caught.value)


def test_the_keys_of_a_bucket_are_merged_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "switchyard.toml").write_text(
        'store_url = "s3://bucket/here"\n[store]\nendpoint_override = "minio:9000"\nregion = "eu-west-1"\naccess_key = "ada"\n'
    )
    monkeypatch.setenv("SWITCHYARD_STORE", '{"secret_key": "planted"}')
    found = Settings()
    assert revealed(found.store) == {
        "endpoint_override": "minio:9000",
        "region": "eu-west-1",
        "access_key": "ada",
        "secret_key": "planted",
    }
    assert "planted" not in repr(found) and "ada" not in repr(found) and "eu-west-1" in repr(found)


def test_executors_elsewhere_need_a_folder() -> None:
    with pytest.raises(ValidationError, match="a bucket is none: put the store on such a file system"):
        elsewhere(store_url="s3://bucket")
    assert elsewhere(store_url="s3://bucket", spark_master="local[2]").bucket is not None


def test_what_other_hosts_need_is_in_the_store_and_the_rest_is_not(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "state", store_url=str(tmp_path / "store"))
    stored = [
        release_folder(settings, "sums.v1"),
        code_path(settings, "d"),
        table_path(settings, "d"),
        evidence_path(settings, "diff-1"),
        folder_of(settings),
    ]
    assert [path for path in stored if not path.is_relative_to(tmp_path / "store")] == []
    assert LocalLauncher(settings).log_path("sums.v1").is_relative_to(tmp_path / "state")
    assert session_conf(settings, cores=1)["spark.local.dir"] == str(tmp_path / "state" / "spark")
    deleted = folders_of(settings, DeleteFiles(release="sums.v1", code_digest=None, evidence=("diff-1",)))
    assert {path.relative_to(tmp_path).as_posix() for path in deleted} == {
        "store/checkpoints/sums.v1",
        "store/evidence/diff-1",
        "state/run/sums.v1",
    }
