"""The stages that plans are made of, by what they are about: each says what it would do; `applying` does it."""

# a stage that is in a journal is known only once its class is
from orchestration.operations.plans.stages import generations, releases, switching

__all__ = ["generations", "releases", "switching"]
