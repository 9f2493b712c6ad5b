"""Builds what a driver's JVM loads: the jar of our Scala classes, and the class archive."""
