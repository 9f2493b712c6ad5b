"""Carries out a plan: `applier` goes through its stages. Each kind of stage has a function in one of these modules."""

# importing a module registers its functions; a stage can't be applied before that
from orchestration.operations.applying import consumers, generations, meeting, releases, switching

__all__ = ["consumers", "generations", "meeting", "releases", "switching"]
