"""Java's classes by their names."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext


def java_class(name: str) -> Any:
    """The Java class with this full name, or the static side of a Scala object. Needs a JVM in this process.

    `jvm.org.apache...` would ask for each part of the name, and Java would look through all jars for a class `org`.
    """
    # a session is active in some threads only, and comes later than the JVM
    assert SparkContext._jvm is not None
    return getattr(SparkContext._jvm, name)


def class_name(found: Any) -> str:
    """The name of the class of a Java object, without its package."""
    return str(found.getClass().getSimpleName())
