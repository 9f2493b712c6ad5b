"""What is secret is neither shown nor handed to an app: settings, errors, logs and environments, each by itself."""

from __future__ import annotations

import json
import logging
import os
import re
import traceback
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyspark
import pytest
from pydantic import ValidationError

from orchestration import cli
from orchestration.launchers import local
from orchestration.launchers.local import LocalLauncher
from orchestration.operations.supervising import alerts
from pipelines import secrets
from pipelines.engine import jvm_process
from pipelines.engine.causes import cause
from pipelines.engine.spark_conf import session_conf, spark_kafka_options
from pipelines.errors import BadUsage, SwitchyardError
from pipelines.kafka.client import admin
from pipelines.kafka.login import java_properties
from pipelines.logs import VisibleFormatter
from pipelines.secrets import is_secret, masked, plain_environment, remember, withheld
from pipelines.settings import Settings

PLANTED = 'pLaN"ted\\5'
KAFKA = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ada", "sasl.password": PLANTED}
KEY = "spark.hadoop.fs.s3a.secret.key"
STORE = "spark.hadoop.fs.s3a.endpoint"


@pytest.mark.parametrize(
    "text",
    [
        '{"sasl.password": ["planted-word"]}',
        '{"sasl.password": "planted-word"',
        '["planted-word"]',
        '"planted-word"',
        '{"password": "planted-word"}',
        '{"sasl.password": "planted-word", "group.id": "planted-word"}',
        '{"planted-word": "sasl.password"}',
    ],
    ids=[
        "a list",
        "no JSON",
        "no table",
        "a text",
        "no property",
        "one that is no login's",
        "turned round",
    ],
)
def test_a_wrong_setting_shows_no_password(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHYARD_KAFKA", text)
    assert cli.run(["status"]) == 2
    said = capsys.readouterr()
    assert "kafka" in said.err and "planted-word" not in said.err + said.out
    # as Dagster shows it, or whoever embeds it
    with pytest.raises(ValueError) as error:
        Settings()
    assert "planted-word" not in "".join(traceback.format_exception(error.value))


def test_what_the_client_rejects_is_named_without_its_value() -> None:
    with pytest.raises(BadUsage, match="invalid value for configuration property") as error:
        admin(Settings(kafka={"security.protocol": "planted-word"}))
    assert "planted-word" not in error.value.told


def test_a_login_in_the_addresses_of_brokers_is_refused_and_not_shown() -> None:
    with pytest.raises(ValidationError, match="put a login into kafka") as refused:
        Settings(bootstrap_servers="ada:planted-word@broker:9092")
    assert "planted-word" not in str(refused.value)


def test_settings_show_no_secret_and_hand_it_to_clients() -> None:
    settings = Settings(kafka=KAFKA, spark={KEY: PLANTED})
    shown = f"{settings!r} {settings} {settings.model_dump_json(include={'kafka'})}"
    assert "pLaN" not in shown and "SASL_SSL" in shown and "ada" in shown
    assert settings.kafka_properties == KAFKA
    assert 'password="pLaN\\"ted\\\\5"' in java_properties(settings)["sasl.jaas.config"]
    assert "pLaN" not in str(spark_kafka_options(settings))
    assert Settings(**settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.password", True),
        ("sasl.jaas.config", True),
        ("sasl.oauthbearer.client.secret", True),
        ("sasl.oauthbearer.config", True),
        ("sasl.oauthbearer.token.endpoint.url", False),
        ("sasl.username", False),
        ("sasl.mechanism", False),
        ("security.protocol", False),
        ("ssl.key.password", True),
        ("ssl.key.pem", True),
        ("ssl.keystore.key", True),
        ("ssl.key.location", False),
        ("ssl.truststore.password", True),
        ("ssl.ca.pem", False),
        ("ssl.ca.location", False),
        (KEY, True),
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.hadoop.fs.azure.account.key.here.blob.core.windows.net", True),
        ("spark.sql.shuffle.partitions", False),
        ("spark.io.encryption.keySizeBits", False),
        ("spark.hadoop.fs.azure.saskey.usecontainersaskeyforallaccess", False),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("AWS_PROFILE", False),
        ("SWITCHYARD_ALERT_WEBHOOK", True),
        ("sasl.passwd", True),
        ("spark.hadoop.fs.ftp.user.pass", True),
        ("spark.datasource.x.pass.word", True),
        ("spark.jdbc.pwd", True),
        ("SPARK_MYSQL_PWD", True),
        ("spark.hadoop.fs.b2.appkey", True),
        ("PWD", False),
        ("OLDPWD", False),
        ("SSH_ASKPASS", False),
        ("spark.sql.bypass.files", False),
        ("spark.pwdless.mode", False),
    ],
)
def test_a_secret_is_known_by_its_name(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
    if secret and "." in name and name not in ("sasl.oauthbearer.config",):
        # what Spark shows of its settings and of a source's options
        assert re.search(secrets.SPARK_REDACTION, name)


def sensitive_of_hadoop() -> list[str]:
    """A name for each pattern by which Hadoop, of the version that Spark brings, keeps properties out of its logs."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    with zipfile.ZipFile(jar) as packed:
        defaults = ElementTree.fromstring(packed.read("core-default.xml"))
    [text] = [
        each.findtext("value", "")
        for each in defaults
        if each.findtext("name") == "hadoop.security.sensitive-config-keys"
    ]
    names = [pattern.replace(".*", ".bucket.").strip(".$").replace("..", ".") for pattern in text.split()]
    # the list hides itself, too
    return [name for name in names if name != "hadoop.security.sensitive-config-keys"]


STORES = [f"spark.hadoop.{name}" for name in (
    *sensitive_of_hadoop(), "fs.s3a.bucket.mine.encryption.key", "fs.azure.sas.container.account.blob.core.windows.net",
    "fs.azure.sas.fixed.token.account.dfs.core.windows.net", "fs.azure.account.oauth2.client.secret.account.dfs.core.windows.net",
)]  # fmt: skip


def test_hadoop_s_list_is_read() -> None:
    assert (
        len(STORES) > 20
        and "spark.hadoop.fs.s3a.encryption.key" in STORES
        and "spark.hadoop.fs.gs.auth.bucket" in STORES
    )


@pytest.mark.parametrize("name", [*STORES, KEY, "spark.ssl.keyPassword"])
def test_a_store_s_key_is_kept_wherever_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the JVM's command line, from a trial, from texts, and from apps, in each variable that Java or Spark reads."""
    settings = Settings(spark={name: PLANTED, "spark.a": "b"})
    assert re.search(secrets.SPARK_REDACTION, name)
    launched = launch(settings, monkeypatch)
    assert launched["conf"]["spark.a"] == "b" and "pLaN" not in json.dumps(launched)
    assert settings.environment_of_trial()["SWITCHYARD_SPARK"] == '{"spark.a": "b"}'
    assert "pLaN" not in masked(f"the store says {PLANTED}")
    for variable in OPTIONS:
        for form in FORMS:
            assert plain_environment({variable: form.format(name)}) == {}, form
            assert plain_environment({variable: form.format("spark.a")}).keys() == {variable}


OPTIONS = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_ANY",
           "SWITCHYARD_ANY")  # fmt: skip
