"""What Dagster loads: in a fresh interpreter, without broker, Spark or network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from expectations.suites import SuiteInputs, checks_of
from orchestration.catalog import find_apps, topics_of
from orchestration.defs.inputs import input_assets
from orchestration.defs.names import group_of
from pipelines.model import App

ROOT = Path(__file__).resolve().parents[2]

# prints what is defined; fails on a connection, which has no place in an import, and without a package that is an extra
LOAD = """
import json, logging, socket, sys

def forbidden(*arguments, **options):
    raise AssertionError("a connection at import")

socket.socket.connect = forbidden
sys.modules |= {"bokeh_sampledata": None, "dagster_postgres": None}

from orchestration.definitions import defs

logging.getLogger("switchyard.alerts").error("it says \\x1b[2J")
repository = defs.get_repository_def()
graph = repository.asset_graph
assets = {}
for key in graph.get_all_asset_keys():
    node = graph.get(key)
    assets["/".join(key.path)] = {
        "group": node.group_name,
        "upstream": sorted("/".join(parent.path) for parent in node.parent_keys),
        "partitions": getattr(node.partitions_def, "name", None),
        "described": bool(node.description),
        # Markdown shows such lines as code
        "indented": any(line.startswith(" " * 4) for line in (node.description or "").splitlines()),
        "external": node.is_external,
        "kinds": sorted(node.kinds),
        "owners": list(node.owners),
        "columns": [
            [column.name, column.type, *column.tags]
            for value in [node.metadata.get("dagster/column_schema")] if value is not None
            for column in value.schema.columns
        ],
    }
configs = {
    job.name: {
        name: field.default_value if field.default_provided else None
        for node in job.nodes
        for name, field in getattr(node.definition.config_schema.config_type, "fields", {}).items()
    }
    for job in repository.get_all_jobs() if not job.name.startswith("__")
}
configs |= {
    "/".join(key.path): {
        name: field.default_value if field.default_provided else None
        for name, field in getattr(asset.op.config_schema.config_type, "fields", {}).items()
    }
    for key, asset in repository.assets_defs_by_key.items() if asset.is_executable
}
pools = {
    job.name: sorted({pool for node in job.nodes for pool in node.definition.pools})
    for job in repository.get_all_jobs() if not job.name.startswith("__")
}
urgent = [job.name for job in repository.get_all_jobs() if job.tags.get("dagster/priority", "0") != "0"]
print(json.dumps({
    "pools": pools,
    "urgent": urgent,
    "pools_of_checks": sorted({pool for check in defs.asset_checks for pool in check.node_def.pools}),
    "pools_of_assets": sorted({pool for a in repository.assets_defs_by_key.values() if a.is_executable for pool in a.op.pools}),
    "assets": assets,
    "checks": {f"{'/'.join(k.asset_key.path)}:{k.name}": getattr(graph.get(k).partitions_def, "name", None)
               for k in graph.asset_check_keys},
    "configs": configs,
    "schedules": {s.name: s.default_status.value for s in repository.schedule_defs},
    "sensors": {s.name: s.default_status.value for s in repository.sensor_defs},
    "modules": [name for name in ("great_expectations", "pandas.core") if name in sys.modules],
    "jvm": __import__("pyspark").SparkContext._gateway is not None,
}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "DAGSTER_HOME"}
    # a port where nobody listens: an import that asks would fail, or hang
    environment |= {"SWITCHYARD_BROKER_PORT": "1", "SWITCHYARD_STATE_DIR": str(tmp_path_factory.mktemp("state"))}
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"said": done.stderr}


def test_a_log_of_ours_obeys_nothing_of_a_record(loaded: Any) -> None:
    assert r"it says \x1b[2J" in loaded["said"] and "\x1b" not in loaded["said"]


APPS = {app.name: topics_of(app) for app in find_apps()}
GROUPS = {app.name: re.sub("[ -]", "_", app.shows or "apps") for app in find_apps()}
# which apps read the result of which
READS = {app.name: sorted({of.app for of in app.upstream.values()}) for app in find_apps()}


def test_apps_that_read_the_result_of_another_are_among_these() -> None:
    assert READS["notification-counts"] == ["not-viewing"] and READS["top-stocks"] == ["daily-gains"]
    assert READS["word-count"] == []


