"""The stages that plans are made of, by subject. Each says what it would do; `applying` does it."""

# importing a module registers its stages; a stage in a journal can't be read before that
from orchestration.operations.plans.stages import generations, releases, switching

__all__ = ["generations", "releases", "switching"]