FORMS = (
    "--conf {}=abc pyspark-shell", "--conf={}=abc", "-Xss4m -D{}=abc", "--conf '{}=a b c'", '--conf "{}"="abc"', "-javaagent:/x.jar={}=abc",
    "x,{}=abc", '{{"{}": "abc"}}', '{{\\"{}\\": \\"abc\\"}}',
)  # fmt: skip


def test_a_switch_is_no_secret_whatever_it_is_called() -> None:
    remember({"spark.hadoop.fs.gs.auth.service.account.enable": "true", "fs.gs.proxy.on": " False "})
    assert masked("it is true, False") == "it is true, False"
    given = {"SPARK_SUBMIT_OPTS": "-Dhadoop.security.credential.clear-text-fallback=true"}
    assert plain_environment(given) == given


@pytest.mark.parametrize("shape", [str, json.dumps, repr, lambda text: text.replace("\\", "\\\\").replace('"', '\\"')])
def test_a_secret_is_masked_however_it_is_written(shape: type[str]) -> None:
    remember({"sasl.password": PLANTED})
    assert "pLaN" not in masked(f"could not log in with {shape(PLANTED)}: refused")
    assert masked(f"a {shape(PLANTED)} b").startswith("a ")


def test_a_secret_that_another_begins_with_leaves_nothing_of_that_one() -> None:
    remember({"sasl.password": "begun", "ssl.key.password": "begun-and-ended", "ssl.keystore.password": "not-begun"})
    assert masked("begun-and-ended, begun, not-begun") == ", ".join([secrets.MASK] * 3)


