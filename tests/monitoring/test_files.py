"""The alert rules and the dashboard: they ask only for what is exported, and their own tools accept them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestration.operations.supervising.metrics import ReleaseCollector
from tests.operations.supervising.test_metrics import Fake, reading

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "docs" / "monitoring" / "alerts.yml"
DASHBOARD = ROOT / "docs" / "monitoring" / "dashboard.json"
PAGE = ROOT / "docs" / "monitoring.md"
NAME = re.compile(r"\bswitchyard_[a-z_]+\b")


def exported() -> dict[str, set[str]]:
    """Name of each series that the endpoint can export -> its labels."""
    collector = ReleaseCollector(Fake(reading))
    found: dict[str, set[str]] = {}
    try:
        for family in collector.collect():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    finally:
        collector.close()
    return found


def asked_by(expression: str) -> set[str]:
    """The series that an expression of PromQL names; a label of that name is none."""
    within_braces = re.sub(r"\{[^}]*\}", "", expression)
    return set(NAME.findall(within_braces))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions(value: Any) -> Iterator[str]:
    """What the dashboard asks Prometheus for: in panels, annotations and variables."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("expr", "query") and isinstance(inner, str) and "switchyard" in inner:
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


def lost(given: Any, kept: Any, at: str = "") -> Iterator[str]:
    """What of `given` is not in `kept` as it was, by its place."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name not in kept:
                yield f"{at}.{name}"
            else:
                yield from lost(value, kept[name], f"{at}.{name}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{at}[{number}]")
    elif given != kept:
        yield f"{at}: {given!r}"


def by_grafana(dashboard: dict[str, Any]) -> Any:
    """The dashboard as Grafana's own types read it, written again: what its schema doesn't have is gone."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))


def test_alerts_ask_only_for_what_is_exported() -> None:
    known = exported()
    assert len(rules()) >= 10
    for rule in rules():
        asked = asked_by(rule["expr"])
        assert asked and asked <= set(known), f"{rule['alert']} asks for {asked - set(known)}"


def test_an_alert_s_text_names_only_labels_that_its_series_have() -> None:
    known = exported()
    for rule in rules():
        named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert all(named <= known[name] for name in asked_by(rule["expr"])), rule["alert"]
        assert {"summary", "description"} <= set(rule["annotations"]) and rule["labels"]["severity"]


def test_the_dashboard_asks_only_for_what_is_exported() -> None:
    known, asked = set(exported()), set[str]()
    for expression in expressions(json.loads(DASHBOARD.read_text())):
        asked |= asked_by(expression)
    assert len(asked) > 15
    assert asked <= known, f"not exported: {asked - known}"


def test_the_dashboard_is_valid_by_grafana_s_own_schema() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert not list(lost(dashboard, by_grafana(dashboard)))
    # the check can fail
    dashboard["panels"][0]["gridPosition"] = {}
    dashboard["panels"][1]["fieldConfig"]["defaults"]["untis"] = "s"
    assert [place.rpartition(".")[2] for place in lost(dashboard, by_grafana(dashboard))] == [
        "untis",
        "gridPosition",
    ] or [place.rpartition(".")[2] for place in lost(dashboard, by_grafana(dashboard))] == ["gridPosition", "untis"]


def test_the_dashboard_s_panels_do_not_overlap_and_can_be_read() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        mine = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not mine & cells, panel["title"]
        cells |= mine
        assert panel["title"] and panel["description"] and panel["targets"]


def test_the_page_explains_every_metric_and_every_alert() -> None:
    page = PAGE.read_text()
    for name in [*exported(), *(rule["alert"] for rule in rules())]:
        assert f"`{name}`" in page, f"docs/monitoring.md doesn't explain {name}"
    for name in NAME.findall(page):
        assert name in exported() or f"{name}_total" in exported(), f"docs/monitoring.md names {name}"


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    assert path is not None, "no promtool on the path: it checks the alert rules (Debian: apt-get install prometheus)"
    return path


@pytest.mark.long
def test_prometheus_accepts_the_rules_and_they_fire_when_they_should(promtool: str) -> None:
    for arguments in (
        ["check", "rules", str(ALERTS)],
        ["test", "rules", str(Path(__file__).with_name("alerts_test.yml"))],
    ):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_prometheus_accepts_what_is_served(promtool: str) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    collector = ReleaseCollector(Fake(reading))
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        text = generate_latest(registry)
    finally:
        collector.close()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0 and not done.stdout and not done.stderr, done.stdout + done.stderr


@pytest.mark.long
def test_prometheus_can_parse_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    """As recording rules, with Grafana's variables replaced as it does."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    for name, value in {"$__rate_interval": "1m", "$release": ".*", "$app": ".*"}.items():
        queries = [query.replace(name, value) for query in queries]
    named = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": named}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