def test_apps_are_grouped_by_what_they_show(loaded: Any) -> None:
    groups = {key: asset["group"] for key, asset in loaded["assets"].items()}
    by_hand = {
        "results/large-orders": "single_event", "results/word-count": "aggregate", "live/stock-stats": "window",
        "live/not-viewing": "join", "results/top-stocks": "multi_phase", "results/product-views": "low_level",
        "results/sensor-readings": "late_data",
        "inputs/lines": "aggregate",
        # stock-stats and daily-gains read it
        "inputs/trades": "inputs",
        # product-views and product-counter read it
        "inputs/product-views": "low_level",
    }  # fmt: skip
    assert {key: groups[key] for key in by_hand} == by_hand


def test_an_app_that_shows_nothing_has_a_group_all_the_same() -> None:
    shows_nothing = replace(find_apps()[0], shows=None)
    assert group_of(shows_nothing) == "apps"
    shared = [replace(shows_nothing, name=name) for name in ("one", "other")]
    assert {spec.group_name for spec in input_assets(shared)} == {"apps"}
    assert {spec.group_name for spec in input_assets([*shared, *find_apps()[:1]])} == {"inputs"}


# by hand: name, type, and the tag of a column of the key
COLUMNS = {
    "stock-stats": [
        ["ticker", "string", "switchyard/key"],
        ["window_start", "string", "switchyard/key"],
        ["lowest_ask", "decimal(8,2)"],
        ["trades", "bigint"],
        ["average_ask", "decimal(12,6)"],
    ],
    "product-views": [
        ["counts.product", "string", "switchyard/key"],
        ["counts.views", "bigint"],
        ["alerts.product", "string", "switchyard/key"],
        ["alerts.views", "bigint"],
    ],
}


def test_results_and_aliases_show_the_columns_that_their_suites_expect_and_who_owns_them(loaded: Any) -> None:
    for app in find_apps():
        for key in (f"results/{app.name}", f"live/{app.name}"):
            asset = loaded["assets"][key]
            assert asset["owners"] == ["team:streaming"]
            assert bool(asset["columns"]) == bool(app.suites), key
            if app.name in COLUMNS:
                assert asset["columns"] == COLUMNS[app.name]


@pytest.mark.slow
@pytest.mark.parametrize("app", APPS)
def test_each_app_is_a_line_from_its_inputs_to_its_alias(loaded: Any, app: str) -> None:
    group = GROUPS[app]
    results, live = loaded["assets"][f"results/{app}"], loaded["assets"][f"live/{app}"]
    assert results["upstream"] == [
        *(f"inputs/{topic}" for topic in APPS[app]),
        *(f"results/{other}" for other in READS[app]),
    ]
    assert live["upstream"] == [f"results/{app}"]
    assert {results["group"], live["group"]} == {group}
    assert (results["partitions"], live["partitions"]) == (f"releases_{app.replace('-', '_')}", None)
    assert results["described"] and live["described"]
    for topic in APPS[app]:
        source = loaded["assets"][f"inputs/{topic}"]
        groups = {GROUPS[each] for each, topics in APPS.items() if topic in topics}
        assert source["group"] == (group if groups == {group} else "inputs")
        assert source["external"] and source["partitions"] is None and source["described"]


def test_an_input_that_an_app_reads_as_a_table_is_shown_as_one(loaded: Any) -> None:
    kinds = {key: asset["kinds"] for key, asset in loaded["assets"].items() if key.startswith("inputs/")}
    assert kinds["inputs/open"] == ["kafka", "source", "table"]
    assert kinds["inputs/tick"] == ["kafka", "source"]


def test_nothing_else_is_an_asset(loaded: Any) -> None:
    topics = {topic for each in APPS.values() for topic in each}
    assert len(loaded["assets"]) == 2 * len(APPS) + len(topics)


# by hand: the words of each expectation, as Dagster names it; of the apps whose suites show how names are made
EXPECTATIONS = {
    "large-orders": "schema order_id_not_null sales_person_not_null amount_not_null ordered_at_not_null "
    "topic_not_null partition_not_null offset_not_null each_order_once amount_in_range ordered_at_readable "
    "volume_against_live",
    "stock-stats": "not_empty schema ticker_not_null window_start_not_null lowest_ask_not_null trades_not_null "
    "average_ask_not_null key_unique window_start_readable lowest_ask_in_range average_ask_in_range trades_in_range "
    "lowest_ask_not_over_average_ask windows_aligned windows_complete volume_against_live",
    "product-views": "counts__not_empty counts__schema counts__product_not_null counts__views_not_null "
    "counts__key_unique counts__views_in_range counts__volume_against_live alerts__schema alerts__product_not_null "
    "alerts__views_not_null alerts__each_product_told_once alerts__told_at_the_limit alerts__volume_against_live",
    "word-count": "not_empty schema word_not_null count_not_null key_unique word_form the_not_counted count_in_range "
    "volume_against_live",
}