def test_a_key_is_masked_line_by_line_and_a_jaas_line_word_by_word() -> None:
    remember({
        "ssl.key.pem": "-----BEGIN PRIVATE KEY-----\nMIIEplanted\nQUJDplanted==\n-----END PRIVATE KEY-----\n",
        "sasl.jaas.config": 'a.B required username="ada" password="in-planted";',
        "sasl.username": "ada",
        "ssl.key.password": "abc",
    })  # fmt: skip
    found = masked("read MIIEplanted, QUJDplanted== and in-planted of ada at abc -----BEGIN PRIVATE KEY-----")
    assert found == f"read {secrets.MASK}, {secrets.MASK} and {secrets.MASK} of ada at abc -----BEGIN PRIVATE KEY-----"


def test_errors_causes_and_logs_have_none() -> None:
    settings = Settings(kafka=KAFKA)
    raised = RuntimeError(f"JAAS: {settings.kafka_properties['sasl.password']}")
    told = SwitchyardError(f"no login: {raised}", fix=str(raised))
    line = VisibleFormatter().format(logging.LogRecord("a", 40, "f", 1, "%s", (raised,), (RuntimeError, raised, None)))
    for text in (told.told, str(told), repr(told), cause(raised), line):
        assert "pLaN" not in text and secrets.MASK in text


def test_a_traceback_of_what_nobody_foresaw_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(kafka=KAFKA)

    def fail() -> None:
        raise RuntimeError(settings.kafka_properties["sasl.password"])

    monkeypatch.setattr("orchestration.commands.broker.load_settings", fail)
    monkeypatch.setattr("sys.argv", ["switchyard", "down"])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert "RuntimeError" in said and "pLaN" not in said


@pytest.mark.parametrize("address", ["planted-word", "http://127.0.0.1:1/planted-word x"])
def test_a_webhook_that_is_no_url_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    monkeypatch.setenv(alerts.WEBHOOK, address)
    alerts.to_environment(alerts.ReleaseFailed(release="a.v1", failure="no heap", log=""))
    assert (
        "a.v1 has failed: no heap" in caplog.text
        and "did not reach the webhook" in caplog.text
        and "planted-word" not in caplog.text
    )


OPERATORS = {
    "AWS_SECRET_ACCESS_KEY": PLANTED, "AWS_PROFILE": "prod", "SWITCHYARD_ALERT_WEBHOOK": PLANTED, "GITHUB_TOKEN": PLANTED,
    "HTTPS_PROXY": f"http://ada:{PLANTED}@proxy", "DATABASE_URL": PLANTED, "SPARK_AUTH_SECRET": PLANTED,
}  # fmt: skip
NEEDED = {"PATH": "/bin", "JAVA_HOME": "/java", "HOME": "/root", "LC_ALL": "C", "SPARK_LOCAL_DIRS": "/tmp", "TZ": "UTC"}


def test_a_driver_gets_its_settings_and_nothing_of_the_operator_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**OPERATORS, **NEEDED}.items():
        monkeypatch.setenv(name, value)
    spark = {KEY: PLANTED, "spark.a": "b", STORE: f"http://ada:{PLANTED}@store"}
    settings = Settings(kafka=KAFKA, spark=spark, driver_environment=("AWS_PROFILE",))
    made = settings.environment_of_driver()
    assert {name: made[name] for name in OPERATORS.keys() & made.keys()} == {"AWS_PROFILE": "prod"}
    assert NEEDED.items() <= made.items()
    # its own login, and the keys of the store that its state is in
    assert json.loads(made["SWITCHYARD_KAFKA"]) == KAFKA
    trial = settings.environment_of_trial()
    assert "pLaN" not in json.dumps(trial) and json.loads(trial["SWITCHYARD_SPARK"]) == {"spark.a": "b"}
    # what runs commands is the operator's
    assert OPERATORS.items() <= settings.child_environment().items()


OF_AWS = {
    "AWS_ACCESS_KEY_ID": PLANTED, "AWS_SECRET_ACCESS_KEY": PLANTED, "AWS_SESSION_TOKEN": PLANTED, "AWS_REGION": "eu-west-1",
    "AWS_PROFILE": "prod", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/run/token",
}  # fmt: skip
NO_KEYS = {name: value for name, value in OF_AWS.items() if value != PLANTED}
LOGIN = {"access_key": PLANTED, "secret_key": PLANTED, "session_token": PLANTED}
OWN = {"access_key": "mine", "secret_key": "mine too"}
ROLE = {"role_arn": "arn:aws:iam::1:role/other"}


