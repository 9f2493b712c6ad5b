"""Dagster's assets, jobs, schedules and sensors. They call operations and decide nothing themselves."""
