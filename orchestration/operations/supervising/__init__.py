"""Supervising: runs all the time, starts drivers again, and reports: overviews, alerts, metrics."""
