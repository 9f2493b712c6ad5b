"""The files in docs/kubernetes: what Kubernetes would refuse, commands and settings that aren't there, too little memory."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from orchestration.commands.options import seconds
from orchestration.local import presence
from orchestration.local.memory import session_mib
from pipelines.settings import Settings
from tests.shared import typed

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "kubernetes"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
# the oldest version that the page names, and the newest one that is known
VERSIONS = ("1.25", kubernetes_validate.latest_version())
# what a supervisor takes beside its drivers, for its own process and others such as `status`
SUPERVISOR_MIB = 512


def documents() -> dict[str, dict[str, Any]]:
    """`Deployment switchyard` -> the document."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            name = each["metadata"].get("name") or each["metadata"]["generateName"]
            assert found.setdefault(f"{each['kind']} {name}", each) is each
    return found


DOCUMENTS = documents()
PODS = {
    name: each["spec"]["template"]["spec"] for name, each in DOCUMENTS.items() if "template" in each.get("spec", {})
}
SUPERVISOR = PODS["Deployment switchyard"]
each_pod = pytest.mark.parametrize("pod", PODS.values(), ids=list(PODS))


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [found] = pod["containers"]
    return dict(found)


def settings() -> Settings:
    """Those of the ConfigMap."""
    return Settings(**tomllib.loads(DOCUMENTS["ConfigMap switchyard"]["data"]["switchyard.toml"]))


def mib(quantity: str) -> int:
    assert quantity.endswith("Mi")
    return int(quantity.removesuffix("Mi"))


def option(pod: dict[str, Any], name: str) -> str:
    args = container(pod)["args"]
    return str(args[args.index(name) + 1])


def image_paths(variable: str) -> str:
    found = re.search(rf"\b{variable}=(\S+)", DOCKERFILE)
    assert found is not None
    return found[1]


# -- what Kubernetes says


