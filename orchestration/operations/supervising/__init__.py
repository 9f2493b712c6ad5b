"""Supervising: what runs all the time and starts drivers again, and what it says: overviews, alerts, metrics."""