@pytest.mark.parametrize(
    ("url", "store", "variables", "options", "passed"),
    [
        # AWS's own variables are for a bucket only
        ("/a/folder", {}, OF_AWS, {}, {}),
        # keys go where a driver takes them out of its environment
        ("s3://bucket", {"region": "r"}, OF_AWS, {"region": "r", **LOGIN}, NO_KEYS),
        ("s3://bucket", {}, NO_KEYS, {}, NO_KEYS),
        ("s3://bucket", OWN, OF_AWS, OWN, NO_KEYS),
        # a role is assumed again and again, with the login that AWS's variables hold then
        ("s3://bucket", ROLE, OF_AWS, ROLE, OF_AWS),
    ],
)
def test_a_driver_gets_the_login_of_its_bucket(
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    store: dict[str, str],
    variables: dict[str, str],
    options: dict[str, str],
    passed: dict[str, str],
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings(store_url=url, store=store)
    made = settings.environment_of_driver()
    assert json.loads(made["SWITCHYARD_STORE"]) == options
    assert {name: value for name, value in made.items() if name.startswith("AWS_")} == passed
    trial = settings.environment_of_trial()
    assert not [name for name in trial if name.startswith("AWS_")] and "SWITCHYARD_STORE" not in trial
    # of a driver, what its JVM and its Python workers are started with
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in made.items():
        monkeypatch.setenv(name, value)
    with withheld():
        assert "SWITCHYARD_STORE" not in os.environ
        assert not [name for name in os.environ if name.startswith("AWS_")]


def test_a_driver_is_started_with_just_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setattr(local.subprocess, "Popen", lambda command, **how: started.update(command=command, **how))
    for name, value in OPERATORS.items():
        monkeypatch.setenv(name, value)
    settings = Settings(kafka=KAFKA, state_dir=tmp_path)
    LocalLauncher(settings).spawn("a.v1")
    assert started["env"] == settings.environment_of_driver() and not OPERATORS.keys() & started["env"].keys()
    assert "pLaN" not in json.dumps(started["command"])


def test_what_is_withheld_for_a_while_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**OPERATORS, **NEEDED, "SWITCHYARD_KAFKA": json.dumps(KAFKA), "SWITCHYARD_TRIGGER_S": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with withheld(("AWS_PROFILE",)):
        assert "pLaN" not in json.dumps(dict(os.environ))
        assert {*NEEDED, "AWS_PROFILE", "SWITCHYARD_TRIGGER_S"} <= os.environ.keys()
    assert given.items() <= os.environ.items()


def test_no_secret_is_a_name_that_passes() -> None:
    assert plain_environment({"PYTHONPATH": "a", "HADOOP_TOKEN": "b", "SWITCHYARD_X": "c"}) == {
        "PYTHONPATH": "a",
        "SWITCHYARD_X": "c",
    }


PASSED = {
    # Java, where it writes and which clock it shows
    "JAVA_TOOL_OPTIONS": "-Djavax.net.ssl.trustStore=/etc/trust.jks", "JDK_JAVA_OPTIONS": "-Xss4m", "_JAVA_OPTIONS": "-Xss4m",
    "LANG": "de_DE.UTF-8", "LC_NUMERIC": "C", "TZ": "Europe/Berlin", "TZDIR": "/zones", "TMPDIR": "/scratch", "TMP": "/scratch",
    # where the jars of an installed package are
    "XDG_CACHE_HOME": "/cache",
    # the way out
    "http_proxy": "http://proxy:3128", "HTTPS_PROXY": "http://proxy:3128", "no_proxy": "localhost,.local", "ALL_PROXY": "socks5://p",
    # Spark, Hadoop and Kerberos; where a token or a key lies is no secret
    "SPARK_HOME": "/spark", "SPARK_CONF_DIR": "/conf", "SPARK_SUBMIT_OPTS": "-Dspark.a=b", "HADOOP_CONF_DIR": "/conf",
    "HADOOP_USER_NAME": "ada", "HADOOP_TOKEN_FILE_LOCATION": "/run/tokens", "YARN_CONF_DIR": "/conf", "KRB5_CONFIG": "/krb5.conf",
    "KRB5CCNAME": "FILE:/tmp/krb5cc_0", "KRB5_KTNAME": "/etc/keytab", "SPARK_LOCAL_DIRS": "abfss://data@account.net/x",
}  # fmt: skip
WITHHELD = {
    "JAVA_TOOL_OPTIONS": "-Xss4m -Djavax.net.ssl.keyStorePassword=planted", "_JAVA_OPTIONS": "-Dhttp.proxyPassword=planted",
    "SPARK_SUBMIT_OPTS": "-Dspark.ssl.keyPassword=planted", "http_proxy": "http://ada:planted@proxy:3128",
    "HTTPS_PROXY": "http://ada:pl/anted@proxy", "HADOOP_CREDSTORE_PASSWORD": "planted", "_SPARK_AUTH_SECRET": "planted",
    "ALL_PROXY": "http://planted@proxy:3128", "PYSPARK_GATEWAY_SECRET": "planted", "KRB5_PASSWORD": "planted", "DATABASE_URL": "planted", "XHTTP_PROXY": "planted",
}  # fmt: skip


def test_what_java_spark_and_hadoop_need_passes() -> None:
    assert plain_environment(PASSED) == PASSED


def test_variables_with_a_password_are_withheld_from_drivers(caplog: pytest.LogCaptureFixture) -> None:
    assert plain_environment(WITHHELD) == {}
    told = {record.args[0] for record in caplog.records if isinstance(record.args, tuple)}
    assert told == {"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"}
    assert "driver_environment" in caplog.text and "planted" not in caplog.text
    # who names it wants it
    assert plain_environment(WITHHELD, WITHHELD) == WITHHELD


def test_java_options_with_a_password_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options = f"-Xss4m -Djavax.net.ssl.keyStorePassword={PLANTED}"
    monkeypatch.setenv("SWITCHYARD_SPARK", json.dumps({"spark.driver.defaultJavaOptions": options}))
    assert cli.run(["status"]) == 2
    said = capsys.readouterr().err
    assert "spark.driver.defaultJavaOptions holds a password" in said and "JDK_JAVA_OPTIONS" in said
    assert PLANTED not in said


def test_a_repository_with_a_password_is_refused() -> None:
    found = f"https://ada:{PLANTED}@jars.example.com/maven"
    with pytest.raises(ValidationError, match=r"spark\.jars\.ivySettings") as refused:
        Settings(spark={"spark.jars.repositories": found})
    assert PLANTED not in str(refused.value)
    assert Settings(spark={"spark.jars.repositories": "https://jars.example.com/maven"}).spark


def test_the_password_of_a_url_is_masked_by_itself() -> None:
    Settings(spark={STORE: f"http://ada:{PLANTED}@store"})
    assert PLANTED not in masked(f"407 for ada with {PLANTED}")
    Settings(spark={STORE: "http://ada:with:colons@store"})
    assert "with:colons" not in masked("407 for ada with:colons")


def test_a_jvm_gets_no_secret_on_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**OPERATORS, "SWITCHYARD_KAFKA": json.dumps(KAFKA)}.items():
        monkeypatch.setenv(name, value)
    settings = Settings(spark={KEY: PLANTED, "spark.a": "b", STORE: f"http://ada:{PLANTED}@store"})
    assert session_conf(settings, heap_mb=512, cores=1)[KEY] == PLANTED
    launched = launch(settings, monkeypatch)
    assert not {KEY, STORE} & launched["conf"].keys() and launched["conf"]["spark.a"] == "b"
    assert "pLaN" not in json.dumps(launched)


def launch(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a JVM of these settings would be started with: `conf` is on its command line; `environment`."""
    launched: dict[str, Any] = {}

    def launching(conf: object, how: dict[str, object]) -> object:
        launched.update(conf=dict(conf.getAll()), environment=dict(os.environ), how=how)  # type: ignore[attr-defined]
        raise InterruptedError

    monkeypatch.setattr(jvm_process, "launch_gateway", launching)
    monkeypatch.setattr(jvm_process, "SparkConf", _Conf)
    with pytest.raises(InterruptedError):
        jvm_process._start_jvm(session_conf(settings, heap_mb=512, cores=1), ())
    return launched


class _Conf(dict[str, str]):
    """As Spark's, whose own asks a JVM."""

    def __init__(self, loadDefaults: bool) -> None:
        assert loadDefaults is False

    def setAll(self, pairs: list[tuple[str, str]]) -> _Conf:
        self.update(pairs)
        return self

    def getAll(self) -> list[tuple[str, str]]:
        return list(self.items())
