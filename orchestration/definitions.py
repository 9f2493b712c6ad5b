"""What Dagster loads: a list of all definitions. Imports the apps' modules; contacts neither Kafka nor Spark."""

from __future__ import annotations

from dagster import Definitions, in_process_executor

from orchestration.catalog import find_apps, readers
from orchestration.defs.checks import gates
from orchestration.defs.inputs import input_assets
from orchestration.defs.jobs import JOBS
from orchestration.defs.live import live_assets
from orchestration.defs.resets import RESETS
from orchestration.defs.resources import Platform, SparkResource, alerts
from orchestration.defs.results import results_assets
from orchestration.defs.schedules import janitor_often, quality_checks_hourly, refresh_hourly, reprocessing_schedules
from orchestration.defs.supervisor import supervisor_sensor
from orchestration.defs.watching import failure_alert, watch_after_promotion
from pipelines.logs import configure_command

# what modules log beside Dagster's own log: without control characters and secrets, on its terminal, too
configure_command("text")

_APPS = find_apps()

defs = Definitions(
    assets=[*input_assets(_APPS), *results_assets(_APPS), *live_assets(_APPS)],
    asset_checks=gates(_APPS),
    jobs=[*JOBS, *RESETS],
    schedules=[*reprocessing_schedules(_APPS), quality_checks_hourly, refresh_hourly, janitor_often],
    sensors=[
        supervisor_sensor(topics=sorted(readers(_APPS)), apps=[app.name for app in _APPS]),
        watch_after_promotion,
        failure_alert,
    ],
    resources={"platform": Platform(), "pyspark": SparkResource(), "alerts": alerts()},
    # steps are few and long, and checks that share a Spark session must not run at the same time
    executor=in_process_executor,
)
