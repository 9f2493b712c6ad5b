"""An app whose results are Avro, from staging to its consumers. The tests are one story, in this order."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastavro import schemaless_reader

from orchestration.operations.procedures.check import check
from orchestration.operations.procedures.diff import diff
from pipelines.apps import log_router as module
from pipelines.errors import BadUsage, Refused
from pipelines.follow import LiveConsumer
from tests.e2e.cluster import LARGE, Cluster, assert_nothing_differs

pytestmark = [pytest.mark.e2e, pytest.mark.broker, pytest.mark.spark, pytest.mark.long]

V1, V2 = "log-router.v1", "log-router.v2"


@pytest.fixture(scope="module")
def live(cluster: Cluster) -> Iterator[Cluster]:
    cluster.load("log-router", 2_000, per_second=50)
    cluster.hydrate("log-router", 1, batch=LARGE)
    cluster.make_live("log-router", 1)
    yield cluster
    cluster.stop(V1, V2)


def test_both_results_are_checked(live: Cluster) -> None:
    verdict = check(live.context(), V1)
    assert verdict.ok, verdict.failures
    assert {name.partition(":")[0] for name in (each.name for each in verdict.results)} == {
        "high-priority",
        "low-priority",
    }


def test_a_consumer_gets_the_schema_with_which_a_record_was_written(live: Cluster) -> None:
    with LiveConsumer(
        "log-router", group="any", result="high-priority", settings=live.settings, register=False
    ) as logs:
        record = logs.poll(10)
    assert record is not None and record.value is not None and record.schema == module.EVENT
    found = schemaless_reader(io.BytesIO(record.value), json.loads(record.schema), None)
    assert isinstance(found, dict) and found["level"] == "ERROR" and found["message"] and found["app_name"]
    said = live.cli("follow", "log-router", "--result", "low-priority", "--max-records", 5, "--json")
    values = [json.loads(json.loads(line)["value"]) for line in said.out.splitlines()]
    assert said.code == 0 and len(values) == 5 and all(v["level"] not in ("", "ERROR") for v in values), said.text


def test_unchanged_code_differs_in_nothing(live: Cluster) -> None:
    live.hydrate("log-router", 2, batch=500, correction="the same again")
    assert_nothing_differs(diff(live.context(), V2), at_least=1_500)


def test_a_schema_that_consumers_can_not_read_is_refused(live: Cluster, tmp_path: Path) -> None:
    source = inspect.getsource(module)
    field = '{"name": "message", "type": "string"},'
    assert source.count(field) == 1
    code = source.replace(field, "").replace('"message", F.col("appName")', 'F.col("appName")')
    (tmp_path / "log_router.py").write_text(code)
    with pytest.raises(
        BadUsage, match=r"that have its earlier Avro schema can't read the new one: .*message"
    ) as refused:
        live.stage("log-router", 3, code_dir=tmp_path)
    assert "give the new app another name" in refused.value.fix


def test_a_result_does_not_turn_into_json(live: Cluster, tmp_path: Path) -> None:
    source = inspect.getsource(module)
    one = '"low-priority": AppendStream(partitions=4, avro=EVENT, '
    assert source.count(one) == 1
    (tmp_path / "log_router.py").write_text(source.replace(one, one.replace("avro=EVENT, ", "")))
    with pytest.raises(
        Refused, match=r"result low-priority is Avro in log-router\.v1 and JSON in log-router\.v3"
    ) as refused:
        live.stage("log-router", 3, code_dir=tmp_path)
    assert "give the new app another name" in refused.value.fix
