"""Which version of Switchyard staged a release, if it is not the one that will run it."""

from __future__ import annotations

from importlib.metadata import version

from pipelines.model.entries import ReleaseSpec


def this_platform() -> str:
    """What a release that is staged now runs on, such as `switchyard 0.1.0, pyspark 4.0.2`."""
    return f"switchyard {version('switchyard')}, pyspark {version('pyspark')}"


def staged_by_another(spec: ReleaseSpec) -> str | None:
    """Which version staged the release, and which will run it; None: this one did.

    A checkpoint keeps its formats and its number of shuffle partitions, whatever version runs it later.
    """
    here = this_platform()
    if spec.platform == here:
        return None
    # the entries of earlier builds don't say it
    return f"{spec.platform or 'a build before 0.1.0'}; its next driver runs on {here} and keeps the formats of its checkpoint"