def expectations_of(app: App) -> list[str]:
    if app.name in EXPECTATIONS:
        return EXPECTATIONS[app.name].split()
    return [
        re.sub(r"\W", "_", f"{result}: {check.name}" if result else check.name)
        for result, suite in app.suites.items()
        for check in checks_of(suite, SuiteInputs(app_settings=app.settings))
    ]


def test_each_expectation_is_a_check_and_so_is_the_verdict_partitioned_by_release(loaded: Any) -> None:
    assert loaded["checks"] == {
        f"results/{app.name}:{name}": f"releases_{app.name.replace('-', '_')}"
        for app in find_apps()
        if app.suites
        for name in ["verdict" if app.has_several else app.name.replace("-", "_"), *expectations_of(app)]
    }


# what acts as soon as it is launched, and why that is safe
ACTS_AT_ONCE = {
    "bisect": "reads, and tries batches on a copy of the state",
    "quality_checks": "only checks, and records the verdicts",
    "refresh": "only brings diffs up to date",
    "janitor": "ends only what is past its time",
    "watch": "goes back only if a release that has just gone live fails",
    **{f"results/{app}": "stages and starts beside the live release, which consumers keep" for app in APPS},
}
SHOWS_THE_PLAN = {
    "reprocess", "promote", "rollback", "start", "stop", "retire", "reset", "undo", *(f"live/{app}" for app in APPS),
}  # fmt: skip


def test_every_job_and_asset_is_known(loaded: Any) -> None:
    assert set(loaded["configs"]) == SHOWS_THE_PLAN | set(ACTS_AT_ONCE)


def test_nothing_is_changed_by_default(loaded: Any) -> None:
    """Whatever has the option `execute`; what lacks it is listed above, with the reason."""
    defaults = {name: config["execute"] for name, config in loaded["configs"].items() if "execute" in config}
    assert defaults == dict.fromkeys(SHOWS_THE_PLAN, False)


def test_other_defaults_are_the_safe_ones(loaded: Any) -> None:
    jobs = loaded["configs"]
    assert jobs["reprocess"]["auto_promote"] is False
    assert jobs["start"]["force"] is False
    assert jobs["retire"]["after_s"] == 24 * 3600
    assert {jobs[name]["max_evidence_age_s"] for name in ("promote", *(f"live/{app}" for app in APPS))} == {600}


# consumers wait for them; the limit of the pool leaves room for the Spark session of one
NEVER_WAIT = {"promote", "rollback", "watch"}
NO_SPARK = {"start", "stop", "retire", "refresh", "janitor", "reset", "undo"}


def test_runs_that_take_long_are_in_pools_but_those_that_consumers_wait_for(loaded: Any) -> None:
    jobs = loaded["pools"]
    assert {name for name, pools in jobs.items() if pools == ["spark"]} == set(jobs) - NEVER_WAIT - NO_SPARK
    assert {name for name, pools in jobs.items() if not pools} == NEVER_WAIT | NO_SPARK
    assert loaded["pools_of_checks"] == ["spark"] and loaded["pools_of_assets"] == ["hydration"]
    assert set(loaded["urgent"]) == NEVER_WAIT | {"start"}


def test_schedules(loaded: Any) -> None:
    assert loaded["schedules"] == {
        **{f"reprocess_{app.replace('-', '_')}": "STOPPED" for app in APPS},
        "quality_checks_hourly": "RUNNING",
        "refresh_hourly": "RUNNING",
        "janitor_often": "RUNNING",
    }


def test_sensors(loaded: Any) -> None:
    assert loaded["sensors"] == {
        "supervisor": "RUNNING",
        "watch_after_promotion": "RUNNING",
        "failure_alert": "RUNNING",
    }


def test_loading_is_light(loaded: Any) -> None:
    assert loaded["modules"] == []
    assert not loaded["jvm"]