def test_the_files_make_what_the_page_names() -> None:
    assert list(DOCUMENTS) == [
        "Job switchyard-stage-", "ServiceAccount switchyard", "ConfigMap switchyard", "Deployment switchyard",
        "PodDisruptionBudget switchyard", "Deployment switchyard-metrics", "Service switchyard-metrics",
    ]  # fmt: skip
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert all(f"(kubernetes/{path.name})" in page for path in FOLDER.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_kubernetes_schema_accepts_each(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_field_would_be_found() -> None:
    wrong = {**DOCUMENTS["Deployment switchyard"], "spec": {**DOCUMENTS["Deployment switchyard"]["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)


def test_what_selects_pods_selects_those_that_there_are() -> None:
    labels = {name: DOCUMENTS[name]["spec"]["template"]["metadata"]["labels"].items() for name in PODS}
    for name, each in DOCUMENTS.items():
        selector = each.get("spec", {}).get("selector", {})
        wanted = selector.get("matchLabels", selector).items()
        if wanted:
            of = "Deployment switchyard-metrics" if "metrics" in name else "Deployment switchyard"
            assert [pod for pod in PODS if wanted <= labels[pod]] == [of], name


# -- what a pod may do


@each_pod
def test_a_pod_has_no_rights_and_writes_only_to_its_volumes(pod: dict[str, Any]) -> None:
    security, found = pod["securityContext"], container(pod)
    assert security["runAsNonRoot"] and f"USER {security['runAsUser']}:{security['runAsGroup']}" in DOCKERFILE
    assert f"--uid {security['runAsUser']} " in DOCKERFILE
    assert found["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["automountServiceAccountToken"]
    writable = {each["name"] for each in pod["volumes"] if "emptyDir" in each}
    mounts = {each["mountPath"] for each in found["volumeMounts"] if each["name"] in writable}
    # a folder of its own within the volume: that of the volume belongs to root, and is open to all
    assert str(Path(image_paths("SWITCHYARD_STATE_DIR")).parent) in mounts and "/tmp" in mounts


@each_pod
def test_a_pod_reads_its_settings_where_the_image_works(pod: dict[str, Any]) -> None:
    [folder] = re.findall(r"^WORKDIR (\S+)$", DOCKERFILE, re.MULTILINE)
    mounts = {each["name"]: each["mountPath"] for each in container(pod)["volumeMounts"]}
    [volume] = [each for each in pod["volumes"] if "configMap" in each]
    assert mounts[volume["name"]] == folder
    assert list(DOCUMENTS[f"ConfigMap {volume['configMap']['name']}"]["data"]) == [Settings.model_config["toml_file"]]


def test_variables_of_services_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    # as Kubernetes makes them of a Service `switchyard-broker`, unless it is told not to
    monkeypatch.setenv("SWITCHYARD_BROKER_PORT", "tcp://10.0.0.1:9092")
    with pytest.raises(ValueError, match="broker_port"):
        Settings()
    assert not any(pod["enableServiceLinks"] for pod in PODS.values())


# -- settings and commands


def test_the_settings_exist_and_are_valid() -> None:
    found = settings()
    assert found.bucket is not None and not found.embedded
    # or a driver that lives is taken for one that is silent
    assert found.jvm_end_timeout_s < found.lease_timeout_s


@each_pod
def test_variables_are_settings_and_secrets_are_not_in_the_files(pod: dict[str, Any]) -> None:
    names = {f"SWITCHYARD_{name.upper()}" for name in Settings.model_fields} | {"SWITCHYARD_ALERT_WEBHOOK"}
    given = container(pod)["env"]
    assert {"SWITCHYARD_KAFKA", "SWITCHYARD_STORE"} <= {each["name"] for each in given} <= names
    assert all(set(each["valueFrom"]) == {"secretKeyRef"} for each in given)


@each_pod
def test_a_pod_runs_a_command_that_can_be_typed(pod: dict[str, Any]) -> None:
    program, *arguments = container(pod)["args"]
    assert program == "switchyard"
    typed.require(" ".join(arguments))


def test_the_image_runs_what_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "FROM python:3.11-slim-bookworm\n" in DOCKERFILE and project["requires-python"] == ">=3.11,<3.12"
    for line in re.findall(r"^ && switchyard (.*?)(?: \\)?$", DOCKERFILE, re.MULTILINE):
        typed.require(line)
    [command] = re.findall(r"^CMD \[(.*)\]$", DOCKERFILE, re.MULTILINE)
    assert re.findall(r'"([^"]+)"', command) == container(SUPERVISOR)["args"]
    images = {container(pod)["image"].partition(":")[2] for pod in PODS.values()}
    assert images == {project["version"]}


# -- numbers


def test_drivers_have_the_time_to_stop() -> None:
    found, within_s = settings(), seconds(option(SUPERVISOR, "--stop-drivers"))
    # the longest that a batch may take to commit, and then the end of its JVM
    assert within_s > found.transaction_timeout_s + found.jvm_end_timeout_s
    # the turn that is under way ends before
    assert SUPERVISOR["terminationGracePeriodSeconds"] >= within_s + 30


@pytest.mark.parametrize("pod", ["Deployment switchyard", "Job switchyard-stage-"])
def test_the_memory_fits_the_settings(pod: str) -> None:
    resources, each_mib = container(PODS[pod])["resources"], session_mib(settings())
    drivers = 2 if pod == "Deployment switchyard" else 0
    # one command beside them
    needed_mib = (drivers + 1) * each_mib + (SUPERVISOR_MIB if drivers else 0)
    assert mib(resources["limits"]["memory"]) == mib(resources["requests"]["memory"]) == needed_mib
    # a driver that gets no time sends no heartbeat
    assert "cpu" not in resources["limits"]


def _probe() -> list[str]:
    command = container(SUPERVISOR)["readinessProbe"]["exec"]["command"]
    return [str(each) for each in command]


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Any]:
    """Whether the probe, in a state folder of the test, says that the pod is ready."""
    state = image_paths("SWITCHYARD_STATE_DIR")
    command = [each.replace(state, str(tmp_path / "state")) for each in _probe()]
    assert command != _probe()
    yield lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_a_pod_is_ready_while_its_supervisor_has_turns(ready: Any, tmp_path: Path) -> None:
    own = Settings(state_dir=tmp_path / "state")
    assert not ready()
    presence.say_present(own)
    assert ready() and presence.is_supervised(own)
    [path] = (own.state_dir / "run" / "supervisors").glob("*.json")
    late = path.stat().st_mtime - 125
    os.utime(path, (late, late))
    assert not ready()
    presence.say_present(own)
    assert ready()
    presence.say_gone(own)
    assert not ready()
